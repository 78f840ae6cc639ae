/** Keyboard shortcuts: `/` focuses the search, `?` shows the help, `g` and a letter opens a view. */

import { router } from "../state/router.svelte";
import { path } from "./address";
import { VIEWS } from "./views";

const CHORD_MS = 1_500;

export function listen(help: () => void): () => void {
  let chordUntil = 0;

  function pressed(event: KeyboardEvent): void {
    if (
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      isTyping(event.target) ||
      document.querySelector("dialog[open]")
    )
      return;
    const isChord = performance.now() < chordUntil;
    chordUntil = 0;
    const view = isChord ? VIEWS.find((each) => each.key === event.key) : undefined;
    if (view) router.go(path(view.path));
    else if (event.key === "g") chordUntil = performance.now() + CHORD_MS;
    else if (event.key === "?") help();
    else if (event.key === "/") document.querySelector<HTMLElement>("[data-search]")?.focus();
    else return;
    event.preventDefault();
  }

  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable]") !== null;
}
