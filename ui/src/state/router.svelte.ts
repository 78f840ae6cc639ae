/** The current view and the address bar. Views are paths below the base path; the choices in a view are in the query. */

import { tick } from "svelte";

import { partsOf } from "../lib/address";

/** The state of a view that was left. */
interface SavedView {
  scrollY: number;
}

export interface Place {
  parts: string[] | null;
  query: Record<string, string>;
}

function here(): Place {
  return { parts: partsOf(location.pathname), query: Object.fromEntries(new URLSearchParams(location.search)) };
}

class Router {
  place = $state.raw<Place>(here());

  constructor() {
    history.scrollRestoration = "manual";
    addEventListener("popstate", (event) => void this.#return((event.state as SavedView | null)?.scrollY ?? 0));
    document.addEventListener("click", (event) => this.#follow(event));
  }

  go(href: string): void {
    history.replaceState({ scrollY } satisfies SavedView, "");
    history.pushState(null, "", href);
    this.place = here();
    scrollTo(0, 0);
    // Move the focus to the heading, so that screen readers announce the new view.
    requestAnimationFrame(() => document.querySelector<HTMLElement>("main h1")?.focus({ preventScroll: true }));
  }

  /** Opens another part of the same page, so that the browser's Back returns to this one. */
  show(changes: Record<string, string>): void {
    history.replaceState({ scrollY } satisfies SavedView, "");
    history.pushState(null, "", location.href);
    this.remember(changes);
  }

  /** Stores choices of the view in the address; empty values are omitted. */
  remember(changes: Record<string, string>): void {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    history.replaceState(history.state, "", location.pathname + (text ? `?${text}` : ""));
    this.place = here();
  }

  /** Restores the scroll position of a view; the browser would do so before the content is loaded. */
  async #return(scrollY: number): Promise<void> {
    this.place = here();
    await tick();
    requestAnimationFrame(() => scrollTo(0, scrollY));
  }

  /** Opens links within the page without loading a new document. */
  #follow(event: MouseEvent): void {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
      return;
    const link = (event.target as Element).closest?.("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    const parts = partsOf(link.pathname);
    if (parts === null || parts[0] === "static" || parts[0] === "api") return;
    event.preventDefault();
    this.go(link.href);
  }
}

export const router = new Router();
