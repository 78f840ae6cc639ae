/** The texts about following a topic. All numbers are nsqadmin's counts. */

import { count, plural } from "./format";
import type { TailStatus } from "./types";

export interface Followed {
  status: TailStatus;
  /** The number of nodes that have the topic. */
  nodeCount: number;
}

/** One line with the numbers of messages received, searched and skipped. */
export function progress({ status, nodeCount }: Followed): string {
  const { contains, received, matched, dropped, missed, nodes } = status;
  if (!nodes.length && !received) return "Not following on any node. Following starts automatically when it is possible.";
  const where = `Following on ${count(nodes.length)} of ${plural(Math.max(nodeCount, nodes.length), "node")}`;
  const numbers = contains
    ? [`${count(received)} searched`, `${count(matched)} ${matched === 1 ? "contains" : "contain"} “${contains}”`]
    : [`${count(received)} received`];
  if (dropped) numbers.push(`${count(dropped)} skipped by the rate limit`);
  if (missed) numbers.push(`at least ${count(missed)} ${contains ? "not searched" : "not received"}`);
  return `${where}: ${numbers.join(", ")}.`;
}

/** The reason why no new messages arrive; empty if the topic is not paused. */
export function pauseWarning(status: TailStatus): string {
  if (!status.paused.length) return "";
  const everywhere = status.paused.length === status.nodes.length;
  const where = everywhere ? "" : ` on ${status.paused.join(", ")}`;
  return `The topic is paused${where}: new messages wait in the topic and appear here when it is resumed.`;
}

/** The notice that is shown while the topic is followed and no message is shown. */
export function emptyNotice(status: TailStatus | null): { title: string; text: string } {
  if (!status) return { title: "Connecting", text: "" };
  const { contains, received, matched, missed, nodes, problems } = status;
  const reasons = [...new Set(Object.values(problems))];
  if (!nodes.length && reasons.length) return { title: "The topic is not followed", text: reasons.join(" ") };
  if (contains && received && !matched) {
    const isComplete = !missed && !reasons.length;
    const searched = `${plural(received, "message was", "messages were")} searched since following started.`;
    const unsearched = missed ? ` At least ${plural(missed, "message")} could not be searched.` : "";
    return {
      title: isComplete ? "No message contains this text" : "No searched message contains this text",
      text: searched + unsearched,
    };
  }
  return {
    title: status.paused.length ? "The topic is paused" : "Waiting for messages",
    text: "Messages are copied through a temporary channel, which is deleted when you leave. Consumers still get every message.",
  };
}
