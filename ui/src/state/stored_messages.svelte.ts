/** Stored messages of a topic, page by page. Nodes have their own positions, so each node continues by itself. */

import { get, reason } from "../lib/request";
import type { MessagePage, PageNode, StoredMessage } from "../lib/log_types";

export type Query = Record<string, string>;

export class StoredMessages<Node extends PageNode, Page extends MessagePage<Node>> {
  messages = $state.raw<StoredMessage[]>([]);
  nodes = $state.raw<Node[]>([]);
  first = $state.raw<Page | null>(null);
  isLoading = $state(false);
  problem = $state("");
  #query: Query = {};
  #number = 0;

  constructor(
    private readonly address: string,
    /** The parameter that continues on a node. */
    private readonly position: (node: Node) => string,
  ) {}

  /** True if a node has more messages. */
  get hasMore(): boolean {
    return this.nodes.some(continues);
  }

  /** Replaces the messages by those of a new query. */
  async load(query: Query): Promise<void> {
    this.#query = query;
    const page = await this.#run(async () => [await this.#get(query)]);
    if (!page) return;
    this.first = page[0] ?? null;
    this.nodes = this.first?.nodes ?? [];
    this.messages = this.first?.messages ?? [];
  }

  /** Adds the next page of every node that has one. */
  async more(): Promise<void> {
    const pages = await this.#run(() =>
      Promise.all(
        this.nodes
          .filter(continues)
          .map((node) => this.#get({ ...this.#shared(), node: node.node, [this.position(node)]: String(node.next) })),
      ),
    );
    if (!pages) return;
    const newer = new Map(pages.flatMap((page) => page.nodes).map((node) => [node.node, node]));
    this.nodes = this.nodes.map((node) => newer.get(node.node) ?? node);
    this.messages = [...this.messages, ...merged(pages.map((page) => page.messages))];
  }

  /** Adds the messages before the first one of each node of a log; `firsts` are the first offsets of the logs. */
  async older(firsts: Map<string, number>, count: number): Promise<void> {
    const queries = this.#starts(firsts).map(([node, start, first]) => {
      const from = Math.max(first, start - count);
      return { ...this.#shared(), node, offset: String(from), count: String(start - from) };
    });
    const pages = await this.#run(() => Promise.all(queries.map((query) => this.#get(query))));
    if (pages) this.messages = [...merged(pages.map((page) => page.messages)), ...this.messages];
  }

  /** True if a log has messages before the first one that is shown. */
  hasOlder(firsts: Map<string, number>): boolean {
    return this.#starts(firsts).length > 0;
  }

  #starts(firsts: Map<string, number>): [string, number, number][] {
    const starts = new Map<string, number>();
    for (const { node, offset } of this.messages)
      if (offset !== null) starts.set(node, Math.min(offset, starts.get(node) ?? offset));
    return [...starts]
      .map(([node, start]): [string, number, number] => [node, start, firsts.get(node) ?? start])
      .filter(([, start, first]) => start > first);
  }

  /** The query without its position. */
  #shared(): Query {
    const { time: _time, last: _last, offset: _offset, skip: _skip, ...rest } = this.#query;
    return rest;
  }

  #get(query: Query): Promise<Page> {
    return get<Page>(`${this.address}?${new URLSearchParams(query).toString()}`);
  }

  /** Runs requests; null if they failed or if a later call has begun. */
  async #run(request: () => Promise<Page[]>): Promise<Page[] | null> {
    const number = ++this.#number;
    this.isLoading = true;
    try {
      const pages = await request();
      if (number !== this.#number) return null;
      this.problem = "";
      return pages;
    } catch (error) {
      if (number === this.#number) this.problem = reason(error);
      return null;
    } finally {
      if (number === this.#number) this.isLoading = false;
    }
  }
}

function continues(node: PageNode): boolean {
  return !node.code && !node.complete && node.next !== null;
}

function merged(lists: StoredMessage[][]): StoredMessage[] {
  const all = lists.flat();
  return lists.length > 1 ? all.sort((one, other) => compareNs(one.timestamp_ns, other.timestamp_ns)) : all;
}

function compareNs(one: string, other: string): number {
  return one.length - other.length || (one < other ? -1 : one > other ? 1 : 0);
}
