/** The list of topics: its columns, filters and sort order. */

import { ageS, ageText, drainOrder, drainText, matters, perMinute, waiting } from "./backlog";
import { count, rate, short } from "./format";
import type { TopicRow } from "./types";

export interface Column {
  key: string;
  label: string;
  title: string;
  /** What the column is sorted by; NaN is unknown. */
  value: (row: TopicRow, nowS: number) => number;
  show: (row: TopicRow, nowS: number) => string;
  /** The suffix of the number on a phone, where the columns have no headings. */
  unit?: string;
  /** The column is shown if the window is at least so wide. */
  from: number;
}

export const COLUMNS: Column[] = [
  {
    key: "rate",
    label: "In/s",
    title: "Messages published per second",
    value: (row) => row.rate,
    show: (row) => rate(row.rate),
    unit: " in/s",
    from: 0,
  },
  {
    key: "rate_out",
    label: "Out/s",
    title: "Messages that left its channels per second",
    value: (row) => row.rate_out,
    show: (row) => rate(row.rate_out),
    from: 0,
  },
  {
    key: "channels_depth",
    label: "Waiting",
    title: "Messages waiting in its channels, and in the topic itself",
    value: waiting,
    show: (row) => short(waiting(row)),
    unit: " waiting",
    from: 0,
  },
  {
    key: "oldest",
    label: "Oldest",
    title: "Age of the oldest message that waits or is in flight; Go's nsqd does not report it",
    value: (row, nowS) => ageS(row, nowS) ?? -1,
    show: ageText,
    from: 0,
  },
  {
    key: "drain",
    label: "Drains in",
    title: "Estimated time until the backlog is gone, at the rates of the last half minute",
    value: drainOrder,
    show: drainText,
    from: 0,
  },
  {
    key: "timed_out",
    label: "Timeouts/min",
    title: "Messages that timed out in the last minute",
    value: (row) => row.timed_out_per_min,
    show: (row) => perMinute(row.timed_out_per_min),
    from: 1000,
  },
  {
    key: "requeued",
    label: "Requeues/min",
    title: "Messages that consumers put back in the last minute",
    value: (row) => row.requeued_per_min,
    show: (row) => perMinute(row.requeued_per_min),
    from: 1200,
  },
  {
    key: "in_flight",
    label: "In flight",
    title: "Messages sent to consumers and not yet finished",
    value: (row) => row.in_flight,
    show: (row) => short(row.in_flight),
    from: 1000,
  },
  {
    key: "clients",
    label: "Clients",
    title: "Connected consumers",
    value: (row) => row.clients,
    show: (row) => count(row.clients),
    unit: " clients",
    from: 0,
  },
  {
    key: "depth",
    label: "In topic",
    title: "Messages waiting in the topic itself, because it is paused or has no channel",
    value: (row) => row.depth,
    show: (row) => short(row.depth),
    from: 1500,
  },
  {
    key: "deferred",
    label: "Deferred",
    title: "Messages with a delay that has not passed",
    value: (row) => row.deferred,
    show: (row) => short(row.deferred),
    from: 1500,
  },
  {
    key: "channels",
    label: "Channels",
    title: "Channels",
    value: (row) => row.channels,
    show: (row) => count(row.channels),
    from: 1500,
  },
  {
    key: "nodes",
    label: "Nodes",
    title: "nsqds that have the topic",
    value: (row) => row.nodes,
    show: (row) => count(row.nodes),
    from: 1500,
  },
];

export const FILTERS: Record<string, { label: string; title?: string; test: (row: TopicRow) => boolean }> = {
  "": { label: "All", test: () => true },
  busy: { label: "Busy", test: (row) => row.rate > 0 || row.rate_out > 0 },
  backlog: {
    label: "Backlog",
    title: "A message has waited for a minute, or the backlog grows",
    test: (row) => row.backlog,
  },
  unread: { label: "No consumer", test: (row) => row.clients === 0 },
  paused: { label: "Paused", test: (row) => row.paused },
  trouble: { label: "Trouble", test: (row) => row.trouble.length + row.missing_nodes > 0 },
};

/** The default order: topics that need attention first. */
export const MATTERS = "matters";

/** Filters and sorts rows. `sort` is the key of a column, with a minus for descending; equal rows are sorted by name. */
export function arrange(rows: Iterable<TopicRow>, search: string, filter: string, sort: string, hasNumbers = true): TopicRow[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const test = FILTERS[filter]?.test ?? (() => true);
  const found: TopicRow[] = [];
  for (const row of rows) {
    const name = row.name.toLowerCase();
    if (test(row) && words.every((word) => name.includes(word))) found.push(row);
  }
  const byName = (a: TopicRow, b: TopicRow) => (a.name < b.name ? -1 : 1);
  if (sort === MATTERS && hasNumbers) return found.sort((a, b) => matters(b) - matters(a) || byName(a, b));
  const column = COLUMNS.find((each) => each.key === sort.replace("-", ""));
  const sign = sort.startsWith("-") ? -1 : 1;
  if (!column) return found.sort((a, b) => byName(a, b) * (sort === "-name" ? -1 : 1));
  const now = Date.now() / 1000;
  const value = (row: TopicRow) => {
    const number = column.value(row, now);
    return Number.isNaN(number) ? -0.5 : number; // unknown: more than nothing
  };
  return found.sort((a, b) => compare(value(a), value(b)) * sign || byName(a, b));
}

function compare(a: number, b: number): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
