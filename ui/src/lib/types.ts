/** The answers of nsqadmin's API, which docs/nsqadmin-api.md describes. */

export type Role = "nobody" | "view" | "consume" | "operate";

export interface Settings {
  version: string;
  nsqx_version: string;
  base_path: string;
  login: boolean;
  role: Role;
  may_consume: boolean;
  may_operate: boolean;
  user: string;
  /** The name of this cluster and all of them; empty if there is only one. */
  cluster: string;
  clusters: { name: string; path: string }[];
  poll_interval_s: number;
  history_window_s: number;
  /** The URL of the manual; empty if it is not known. */
  manual_url: string;
  messages: boolean;
  tail_max_per_s: number;
  nsqlookupd: string[];
}

export interface Totals {
  topics: number;
  channels: number;
  depth: number;
  channels_depth: number;
  in_flight: number;
  deferred: number;
  clients: number;
  message_count: number;
  channel_message_count: number;
  rate: number;
  rate_out: number;
  requeued: number;
  timed_out: number;
  requeued_per_min: number;
  timed_out_per_min: number;
  stranded: number;
}

export interface MissingNode {
  address: string;
  last_seen_s: number | null;
  reason: string;
  /** True if the cluster still lists it; then it cannot be forgotten. */
  listed: boolean;
  /** The address of an nsqd that is probably the same one, moved; empty if there is none. */
  maybe_at: string;
  /** The number of messages and topics at its last answer; null if it never answered. */
  stranded: number | null;
  topics: number | null;
}

export type TroubleKind = "no_consumer" | "growing" | "timing_out";

export interface Trouble extends Record<TroubleKind, number> {
  count: number;
  worst: { topic: string; channel: string; kinds: TroubleKind[]; depth: number }[];
}

export type Severity = "critical" | "warning" | "info";
export type Unit = "messages" | "seconds" | "share" | "";
export type AlertCounts = Record<Severity | "firing" | "pending", number>;

export interface Alert {
  rule: string;
  title: string;
  severity: Severity;
  state: "pending" | "firing" | "resolved";
  topic: string;
  channel: string;
  node: string;
  unit: Unit;
  value: number;
  threshold: number;
  /** The threshold while the alert fires. */
  resolve_threshold: number;
  since_s: number;
  fired_s: number | null;
  resolved_s: number | null;
  summary: string;
}

export interface AlertRule {
  rule: string;
  title: string;
  unit: Unit;
  threshold: number;
  /** The threshold while the alert fires. */
  resolve_threshold: number;
  for_s: number;
  keep_firing_for_s: number;
  window_s: number;
  severity: Severity;
  enabled: boolean;
}

export interface AlertsAnswer {
  counts: AlertCounts;
  alerts: Alert[];
  /** The number of further alerts. */
  omitted: number;
  resolved: Alert[];
  rules: AlertRule[];
  webhook: { waiting: number; problem: string } | null;
  message: string;
}

export interface StrandedTopic {
  topic: string;
  stranded: number;
  waiting: number;
  channels: Record<string, number>;
}

export interface KnownNode {
  address: string;
  is_missing: boolean;
  hostname: string;
  first_seen_s: number | null;
  last_seen_s: number | null;
  reason: string;
  stranded_topics: StrandedTopic[];
}

export interface Head {
  number: number;
  time_s: number | null;
  interval_s: number;
  nodes: number;
  totals: Partial<Totals>;
  trouble: Trouble;
  alerts: Partial<AlertCounts>;
  missing: MissingNode[];
  message: string;
}

interface Row {
  name: string;
  nodes: number;
  missing_nodes: number;
  /** Messages on missing nodes. */
  stranded: number;
  trouble: TroubleKind[];
  paused: boolean;
  depth: number;
  backend_depth: number;
  message_count: number;
  rate: number;
  /** Messages that left the channels per second. */
  rate_out: number;
  /** When the oldest waiting message was published; null without one, or if no nsqd reports it. */
  oldest_at_s: number | null;
  drain: "" | "draining" | "growing" | "steady";
  drain_s: number | null;
  /** True if a message waits for long, or if the backlog grows. */
  backlog: boolean;
  requeued_per_min: number;
  timed_out_per_min: number;
  in_flight: number;
  deferred: number;
  clients: number;
  requeue_count: number;
  requeued: number;
  timeout_count: number;
  timed_out: number;
}

export interface TopicRow extends Row {
  channels: number;
  channels_depth: number;
  channel_message_count: number;
  sparkline?: (number | null)[];
}

export interface ChannelRow extends Row {
  topic: string;
  /** Time from publish to finish on the slowest nsqd, by percentile. */
  latency_ns: Record<string, number>;
}

/** The head of a list over the whole cluster. */
interface ListHead {
  time_s: number | null;
  total: number;
  found: number;
}

export interface ChannelList extends ListHead {
  channels: ChannelRow[];
}

export interface ConsumerRow {
  topic: string;
  channel: string;
  client_id: string;
  hostname: string;
  user_agent: string;
  connections: number;
  nodes: string[];
  ready_count: number;
  in_flight_count: number;
  finish_count: number;
  requeue_count: number;
  message_count: number;
  finished_per_s: number | null;
  connected_at_s: number;
  paused: boolean;
  tls: boolean;
  remote_addresses: string[];
}

export interface ConsumerList extends ListHead {
  consumers: ConsumerRow[];
  message: string;
}

/** The numbers of an nsqd; null is what it does not report. */
export interface NodeNumbers {
  address: string;
  implementation: "nsqx" | "go";
  version: string;
  nsqx_version: string;
  health: string;
  start_s: number | null;
  memory_bytes: number | null;
  disk_free_bytes: number | null;
  disk_size_bytes: number | null;
  connections: number | null;
  answered_s: number;
  consumers: number;
  topics: number;
  channels: number;
  depth: number;
  rate: number;
  rate_out: number;
}

export interface Overview extends Head {
  sparkline_s: number;
  topics: TopicRow[];
}

export interface OverviewDelta extends Head {
  topics: TopicRow[];
  removed: string[];
}

export interface SubjectEvent extends Head {
  topic: TopicRow | null;
  channels?: ChannelRow[];
  channel?: ChannelRow | null;
}

export interface HistoryEvent {
  kind: "nsqd_started" | "nsqadmin_stopped";
  time_s: number;
  until_s: number;
  node: string;
}

export interface History {
  interval_s: number;
  /** The time of the coarsest points; 0 if all are polls. */
  step_s?: number;
  times_s: number[];
  series: Record<string, (number | null)[]>;
  events?: HistoryEvent[];
}

export interface Percentile {
  quantile: number;
  average?: number;
  min?: number;
  max?: number;
}

export interface Latency {
  count: number;
  percentiles: Percentile[] | null;
}

export interface Client {
  node: string;
  client_id: string;
  hostname: string;
  remote_address: string;
  version: string;
  user_agent: string;
  state: number;
  ready_count: number;
  in_flight_count: number;
  message_count: number;
  finish_count: number;
  requeue_count: number;
  connect_ts: number;
  connected: number;
  sample_rate: number;
  deflate: boolean;
  snappy: boolean;
  tls: boolean;
  authed?: boolean;
  auth_identity?: string;
  tls_version?: string;
  tls_cipher_suite?: string;
  topology_zone?: string;
  topology_region?: string;
}

/** The number of messages delivered by distance; only nsqds with a topology report it. */
interface Delivery {
  zone_local_msg_count?: number;
  region_local_msg_count?: number;
  global_msg_count?: number;
}

export interface ChannelStats extends Delivery {
  node: string;
  hostname: string;
  topic_name: string;
  channel_name: string;
  depth: number;
  memory_depth: number;
  backend_depth: number;
  in_flight_count: number;
  deferred_count: number;
  requeue_count: number;
  timeout_count: number;
  message_count: number;
  client_count: number;
  paused: boolean;
  nodes: ChannelStats[] | null;
  clients: Client[] | null;
  e2e_processing_latency: Latency | null;
  /** Only on one nsqd, and only if the topic has a log. */
  cursor?: { floor: number; next: number; holes: number };
}

/** The log of a topic on one nsqd. Offsets are message numbers. */
export interface TopicLog {
  store: string;
  durability: string;
  id: string;
  first: number;
  stable: number;
  end: number;
  bytes: number;
  segments: number;
  deferred_count: number;
  refused: Record<string, number>;
}

export interface TopicStats extends Delivery {
  node: string;
  hostname: string;
  topic_name: string;
  depth: number;
  memory_depth: number;
  backend_depth: number;
  message_count: number;
  paused: boolean;
  nodes: TopicStats[] | null;
  channels: ChannelStats[] | null;
  e2e_processing_latency: Latency | null;
  /** Only on one nsqd, and only if the topic has a log. */
  log?: TopicLog;
}

export interface NodeInfo {
  remote_addresses: string[] | null;
  hostname: string;
  broadcast_address: string;
  tcp_port: number;
  http_port: number;
  version: string;
  topology_zone?: string;
  topology_region?: string;
  topics: { topic: string; tombstoned: boolean }[] | null;
  out_of_date: boolean;
}

export interface NodeDetail {
  node: string;
  topics: TopicStats[] | null;
  total_messages: number;
  total_clients: number;
  message: string;
}

export interface Outcome {
  kind: "nsqd" | "nsqlookupd";
  address: string;
  error: string;
}

export type OperationName = "pause" | "unpause" | "empty" | "delete" | "create" | "tombstone";

export interface Operation {
  operation: OperationName;
  topic: string;
  channel?: string;
  node?: string;
}

export interface TailStatus {
  topic: string;
  channel: string;
  nodes: string[];
  /** The followed nodes on which the topic is paused. */
  paused: string[];
  problems: Record<string, string>;
  contains: string;
  received: number;
  matched: number;
  dropped: number;
  missed: number;
}

export interface TailMessage {
  node: string;
  id: string;
  timestamp_ns: string;
  /** Null if it is not known. */
  attempts: number | null;
  encoding: "text" | "base64";
  body: string;
  size: number;
  truncated: boolean;
  /** The text that nsqadmin found in the whole body; empty without a search. */
  foundBy?: string;
}

export interface AuditRecord {
  time: string;
  action: string;
  topic: string;
  channel: string;
  node: string;
  outcome: "done" | "partly" | "failed" | "refused";
  detail: string;
  user: string;
  basic_user: string;
  role: Role;
  remote: string;
}
