/** One topic or channel: its rows, its history, and NSQ's own answer about it, updated while it is shown. */

import { api } from "../lib/address";
import { EventStream } from "../lib/events";
import { plain } from "../lib/plain";
import { get, reason, RequestFailed } from "../lib/request";
import type { ChannelRow, ChannelStats, History, HistoryEvent, SubjectEvent, TopicRow, TopicStats } from "../lib/types";
import { clusterStatus } from "./cluster_status.svelte";
import { session } from "./session.svelte";

const NO_HISTORY_REFRESH_MS = 5_000;

export interface Points {
  times_s: number[];
  series: Record<string, (number | null)[]>;
  events: HistoryEvent[];
}

const NO_POINTS: Points = { times_s: [], series: {}, events: [] };

export class Subject<Detail extends TopicStats | ChannelStats> {
  row = $state.raw<TopicRow | ChannelRow | null>(null);
  channels = $state.raw<ChannelRow[]>([]);
  detail = $state.raw<Detail | null>(null);
  points = $state.raw<Points>(NO_POINTS);
  isLoaded = $state(false);
  /** True if no answering nsqd has it; the row holds what is known of it. */
  isGone = $state(false);
  problem = $state("");
  #stream: EventStream | null = null;
  #timer: ReturnType<typeof setInterval> | undefined;
  #hasHistory = false;
  #spanS = 900;
  /** The time of the coarsest points that are shown; 0 if all are polls. */
  #stepS = 0;
  #added = 0;

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

  /** Chooses the time that the points cover. */
  show(spanS: number): void {
    if (this.#spanS === spanS) return;
    this.#spanS = spanS;
    if (this.#hasHistory) void this.#loadHistory();
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
    this.problem = upstream && this.row !== null ? plain(detail.message.replace("UPSTREAM_ERROR: ", "")) : "";
    if (!session.hasHistory) clusterStatus.warning = detail.message;
  }

  async #loadHistory(): Promise<void> {
    this.#hasHistory = true;
    if (this.row === null) return; // the first poll that finds it adds the first point
    const parts = this.channel ? [this.topic, this.channel] : [this.topic];
    const spanS = this.#spanS;
    try {
      const address = `${api("history", "topics", ...parts)}?span=${spanS}`;
      const { times_s, series, events = [], step_s = 0 } = await get<History>(address);
      if (spanS !== this.#spanS) return;
      this.points = { times_s, series, events };
      this.#stepS = step_s;
    } catch {
      // The graphs start with the next poll.
      this.points = NO_POINTS;
    }
    this.#added = 0;
  }

  #addPoint(event: SubjectEvent): void {
    if (!this.#hasHistory || event.time_s === null) return;
    const { times_s, series, events } = this.points;
    if ((times_s.at(-1) ?? 0) >= event.time_s) return;
    this.#added += 1;
    // Polls have become a point, so that there are never many more points than a graph can show.
    if (this.#stepS && this.#added * event.interval_s > Math.max(this.#stepS, LEAST_RELOAD_S)) void this.#loadHistory();
    const since = event.time_s - this.#spanS;
    const first = times_s.findIndex((timeS) => timeS >= since);
    const dropped = Math.max(0, first - 1);
    // No nsqd answered, so nothing was measured: add a gap, not a zero.
    const values = this.row?.nodes ? (this.row as unknown as Record<string, number>) : null;
    const names = new Set([...Object.keys(series), ...SERIES, ...(this.channel ? [] : ["channels_depth"])]);
    const next: Record<string, (number | null)[]> = {};
    for (const name of names) {
      const before = series[name] ?? new Array<null>(times_s.length).fill(null);
      next[name] = [...before.slice(dropped), values?.[name] ?? null];
    }
    this.points = { times_s: [...times_s.slice(dropped), event.time_s], series: next, events };
  }
}

const LEAST_RELOAD_S = 60;
const SERIES = ["rate", "depth", "in_flight", "deferred", "requeued", "timed_out", "clients", "missing_nodes"];
