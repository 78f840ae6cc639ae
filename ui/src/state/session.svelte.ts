/** The user's session, and the settings of this nsqadmin. */

import { api } from "../lib/address";
import { ask, get, reason } from "../lib/request";
import type { Role, Settings } from "../lib/types";

class Session {
  settings = $state.raw<Settings | null>(null);
  problem = $state("");

  get mayOperate(): boolean {
    return this.settings?.may_operate ?? false;
  }

  get hasHistory(): boolean {
    return (this.settings?.poll_interval_s ?? 0) > 0;
  }

  get mayReadMessages(): boolean {
    return (this.settings?.may_consume ?? false) && (this.settings?.messages ?? false);
  }

  get needsLogin(): boolean {
    return this.settings?.role === "nobody";
  }

  async load(): Promise<void> {
    try {
      this.settings = await get<Settings>(api("settings"));
      this.problem = "";
    } catch (error) {
      this.problem = reason(error);
    }
  }

  async login(token: string): Promise<void> {
    await ask<{ role: Role }>("POST", api("login"), { token });
    await this.load();
  }

  async logout(): Promise<void> {
    await ask("POST", api("logout"), {});
    await this.load();
  }

  /** Handles an answer with status 401. */
  expired(): void {
    if (this.settings && this.settings.role !== "nobody") void this.load();
  }
}

export const session = new Session();
