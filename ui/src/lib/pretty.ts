/**
 * Formats JSON with line breaks and colours. It works on the tokens of the original text: large numbers, duplicate keys
 * and the order of keys are preserved. Short objects and arrays stay on one line. Escaped characters are decoded.
 */

import { readable } from "./escapes";

export type Kind = "key" | "text" | "number" | "word" | "plain";
export interface Token {
  kind: Kind;
  text: string;
}

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[[\]{}:,]/g;
const MAX_LENGTH = 200_000;
const LINE_LENGTH = 64;
const MAX_DEPTH = 50;

/** The tokens with line breaks and indentation; null if the text is not a JSON object or array, or is nested too deeply. */
export function pretty(text: string): Token[] | null {
  const trimmed = text.trim();
  if (!/^[[{]/.test(trimmed) || trimmed.length > MAX_LENGTH) return null;
  try {
    JSON.parse(trimmed);
  } catch {
    return null;
  }
  const parts = (trimmed.match(TOKEN) ?? []).map(readable);
  const short = findShort(parts);
  return short && layOut(parts, short);
}

function layOut(parts: string[], short: Set<number>): Token[] {
  const tokens: Token[] = [];
  const isShort: boolean[] = [];
  const plain = (text: string) => tokens.push({ kind: "plain", text });
  const newline = () => plain(isShort.at(-1) ? " " : `\n${"  ".repeat(isShort.length)}`);
  parts.forEach((part, index) => {
    const isEmpty = /^[{[]$/.test(parts[index - 1] ?? "");
    if (part === "{" || part === "[") {
      plain(part);
      isShort.push(isShort.at(-1) === true || short.has(index));
      if (!/^[}\]]$/.test(parts[index + 1] ?? "") && !isShort.at(-1)) newline();
    } else if (part === "}" || part === "]") {
      const wasShort = isShort.pop();
      if (!isEmpty && !wasShort) newline();
      plain(part);
    } else if (part === ",") {
      plain(part);
      newline();
    } else if (part === ":") {
      plain(": ");
    } else {
      tokens.push({ kind: kindOf(part, parts[index + 1]), text: part });
    }
  });
  return tokens;
}

/** The start indices of the inner objects and arrays that fit on one line; null if they are nested too deeply. */
function findShort(parts: string[]): Set<number> | null {
  const found = new Set<number>();
  const open: { index: number; start: number }[] = [];
  let length = 0;
  for (const [index, part] of parts.entries()) {
    if (part === "{" || part === "[") {
      if (open.length === MAX_DEPTH) return null;
      open.push({ index, start: length });
    }
    length += part.length + (part === "," || part === ":" ? 1 : 0);
    if (part === "}" || part === "]") {
      const closed = open.pop();
      if (closed && open.length && length - closed.start <= LINE_LENGTH) found.add(closed.index);
    }
  }
  return found;
}

function kindOf(part: string, next: string | undefined): Kind {
  if (part.startsWith('"')) return next === ":" ? "key" : "text";
  return /^[tfn]/.test(part) ? "word" : "number";
}
