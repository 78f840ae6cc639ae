/** The answers of nsqadmin's API about logs, stored messages and dead letters. Times in nanoseconds are text. */

import type { Outcome, TailMessage } from "./types";

/** Numbers that the nsqd does not report are null. Offsets are message numbers. */
export interface LogNumbers {
  store: string;
  durability: string;
  id: string;
  first: number;
  stable: number;
  end: number;
  bytes: number;
  segments: number;
  deferred_count: number;
  kept_bytes: number | null;
  dropped: number | null;
  expired: number | null;
  duplicates: number | null;
  first_time: string | null;
  bytes_per_message: number | null;
}

export interface ChannelPlace {
  channel: string;
  depth: number;
  in_flight_count: number;
  deferred_count: number;
  floor: number;
  next: number;
  holes: number;
  dropped: number | null;
  expired: number | null;
  dead: number | null;
  oldest_ns: string | null;
}

export type SettingValue = string | number | null;

export interface NodeConfig {
  code: string;
  error: string;
  settings: Record<string, string | number>;
  /** The settings that were set over HTTP. */
  changed: string[];
}

export interface NodeLog {
  node: string;
  code: string;
  error: string;
  /** Null if the topic has no log on this node. */
  log: LogNumbers | null;
  channels: ChannelPlace[];
  config: NodeConfig;
}

export interface TopicLogs {
  topic: string;
  nodes: NodeLog[];
  message: string;
}

/** The result on one node; `result` is null after a failure. */
export interface NodeOutcome<Result> extends Outcome {
  code: string;
  result: Result | null;
}

export interface SeekEffect {
  from: number;
  to: number;
  depth_before: number;
  depth: number;
  in_flight: number;
  forgotten: number;
}

export interface TrimEffect {
  before: number;
  first: number;
  dropped: Record<string, number>;
  dropped_from_topic: number | null;
  bytes: number;
}

export interface LetterEffect {
  redriven?: number;
  purged?: number;
  left: number;
}

export interface Origin {
  topic: string;
  channel: string;
  offset: number | null;
  id: string;
  timestamp_ns: string;
  attempts: number | null;
  reason: string;
  consumer: string;
  time_ns: string;
}

export interface StoredMessage extends TailMessage {
  offset: number | null;
  state: "" | "waiting" | "in_flight" | "deferred";
  due_ns: string | null;
  origin: Origin | null;
}

/** The end of a page on one node. */
export interface PageNode {
  node: string;
  code: string;
  error: string;
  next: number | null;
  complete: boolean;
}

export interface BrowsedNode extends PageNode {
  store: string;
  end: number | null;
  scanned: number;
}

export interface LetterNode extends PageNode {
  dead_letter: string;
  count: number;
}

export interface MessagePage<Node extends PageNode> {
  nodes: Node[];
  messages: StoredMessage[];
  message: string;
}

export interface DeadLetterPage extends MessagePage<LetterNode> {
  count: number;
}
