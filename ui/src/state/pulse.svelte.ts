/** How the cluster and the connection to nsqadmin are; every stream and every answer reports here. */

import { api } from "../lib/address";
import { get, RequestFailed } from "../lib/request";
import type { Head, MissingNode } from "../lib/types";

export type Link = "idle" | "connecting" | "live" | "lost";

class Pulse {
  link = $state<Link>("idle");
  head = $state.raw<Head | null>(null);
  /** What an answer outside of the streams could not ask. */
  warning = $state("");
  nowS = $state(Date.now() / 1000);

  constructor() {
    setInterval(() => (this.nowS = Date.now() / 1000), 1000);
  }

  get missing(): MissingNode[] {
    return this.head?.missing ?? [];
  }

  get message(): string {
    return (this.head?.message || this.warning).replace(/^WARNING: /, "");
  }

  /** Do not show an nsqd as missing any longer; the next poll may be seconds away. */
  forget(address: string): void {
    if (this.head) this.head = { ...this.head, missing: this.missing.filter((each) => each.address !== address) };
  }

  /** A stream has brought news. */
  beat(head: Head): void {
    this.link = "live";
    this.#take(head);
  }

  /** Ask, for views that follow no stream. */
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

export const pulse = new Pulse();
