/** The health of the cluster in one line. It is "Healthy" only if no nsqd is missing and there is no trouble. */

import { plural } from "./format";
import type { Head, MissingNode, Trouble, TroubleKind } from "./types";

export interface Health {
  tone: "ok" | "warn" | "bad" | "";
  word: string;
  text: string;
}

const TROUBLES: [TroubleKind, (count: number) => string][] = [
  ["no_consumer", (count) => plural(count, "channel or topic has", "channels or topics have") + " messages and no consumer"],
  ["growing", (count) => plural(count, "backlog is growing", "backlogs are growing")],
  ["timing_out", (count) => `messages time out in ${plural(count, "channel")}`],
];

/** The short label of each kind of trouble. */
export const TROUBLE_LABELS: Record<TroubleKind, string> = {
  no_consumer: "No consumer",
  growing: "Growing",
  timing_out: "Timing out",
};

export function troubleText(trouble: Trouble): string {
  const parts = TROUBLES.filter(([kind]) => trouble[kind]).map(([kind, words]) => words(trouble[kind]));
  const text = parts.join(", ");
  return text && `${text[0]?.toUpperCase() ?? ""}${text.slice(1)}.`;
}

export function missingText(missing: MissingNode[]): string {
  const names = missing.map((node) => node.address).join(", ");
  const stranded = missing.reduce((sum, node) => sum + (node.stranded ?? 0), 0);
  const lost = stranded ? `, with ${plural(stranded, "message")} when last seen` : "";
  return `${plural(missing.length, "nsqd is", "nsqds are")} missing${lost}: ${names}.`;
}

/** The messages on a missing nsqd. */
export function strandedText(node: MissingNode): string {
  if (node.stranded === null) return "It has never answered, so its messages are unknown.";
  if (!node.stranded) return "It had no messages when it last answered.";
  return `It had ${plural(node.stranded, "message")} when it last answered.`;
}

export function clusterHealth(head: Head, message: string): Health {
  const trouble = troubleText(head.trouble);
  if (head.missing.length) {
    return { tone: "warn", word: "Degraded", text: [missingText(head.missing), trouble].filter(Boolean).join(" ") };
  }
  if (message) return { tone: "warn", word: "Degraded", text: message };
  if (trouble) return { tone: "warn", word: "Trouble", text: trouble };
  return { tone: "ok", word: "Healthy", text: `${plural(head.nodes, "nsqd answers", "nsqds answer")}.` };
}
