/** Requests JSON from the API. A failed request throws RequestFailed, whose text can be shown to the user. */

import { session } from "../state/session.svelte";
import { NAME_RULE } from "./names";
import { plain } from "./plain";

const TIMEOUT_MS = 20_000;

const ERROR_TEXTS: Record<string, string> = {
  CROSS_ORIGIN: "nsqadmin rejected the request as one from another site. Add this page's origin with --allowed-origin.",
  FORBIDDEN: "You may view the cluster, but not make changes.",
  INVALID_ARG_CONTAINS: "The text to search for is too long. Use at most 256 characters.",
  INVALID_CHANNEL: `This is not a valid channel name. ${NAME_RULE}`,
  INVALID_NODE: "An offset belongs to one node. Choose the node.",
  INVALID_POSITION: "This is not a valid position.",
  INVALID_SETTINGS: "A value of the settings is not valid.",
  INVALID_TOPIC: `This is not a valid topic name. ${NAME_RULE}`,
  MESSAGES_DISABLED: "Reading and publishing messages is disabled (--messages=false).",
  MSG_EMPTY: "A message needs a body.",
  NODE_IS_LISTED:
    "The cluster still lists this nsqd. Wait until no nsqlookupd lists it, or remove it from --nsqd-http-address.",
  NODE_NOT_FOUND: "This nsqd is not in the cluster.",
  TOO_MANY_VIEWERS: "Too many pages are open. Try again later.",
  TOO_MANY_WRONG_TOKENS: "Too many wrong tokens came from your address. Wait a few seconds and try again.",
  TOPIC_NOT_FOUND: "This topic does not exist.",
  CHANNEL_NOT_FOUND: "This channel does not exist.",
  UNAUTHORIZED: "This token is not valid.",
};

export class RequestFailed extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly document: unknown = null,
  ) {
    super(errorText(status, code));
  }
}

function errorText(status: number, code: string): string {
  if (status === 0) return "nsqadmin does not answer.";
  return ERROR_TEXTS[code] ?? plain(code.replace(/^UPSTREAM_ERROR: /, "The cluster does not answer: "));
}

export async function ask<T>(method: string, address: string, body?: unknown): Promise<T> {
  let answer: Response;
  const options: RequestInit = { method, signal: AbortSignal.timeout(TIMEOUT_MS) };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  try {
    answer = await fetch(address, options);
  } catch {
    throw new RequestFailed(0, "");
  }
  const document: unknown = await answer.json().catch(() => null);
  if (answer.ok) return document as T;
  if (answer.status === 401) session.expired();
  const code = (document as { message?: string } | null)?.message ?? `HTTP ${answer.status}`;
  throw new RequestFailed(answer.status, code, document);
}

export function get<T>(address: string): Promise<T> {
  return ask<T>("GET", address);
}

/** The text of a thrown value. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
