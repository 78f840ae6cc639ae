/** The settings of topics: their names, their forms in the dialog, and their texts. */

import { bytes } from "./format";
import type { NodeConfig, NodeLog, SettingValue } from "./log_types";

export interface SettingKind {
  name: string;
  label: string;
  /** What the value means, for the dialog. */
  hint: string;
  kind: "age" | "size" | "number" | "name" | "choice";
  choices?: Record<string, string>;
  /** The text of an age, size or number of 0, and of an empty name. */
  none?: string;
}

export const SETTINGS: SettingKind[] = [
  {
    name: "retain_age",
    label: "Keep finished messages for",
    hint: "Messages that every channel has finished can be replayed for this time, such as 72h.",
    kind: "age",
    none: "Not kept",
  },
  {
    name: "retain_bytes",
    label: "Keep finished messages up to",
    hint: "Finished messages are kept up to this size of the log, such as 10 GiB.",
    kind: "size",
    none: "Not kept",
  },
  {
    name: "max_age",
    label: "Drop messages older than",
    hint: "Older messages are dropped, even if a channel has not finished them.",
    kind: "age",
    none: "No limit",
  },
  {
    name: "max_bytes",
    label: "Largest size of the log",
    hint: "At this size the log is full.",
    kind: "size",
    none: "No limit",
  },
  {
    name: "when_full",
    label: "When the log is full",
    hint: "",
    kind: "choice",
    choices: { refuse: "Refuse new messages", "drop-oldest": "Drop the oldest messages" },
  },
  {
    name: "message_ttl",
    label: "Time to live of a message",
    hint: "Older messages are finished instead of delivered.",
    kind: "age",
    none: "No limit",
  },
  {
    name: "max_attempts",
    label: "Attempt limit",
    hint: "A message that fails this many attempts becomes a dead letter.",
    kind: "number",
    none: "No limit",
  },
  {
    name: "dead_letter",
    label: "Dead-letter topic",
    hint: "Gets the messages that reach the attempt limit. Empty: they are finished and counted.",
    kind: "name",
    none: "None",
  },
  {
    name: "durability",
    label: "A publish is acknowledged",
    hint: "",
    kind: "choice",
    choices: { fsync: "After the sync to disk", write: "After the write to the file" },
  },
  {
    name: "channel_start",
    label: "New channels begin at",
    hint: "",
    kind: "choice",
    choices: {
      auto: "New messages (the first channel: waiting messages)",
      beginning: "The beginning of the log",
      end: "The end of the log",
    },
  },
];

const UNITS: Record<string, number> = { "": 1, b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 };

/** 10 GiB as a number of bytes; null if the text is not a size. An empty text is 0. */
export function parseSize(text: string): number | null {
  const match = /^(\d+(?:\.\d+)?)?\s*([kmgt]ib|b)?$/i.exec(text.trim());
  if (!match || (!match[1] && match[2])) return null;
  const value = Math.round(Number(match[1] ?? 0) * (UNITS[(match[2] ?? "").toLowerCase()] ?? 1));
  return Number.isSafeInteger(value) ? value : null;
}

/** A size that `parseSize` reads back exactly. */
function exactSize(value: number): string {
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]] as const)
    if (value && value % size === 0) return `${value / size} ${unit}`;
  return value ? String(value) : "";
}

/** 72h0m0s as 72h. */
export function shortAge(text: string): string {
  return text.replace(/(\D)0s$/, "$1").replace(/(h)0m$/, "$1");
}

/** The value as text for a reader. */
export function shownSetting(setting: SettingKind, value: string | number): string {
  if (setting.none !== undefined && (!value || value === "0s")) return setting.none;
  if (setting.kind === "age") return shortAge(String(value));
  if (setting.kind === "size") return bytes(Number(value));
  return setting.choices?.[String(value)] ?? String(value);
}

/** The value as text in the form of the dialog. */
export function editedSetting(setting: SettingKind, value: string | number): string {
  if (setting.kind === "size") return exactSize(Number(value));
  if (setting.kind === "age") return value === "0s" ? "" : shortAge(String(value));
  if (setting.kind === "number") return value ? String(value) : "";
  return String(value);
}

/** The value for the API; undefined if the text is not valid. */
export function readSetting(setting: SettingKind, text: string): SettingValue | undefined {
  const trimmed = text.trim();
  switch (setting.kind) {
    case "age":
      if (!trimmed || trimmed === "0") return "0s";
      return /^(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+$/.test(trimmed) ? trimmed : undefined;
    case "size":
      return parseSize(trimmed) ?? undefined;
    case "number":
      return /^\d{0,5}$/.test(trimmed) && Number(trimmed) <= 65535 ? Number(trimmed) : undefined;
    default:
      return trimmed;
  }
}

/** A setting on the nodes of a topic. */
export interface SettingRow {
  setting: SettingKind;
  /** The text of the value, or one for each node if they differ. */
  values: { text: string; nodes: string[] }[];
  value: string | number;
  isChanged: boolean;
}

/** The settings that the nodes report, in the order of SETTINGS. */
export function settingRows(nodes: NodeLog[]): SettingRow[] {
  const configs = nodes.map((each): [string, NodeConfig] => [each.node, each.config]).filter(([, each]) => !each.code);
  return SETTINGS.flatMap((setting): SettingRow[] => {
    const having = configs.filter(([, config]) => setting.name in config.settings);
    const first = having[0];
    if (!first) return [];
    const values = new Map<string, string[]>();
    for (const [node, config] of having) {
      const text = shownSetting(setting, config.settings[setting.name] ?? "");
      values.set(text, [...(values.get(text) ?? []), node]);
    }
    return [
      {
        setting,
        values: [...values].map(([text, where]) => ({ text, nodes: where })),
        value: first[1].settings[setting.name] ?? "",
        isChanged: having.some(([, config]) => config.changed.includes(setting.name)),
      },
    ];
  });
}
