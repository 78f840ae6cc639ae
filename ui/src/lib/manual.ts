/** Links to the manual: the section about each view and each rule of alerts. */

const SECTIONS: Record<string, string> = {
  topics: "all-topics",
  channels: "all-channels-and-consumers",
  consumers: "all-channels-and-consumers",
  alerts: "alerts",
  nodes: "nodes-and-other-views",
  lookup: "nodes-and-other-views",
  counter: "nodes-and-other-views",
  activity: "nodes-and-other-views",
};
const TOPIC_VIEWS: Record<string, string> = {
  messages: "messages-as-they-are-published",
  log: "the-log-of-a-topic",
  browse: "stored-messages",
  dead: "dead-letters",
};

/** The section about a view; `parts` and `query` are those of its address. */
export function sectionOf(parts: string[] | null, query: Record<string, string>): string {
  const [view = "topics", first = ""] = parts ?? [];
  if (view === "topics" && first) return TOPIC_VIEWS[query["view"] ?? ""] ?? "a-topic-or-a-channel";
  return SECTIONS[view] ?? "nsqadmin";
}

/** The address of a section of the page about nsqadmin; empty without a manual. */
export function manualUrl(manual: string | undefined, section: string): string {
  return manual ? `${manual}/nsqadmin.html#${section}` : "";
}
