/** Texts of alerts. */

import { count, plural, seconds } from "./format";
import type { AlertCounts, Severity, Unit } from "./types";

export const SEVERITY_TONES: Record<Severity, "bad" | "warn" | "plain"> = { critical: "bad", warning: "warn", info: "plain" };

export function valueText(unit: Unit, value: number): string {
  if (unit === "share") return `${(value * 100).toFixed(value < 0.1 ? 1 : 0).replace(/\.0$/, "")} %`;
  if (unit === "seconds") return spanText(value);
  return unit === "messages" ? count(value) : "–";
}

/** A duration of a rule: 900 as 15 min. */
export function spanText(value: number): string {
  return value ? seconds(value).replace(/(?<=\D) 0 (s|min|h)$/, "").replace(/\.0+(?= s)/, "") : "0 s";
}

/** The number of firing alerts, for the link in the health line; empty if there are none. */
export function alertsText(counts: Partial<AlertCounts>): string {
  return counts.firing ? plural(counts.firing, "alert") : "";
}
