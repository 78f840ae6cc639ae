/** A list of the API with the search, filter and order of the address, requested again with every poll. */

import { api } from "../lib/address";
import { get, reason, RequestFailed } from "../lib/request";
import { clusterStatus } from "./cluster_status.svelte";
import { session } from "./session.svelte";

const PAGE = 100;
const MAX = 1000;
const PAUSE_MS = 150;

export class ListAnswer<T extends { found: number; total: number; message?: string }> {
  data = $state.raw<T | null>(null);
  problem = $state("");
  status = $state(0);
  limit = $state(PAGE);
  #query: Record<string, string> = {};
  #timer: ReturnType<typeof setInterval>;
  #pause: ReturnType<typeof setTimeout> | undefined;
  #number = 0;

  constructor(private readonly kind: "channels" | "consumers") {
    const everyMs = Math.max(1, session.settings?.poll_interval_s || 5) * 1000;
    this.#timer = setInterval(() => {
      if (!document.hidden) void this.refresh();
    }, everyMs);
  }

  close(): void {
    clearInterval(this.#timer);
    clearTimeout(this.#pause);
    clusterStatus.warning = "";
  }

  get canShowMore(): boolean {
    return this.limit < MAX;
  }

  more(): void {
    this.limit = Math.min(MAX, this.limit + PAGE);
    void this.refresh();
  }

  /** Asks with the choices of the address; a search that is being typed waits for a moment. */
  ask(query: Record<string, string>): void {
    const isTyping = this.data !== null && query["q"] !== this.#query["q"];
    this.#query = query;
    clearTimeout(this.#pause);
    if (isTyping) this.#pause = setTimeout(() => void this.refresh(), PAUSE_MS);
    else void this.refresh();
  }

  async refresh(): Promise<void> {
    const number = ++this.#number;
    const { q = "", filter = "", sort = "" } = this.#query;
    const query = new URLSearchParams({ q, filter, sort, limit: String(this.limit) });
    try {
      const data = await get<T>(`${api("overview", this.kind)}?${query.toString()}`);
      if (number !== this.#number) return;
      this.data = data;
      this.problem = "";
      this.status = 200;
      clusterStatus.warning = data.message ?? "";
    } catch (error) {
      if (number !== this.#number) return;
      this.problem = reason(error);
      this.status = error instanceof RequestFailed ? error.status : 0;
    }
  }
}
