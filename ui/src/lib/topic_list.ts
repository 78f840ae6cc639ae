/** The list of topics: its columns, filters and sort order. */

import { count, rate, short } from "./format";
import type { TopicRow } from "./types";

export interface Column {
  key: string;
  label: string;
  title: string;
  value: (row: TopicRow) => number;
  format: (value: number) => string;
  /** The suffix of the number on a phone, where the columns have no headings. */
  unit?: string;
}

export const COLUMNS: Column[] = [
  {
    key: "rate",
    label: "Rate/s",
    title: "Messages published per second",
    value: (row) => row.rate,
    format: rate,
    unit: "/s",
  },
  {
    key: "depth",
    label: "Depth",
    title: "Messages waiting in the topic itself",
    value: (row) => row.depth,
    format: short,
  },
  {
    key: "channels_depth",
    label: "In channels",
    title: "Messages waiting in its channels",
    value: (row) => row.channels_depth,
    format: short,
    unit: " waiting",
  },
  {
    key: "in_flight",
    label: "In flight",
    title: "Messages sent to consumers and not yet finished",
    value: (row) => row.in_flight,
    format: short,
  },
  { key: "deferred", label: "Deferred", title: "Messages with a delay that has not passed", value: (row) => row.deferred, format: short },
  {
    key: "clients",
    label: "Clients",
    title: "Connected consumers",
    value: (row) => row.clients,
    format: count,
    unit: " clients",
  },
  { key: "channels", label: "Channels", title: "Channels", value: (row) => row.channels, format: count },
  { key: "nodes", label: "Nodes", title: "nsqds that have the topic", value: (row) => row.nodes, format: count },
];

export const FILTERS: Record<string, { label: string; test: (row: TopicRow) => boolean }> = {
  "": { label: "All", test: () => true },
  busy: { label: "Busy", test: (row) => row.rate > 0 },
  backlog: { label: "Backlog", test: (row) => row.depth + row.channels_depth > 0 },
  unread: { label: "No consumer", test: (row) => row.clients === 0 },
  paused: { label: "Paused", test: (row) => row.paused },
  trouble: { label: "Trouble", test: (row) => row.trouble.length + row.missing_nodes > 0 },
};

/** Filters and sorts rows. `sort` is the key of a column, with a minus for descending; equal rows are sorted by name. */
export function arrange(rows: Iterable<TopicRow>, search: string, filter: string, sort: string): TopicRow[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const test = FILTERS[filter]?.test ?? (() => true);
  const found: TopicRow[] = [];
  for (const row of rows) {
    const name = row.name.toLowerCase();
    if (test(row) && words.every((word) => name.includes(word))) found.push(row);
  }
  const column = COLUMNS.find((each) => each.key === sort.replace("-", ""));
  const sign = sort.startsWith("-") ? -1 : 1;
  const byName = (a: TopicRow, b: TopicRow) => (a.name < b.name ? -1 : 1);
  if (!column) return found.sort((a, b) => byName(a, b) * sign);
  return found.sort((a, b) => (column.value(a) - column.value(b)) * sign || byName(a, b));
}
