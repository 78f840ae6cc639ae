/** The names and explanations of the operations, for the dialogs. */

import type { OperationRequest } from "../state/operations.svelte";
import { plural } from "./format";

export const VERBS: Record<OperationRequest["name"], { title: string; button: string; done: string }> = {
  pause: { title: "Pause", button: "Pause", done: "Paused" },
  unpause: { title: "Resume", button: "Resume", done: "Resumed" },
  empty: { title: "Empty", button: "Empty", done: "Emptied" },
  delete: { title: "Delete", button: "Delete", done: "Deleted" },
  tombstone: { title: "Remove from this node", button: "Tombstone and delete", done: "Removed" },
};

/** True if the operation destroys messages; then the name must be typed. */
export function destroys(request: OperationRequest): boolean {
  return request.name === "empty" || request.name === "delete" || request.name === "tombstone";
}

export function subjectOf(request: OperationRequest): string {
  return request.channel ?? request.topic;
}

export function explain(request: OperationRequest): string {
  const waiting = request.waiting ? ` (now ${plural(request.waiting, "message")})` : "";
  if (request.channel) {
    switch (request.name) {
      case "pause":
        return "Its consumers get no more messages. New messages wait in the channel until it is resumed.";
      case "unpause":
        return "Its consumers get messages again.";
      case "empty":
        return `The messages in the channel${waiting} are deleted. This cannot be undone.`;
      default:
        return `The channel and the messages in it${waiting} are deleted, and its consumers are disconnected. This cannot be undone.`;
    }
  }
  switch (request.name) {
    case "pause":
      return "New messages wait in the topic. Its channels get no messages until it is resumed.";
    case "unpause":
      return "Its channels get messages again.";
    case "empty":
      return `The messages in the topic itself${waiting} are deleted; its channels keep theirs. This cannot be undone.`;
    case "delete":
      return `The topic, all its channels and every message in them${waiting} are deleted. This cannot be undone.`;
    default:
      return "nsqlookupd hides the topic on this node from consumers; then the topic and its messages are deleted there. A client that still publishes to this node creates the topic again.";
  }
}
