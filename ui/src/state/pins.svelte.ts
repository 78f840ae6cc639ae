/** The topics that the user has pinned, kept in the browser for each cluster. */

import { path } from "../lib/address";

const KEY = `nsqadmin.pins ${path()}`;
const MOST = 200;

function stored(): string[] {
  try {
    const names: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(names) ? names.filter((name) => typeof name === "string").slice(0, MOST) : [];
  } catch {
    return [];
  }
}

class Pins {
  names = $state.raw(new Set(stored()));

  toggle(name: string): void {
    const names = new Set(this.names);
    if (!names.delete(name) && names.size < MOST) names.add(name);
    this.names = names;
    try {
      localStorage.setItem(KEY, JSON.stringify([...names]));
    } catch {
      // Without storage the pins last as long as the page.
    }
  }

  /** Moves pinned rows to the front and keeps the order otherwise. */
  first<Row extends { name: string }>(rows: Row[]): Row[] {
    if (!this.names.size) return rows;
    const pinned = rows.filter((row) => this.names.has(row.name));
    return pinned.length ? [...pinned, ...rows.filter((row) => !this.names.has(row.name))] : rows;
  }
}

export const pins = new Pins();
