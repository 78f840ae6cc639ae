/** What each operation is called and what it does, in the words of the dialogs. */

import type { Wish } from "../state/operations.svelte";
import { plural } from "./format";

export const VERBS: Record<Wish["name"], { title: string; button: string; done: string }> = {
  pause: { title: "Pause", button: "Pause", done: "Paused" },
  unpause: { title: "Resume", button: "Resume", done: "Resumed" },
  empty: { title: "Empty", button: "Empty", done: "Emptied" },
  delete: { title: "Delete", button: "Delete", done: "Deleted" },
  tombstone: { title: "Remove from this node", button: "Tombstone and delete", done: "Removed" },
};

/** Whether it destroys messages, and so needs the name typed in. */
export function destroys(wish: Wish): boolean {
  return wish.name === "empty" || wish.name === "delete" || wish.name === "tombstone";
}

export function subjectOf(wish: Wish): string {
  return wish.channel ?? wish.topic;
}

export function explain(wish: Wish): string {
  const waiting = wish.waiting ? ` (now ${plural(wish.waiting, "message")})` : "";
  if (wish.channel) {
    switch (wish.name) {
      case "pause":
        return "Its consumers get no more messages. New ones wait in the channel until it is resumed.";
      case "unpause":
        return "Its consumers get messages again.";
      case "empty":
        return `What waits in the channel${waiting} is thrown away. This cannot be undone.`;
      default:
        return `The channel goes away with what waits in it${waiting}, and its consumers are disconnected. This cannot be undone.`;
    }
  }
  switch (wish.name) {
    case "pause":
      return "New messages wait in the topic. Its channels get none until it is resumed.";
    case "unpause":
      return "Messages flow into its channels again.";
    case "empty":
      return `What waits in the topic itself${waiting} is thrown away; its channels keep theirs. This cannot be undone.`;
    case "delete":
      return `The topic goes away with all its channels and every message in them${waiting}. This cannot be undone.`;
    default:
      return "Consumers are kept away from the topic on this node, then it is deleted there with its messages. If somebody still publishes to it there, it comes back.";
  }
}
