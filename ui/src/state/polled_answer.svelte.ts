/** An answer of the API that is requested again every few seconds while it is shown. */

import { get, reason, RequestFailed } from "../lib/request";
import { clusterStatus } from "./cluster_status.svelte";

const REFRESH_MS = 5_000;

export class PolledAnswer<T extends { message?: string }> {
  data = $state.raw<T | null>(null);
  problem = $state("");
  status = $state(0);
  #timer: ReturnType<typeof setInterval>;
  #asking = false;

  constructor(
    private readonly address: string,
    everyMs = REFRESH_MS,
  ) {
    this.#timer = setInterval(() => {
      if (!document.hidden) void this.refresh();
    }, everyMs);
    void this.refresh();
  }

  close(): void {
    clearInterval(this.#timer);
    clusterStatus.warning = "";
  }

  async refresh(): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    try {
      this.data = await get<T>(this.address);
      if (this.data.message !== undefined) clusterStatus.warning = this.data.message;
      this.problem = "";
      this.status = 200;
    } catch (error) {
      this.problem = reason(error);
      this.status = error instanceof RequestFailed ? error.status : 0;
    }
    this.#asking = false;
  }
}
