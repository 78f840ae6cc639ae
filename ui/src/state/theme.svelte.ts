/** The colours: light, dark, or those of the system; stored in the browser. */

export type Choice = "system" | "light" | "dark";

const KEY = "nsqadmin-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function remembered(): Choice {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "system";
  } catch {
    return "system";
  }
}

class Theme {
  choice = $state<Choice>(remembered());
  #systemIsDark = $state(system.matches);

  constructor() {
    system.addEventListener("change", () => {
      this.#systemIsDark = system.matches;
      this.#apply();
    });
    this.#apply();
  }

  get isDark(): boolean {
    return this.choice === "system" ? this.#systemIsDark : this.choice === "dark";
  }

  set(choice: Choice): void {
    this.choice = choice;
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // Storage is disabled: the choice lasts until the tab is closed.
    }
    this.#apply();
  }

  #apply(): void {
    document.documentElement.dataset["theme"] = this.isDark ? "dark" : "light";
  }
}

export const theme = new Theme();
