/** The messages of a topic as they are published, newest first; only the last few hundred are kept. */

import { api } from "../lib/address";
import type { TailMessage, TailStatus } from "../lib/types";

const MAX_KEPT = 300;

export interface TailChoice {
  rate: number;
  sample: number;
  limit: number;
  contains: string;
}

export class Tail {
  messages = $state.raw<TailMessage[]>([]);
  status = $state.raw<TailStatus | null>(null);
  isRunning = $state(false);
  problem = $state("");
  shownCount = $state(0);
  #source: EventSource | null = null;
  #arrived: TailMessage[] = [];
  #frame = 0;

  constructor(readonly topic: string) {}

  start(choice: TailChoice): void {
    this.stop();
    const query = new URLSearchParams(Object.entries(choice).map(([name, value]) => [name, String(value)]));
    const source = new EventSource(`${api("tail", this.topic)}?${query.toString()}`);
    this.#source = source;
    this.isRunning = true;
    this.problem = "";
    this.status = null;
    source.addEventListener(
      "status",
      (event) => (this.status = JSON.parse((event as MessageEvent<string>).data) as TailStatus),
    );
    source.addEventListener("message", (event) => {
      const message = JSON.parse((event as MessageEvent<string>).data) as TailMessage;
      this.#take({ ...message, foundBy: choice.contains });
    });
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) {
        this.problem = "The connection is lost. Reconnecting…";
        return;
      }
      this.stop();
      this.problem = "nsqadmin refused to follow the topic: too many topics are being followed, or you may not read messages.";
    };
    source.onopen = () => (this.problem = "");
  }

  stop(): void {
    this.#source?.close();
    this.#source = null;
    this.isRunning = false;
    cancelAnimationFrame(this.#frame);
    this.#flush();
  }

  clear(): void {
    this.messages = [];
    this.shownCount = 0;
  }

  /** Updates the page at most once per frame, however many messages arrive. */
  #take(message: TailMessage): void {
    this.#arrived.push(message);
    if (this.#arrived.length === 1) this.#frame = requestAnimationFrame(() => this.#flush());
  }

  #flush(): void {
    if (!this.#arrived.length) return;
    this.shownCount += this.#arrived.length;
    this.messages = [...this.#arrived.reverse(), ...this.messages].slice(0, MAX_KEPT);
    this.#arrived = [];
  }
}
