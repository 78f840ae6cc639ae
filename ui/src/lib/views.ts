/** The views of the navigation, and the keys that open them after `g`. The first ones are always visible on a phone. */

import type { IconName } from "../parts/Icon.svelte";

export interface View {
  name: string;
  path: string;
  icon: IconName;
  key: string;
  /** True if the view needs nsqadmin's history. */
  needsHistory?: boolean;
}

export const VIEWS: View[] = [
  { name: "Topics", path: "topics", icon: "topics", key: "t" },
  { name: "Channels", path: "channels", icon: "channels", key: "h", needsHistory: true },
  { name: "Alerts", path: "alerts", icon: "alerts", key: "w" },
  { name: "Nodes", path: "nodes", icon: "nodes", key: "n" },
  { name: "Consumers", path: "consumers", icon: "consumers", key: "u" },
  { name: "Lookup", path: "lookup", icon: "lookup", key: "l" },
  { name: "Counter", path: "counter", icon: "counter", key: "c" },
  { name: "Activity", path: "activity", icon: "activity", key: "a" },
];

/** How many views the bar of a phone shows beside "More". */
export const PRIMARY_COUNT = 4;
