/** The state of the cluster and of the connection to nsqadmin; every stream and every request reports here. */

import { api } from "../lib/address";
import { plain } from "../lib/plain";
import { get, RequestFailed } from "../lib/request";
import type { Head, MissingNode } from "../lib/types";

export type Link = "idle" | "connecting" | "live" | "lost";

class ClusterStatus {
  link = $state<Link>("idle");
  head = $state.raw<Head | null>(null);
  /** The failures in an answer outside of the streams. */
  warning = $state("");
  nowS = $state(Date.now() / 1000);

  constructor() {
    setInterval(() => (this.nowS = Date.now() / 1000), 1000);
  }

  get missing(): MissingNode[] {
    return this.head?.missing ?? [];
  }

  get message(): string {
    return plain((this.head?.message || this.warning).replace(/^WARNING: /, ""));
  }

  /** Removes a missing nsqd now; the next poll may be seconds away. */
  forget(address: string): void {
    if (this.head) this.head = { ...this.head, missing: this.missing.filter((each) => each.address !== address) };
  }

  /** Handles an event of a stream. */
  update(head: Head): void {
    this.link = "live";
    this.#take(head);
  }

  /** Requests the state, for views without a stream. */
  async check(): Promise<void> {
    try {
      this.#take(await get<Head>(api("health")));
      if (this.link === "lost") this.link = "idle";
    } catch (error) {
      if (this.link === "idle" && error instanceof RequestFailed && error.status === 0) this.link = "lost";
    }
  }

  #take(head: Head): void {
    this.head = head;
    this.nowS = Date.now() / 1000;
  }
}

export const clusterStatus = new ClusterStatus();
