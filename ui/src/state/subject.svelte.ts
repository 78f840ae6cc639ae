/** One topic or channel: its rows, its history, and NSQ's own answer about it, updated while it is shown. */

import { api } from "../lib/address";
import { EventStream } from "../lib/events";
import { get, reason, RequestFailed } from "../lib/request";
import type { ChannelRow, ChannelStats, History, SubjectEvent, TopicRow, TopicStats } from "../lib/types";
import { clusterStatus } from "./cluster_status.svelte";
import { session } from "./session.svelte";

const NO_HISTORY_REFRESH_MS = 5_000;

export interface Points {
  times_s: number[];
  series: Record<string, (number | null)[]>;
}

export class Subject<Detail extends TopicStats | ChannelStats> {
  row = $state.raw<TopicRow | ChannelRow | null>(null);
  channels = $state.raw<ChannelRow[]>([]);
  detail = $state.raw<Detail | null>(null);
  points = $state.raw<Points>({ times_s: [], series: {} });
  isLoaded = $state(false);
  /** True if no answering nsqd has it; the row holds what is known of it. */
  isGone = $state(false);
  problem = $state("");
  #stream: EventStream | null = null;
  #timer: ReturnType<typeof setInterval> | undefined;
  #hasHistory = false;

  constructor(
    readonly topic: string,
    readonly channel = "",
  ) {
    if (session.hasHistory) this.#follow();
    else {
      void this.refresh();
      this.#timer = setInterval(() => void this.refresh(), NO_HISTORY_REFRESH_MS);
    }
  }

  close(): void {
    clearInterval(this.#timer);
    this.#stream?.close();
    if (this.#stream) clusterStatus.link = "idle";
  }

  /** Reloads after a change. */
  async refresh(): Promise<void> {
    try {
      this.#takeDetail(await get(this.channel ? api("topics", this.topic, this.channel) : api("topics", this.topic)));
      this.problem = "";
    } catch (error) {
      if (error instanceof RequestFailed && error.status === 502 && /TOPIC_NOT_FOUND/.test(error.code))
        this.isGone = true;
      else this.problem = reason(error);
    }
    this.isLoaded = true;
  }

  #follow(): void {
    const query = new URLSearchParams({ topics: this.topic, channel: this.channel });
    clusterStatus.link = "connecting";
    this.#stream = new EventStream(`${api("stream")}?${query.toString()}`, {
      events: {
        // After a lost connection the history has a gap, so it is requested again.
        snapshot: (data) => {
          this.#takeRow(JSON.parse(data) as SubjectEvent);
          void this.#loadHistory();
        },
        delta: (data) => {
          const event = JSON.parse(data) as SubjectEvent;
          this.#takeRow(event);
          this.#addPoint(event);
        },
        detail: (data) => this.#takeDetail(JSON.parse(data) as Detail & { message: string }),
      },
      lost: () => {
        clusterStatus.link = "lost";
        session.expired();
      },
    });
  }

  #takeRow(event: SubjectEvent): void {
    clusterStatus.update(event);
    this.row = this.channel ? (event.channel ?? null) : event.topic;
    this.channels = event.channels ?? [];
    if (event.number >= 0) {
      this.isLoaded = true;
      this.isGone = !this.row?.nodes;
    }
  }

  #takeDetail(detail: Detail & { message: string }): void {
    const isAnswer = "nodes" in detail;
    if (isAnswer) {
      this.detail = detail;
      this.isLoaded = true;
      if (!session.hasHistory) this.isGone = !detail.nodes?.length;
    }
    const upstream = detail.message.startsWith("UPSTREAM_ERROR");
    this.problem = upstream && this.row !== null ? detail.message.replace("UPSTREAM_ERROR: ", "") : "";
    if (!session.hasHistory) clusterStatus.warning = detail.message;
  }

  async #loadHistory(): Promise<void> {
    this.#hasHistory = true;
    if (this.row === null) return; // the first poll that finds it adds the first point
    const parts = this.channel ? [this.topic, this.channel] : [this.topic];
    try {
      const history = await get<History>(api("history", "topics", ...parts));
      this.points = { times_s: history.times_s, series: history.series };
    } catch {
      // The graphs start with the next poll.
      this.points = { times_s: [], series: {} };
    }
  }

  #addPoint(event: SubjectEvent): void {
    if (!this.#hasHistory || event.time_s === null) return;
    const { times_s, series } = this.points;
    if ((times_s.at(-1) ?? 0) >= event.time_s) return;
    const kept = Math.ceil((session.settings?.history_window_s ?? 3600) / event.interval_s);
    // No nsqd answered, so nothing was measured: add a gap, not a zero.
    const values = this.row?.nodes ? (this.row as unknown as Record<string, number>) : null;
    const names = new Set([...Object.keys(series), ...SERIES, ...(this.channel ? [] : ["channels_depth"])]);
    const next: Record<string, (number | null)[]> = {};
    for (const name of names) {
      const before = series[name] ?? new Array<null>(times_s.length).fill(null);
      next[name] = [...before, values?.[name] ?? null].slice(-kept);
    }
    this.points = { times_s: [...times_s, event.time_s].slice(-kept), series: next };
  }
}

const SERIES = ["rate", "depth", "in_flight", "deferred", "requeued", "timed_out", "clients", "missing_nodes"];
