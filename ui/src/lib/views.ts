/** The views of the navigation, and the keys that open them after `g`. */

import type { IconName } from "../parts/Icon.svelte";

export const VIEWS: { name: string; path: string; icon: IconName; key: string }[] = [
  { name: "Topics", path: "topics", icon: "topics", key: "t" },
  { name: "Nodes", path: "nodes", icon: "nodes", key: "n" },
  { name: "Lookup", path: "lookup", icon: "lookup", key: "l" },
  { name: "Counter", path: "counter", icon: "counter", key: "c" },
  { name: "Activity", path: "activity", icon: "activity", key: "a" },
];
