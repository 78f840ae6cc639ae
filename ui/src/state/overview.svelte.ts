/**
 * The rows of all topics, updated by a stream of changes while a view needs them.
 *
 * A cluster can have thousands of topics, so the rows are plain objects in a plain map; views depend on `version`.
 */

import { api } from "../lib/address";
import { EventStream } from "../lib/events";
import { get, reason } from "../lib/request";
import type { Head, Overview, OverviewDelta, TopicRow } from "../lib/types";
import { clusterStatus } from "./cluster_status.svelte";
import { session } from "./session.svelte";

const SPARKLINE_POINTS = 30;
const NAMES_REFRESH_MS = 15_000;

class OverviewState {
  version = $state(0);
  isLoaded = $state(false);
  problem = $state("");
  rows = new Map<string, TopicRow>();
  #viewers = 0;
  #stream: EventStream | null = null;
  #timer: ReturnType<typeof setInterval> | undefined;

  /** Keeps the rows up to date until the returned function is called. */
  watch(): () => void {
    this.#viewers += 1;
    if (this.#viewers === 1) this.#start();
    return () => {
      this.#viewers -= 1;
      if (this.#viewers === 0) this.#stop();
    };
  }

  /** Removes a deleted topic now; the next poll may be seconds away. */
  forget(topic: string): void {
    if (this.rows.delete(topic)) this.version += 1;
  }

  /** Reloads the rows after a change. With history the next poll does this. */
  refresh(): void {
    if (!session.hasHistory) void this.#loadNames();
  }

  #start(): void {
    if (!session.hasHistory) {
      void this.#loadNames();
      this.#timer = setInterval(() => void this.#loadNames(), NAMES_REFRESH_MS);
      return;
    }
    clusterStatus.link = "connecting";
    this.#stream = new EventStream(api("stream"), {
      events: {
        snapshot: (data) => this.#snapshot(JSON.parse(data) as Overview),
        delta: (data) => this.#delta(JSON.parse(data) as OverviewDelta),
      },
      lost: () => {
        clusterStatus.link = "lost";
        session.expired();
      },
    });
  }

  #stop(): void {
    clearInterval(this.#timer);
    this.#stream?.close();
    this.#stream = null;
    clusterStatus.link = "idle";
  }

  /** Loads the names of the topics; without history nsqadmin has no numbers for them. */
  async #loadNames(): Promise<void> {
    try {
      const answer = await get<{ topics: string[] | null; message: string }>(api("topics"));
      this.rows = new Map((answer.topics ?? []).map((name) => [name, { name } as TopicRow]));
      clusterStatus.warning = answer.message;
      this.problem = "";
    } catch (error) {
      this.problem = reason(error);
    }
    this.isLoaded = true;
    this.version += 1;
  }

  #snapshot(overview: Overview): void {
    this.rows = new Map(overview.topics.map((row) => [row.name, row]));
    this.#noted(overview);
  }

  #delta(delta: OverviewDelta): void {
    for (const name of delta.removed) this.rows.delete(name);
    for (const row of delta.topics) {
      const before = this.rows.get(row.name);
      row.sparkline = before?.sparkline ?? [];
      this.rows.set(row.name, row);
    }
    // A point of a sparkline covers two polls.
    if (delta.number % 2 === 0) {
      for (const row of this.rows.values()) {
        row.sparkline = [...(row.sparkline ?? []), row.rate].slice(-SPARKLINE_POINTS);
      }
    }
    this.#noted(delta);
  }

  #noted(head: Head): void {
    clusterStatus.update(head);
    // Before the first poll the topics are unknown, which differs from having none.
    if (head.number >= 0) this.isLoaded = true;
    this.version += 1;
  }
}

export const overview = new OverviewState();
