/** What a backlog does, in words: its age, and the time until it is gone. */

import { nanoseconds, short } from "./format";
import type { ChannelRow, TopicRow } from "./types";

type BacklogRow = Pick<TopicRow, "depth" | "oldest_at_s" | "drain" | "drain_s"> & { channels_depth?: number };

export const UNKNOWN = "unknown";

/** The messages that wait, in a topic and its channels. */
export function waiting(row: Pick<TopicRow, "depth"> & { channels_depth?: number }): number {
  return row.depth + (row.channels_depth ?? 0);
}

/** The age of the oldest message in seconds; null if there is none, NaN if it is unknown, as with Go's nsqd. */
export function ageS(row: BacklogRow, nowS: number): number | null {
  if (row.oldest_at_s !== null && row.oldest_at_s !== undefined) return Math.max(0, nowS - row.oldest_at_s);
  return waiting(row) > 0 ? NaN : null;
}

export function ageText(row: BacklogRow, nowS: number): string {
  const age = ageS(row, nowS);
  if (age === null) return "–";
  return Number.isNaN(age) ? UNKNOWN : about(age);
}

export function drainText(row: BacklogRow): string {
  if (row.drain === "growing") return "growing";
  if (row.drain === "steady") return "not shrinking";
  return row.drain_s === null || row.drain_s === undefined ? "–" : about(row.drain_s);
}

/** A duration in one unit, for a narrow column. */
export function about(span: number): string {
  if (span < 1) return "<1 s";
  if (span < 120) return `${Math.round(span)} s`;
  if (span < 7200) return `${Math.round(span / 60)} min`;
  if (span < 172_800) return `${Math.round(span / 3600)} h`;
  return `${Math.round(span / 86_400)} d`;
}

/** The number that drain times are sorted by: growing backlogs are the longest. */
export function drainOrder(row: BacklogRow): number {
  if (row.drain === "growing") return Infinity;
  if (row.drain === "steady") return Number.MAX_VALUE;
  return row.drain_s ?? -1;
}

/**
 * How much a topic needs attention: trouble first, then old and growing backlogs, then the deepest. Depths count by
 * their magnitude, so that rows do not change places with every poll.
 */
export function matters(row: TopicRow): number {
  const trouble = row.trouble.length || row.missing_nodes ? 4000 : 0;
  return trouble + (row.backlog ? 2000 : 0) + Math.floor(Math.log2(1 + waiting(row)));
}

/** A latency; 0 was not measured yet. */
export function latencyText(ns: number | undefined): string {
  return nanoseconds(ns || null);
}

/** A count of the last minute. */
export function perMinute(value: number | null | undefined): string {
  return short(value);
}

/** The percentiles that any of the channels has measured, the highest first. */
export function percentiles(rows: ChannelRow[]): string[] {
  const found = new Set(rows.flatMap((row) => Object.keys(row.latency_ns ?? {})));
  return [...found].sort((one, other) => Number(other) - Number(one));
}

/** 0.99 as p99. */
export function percentileName(quantile: string): string {
  return `p${+(Number(quantile) * 100).toFixed(3)}`;
}
