/** How the cluster is, in one line. "Healthy" is only said if no nsqd is missing and nothing is in trouble. */

import { plural } from "./format";
import type { Head, MissingNode, Trouble, TroubleKind } from "./types";

export interface Health {
  tone: "ok" | "warn" | "bad" | "";
  word: string;
  text: string;
}

const TROUBLES: [TroubleKind, (count: number) => string][] = [
  ["no_consumer", (count) => plural(count, "channel or topic has", "channels or topics have") + " messages and no consumer"],
  ["growing", (count) => plural(count, "backlog grows", "backlogs grow")],
  ["timing_out", (count) => `messages of ${plural(count, "channel")} time out`],
];

/** The short form of each kind, for pills. */
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

/** What is wrong with one missing nsqd. */
export function strandedText(node: MissingNode): string {
  if (node.stranded === null) return "What is on it is not known: it has never answered.";
  if (!node.stranded) return "No message was on it when it last answered.";
  return `${plural(node.stranded, "message was", "messages were")} on it when it last answered.`;
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
