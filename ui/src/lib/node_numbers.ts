/** The version, memory and disk of an nsqd in words. */

import { bytes, seconds } from "./format";
import type { NodeNumbers } from "./types";

/** The implementation and its version: nsqx 0.2.0, or Go 1.3.0. */
export function versionText(node: NodeNumbers): string {
  return node.implementation === "nsqx" ? `nsqx ${node.nsqx_version}`.trim() : `Go ${node.version}`.trim();
}

export function uptimeText(node: NodeNumbers, nowS: number): string {
  return node.start_s === null ? "unknown" : seconds(Math.max(0, Math.round(nowS - node.start_s)));
}

export function bytesText(value: number | null): string {
  return value === null ? "unknown" : bytes(value);
}

/** The part of the disk that is free; null if it is unknown. */
export function freePart(node: NodeNumbers): number | null {
  if (node.disk_free_bytes === null || !node.disk_size_bytes) return null;
  return node.disk_free_bytes / node.disk_size_bytes;
}

export function isDiskLow(node: NodeNumbers): boolean {
  const part = freePart(node);
  return part !== null && part < 0.1;
}

/** How far a migration is: how many nodes run each implementation. */
export function migrationText(nodes: NodeNumbers[]): string {
  const versions = new Map<string, number>();
  for (const node of nodes) versions.set(versionText(node), (versions.get(versionText(node)) ?? 0) + 1);
  if (versions.size < 2) return "";
  return [...versions]
    .sort(([one], [other]) => (one < other ? 1 : -1))
    .map(([version, count]) => `${count} × ${version}`)
    .join(", ");
}
