/**
 * JSON in lines and colours, token by token from the text itself: numbers too large for JavaScript, doubled keys and the
 * order of keys stay what they are. What is short stays on one line. Escaped characters are shown as what they stand for.
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

/** The tokens with line breaks and indentation; null if the text is no JSON object or array, or one nested too deeply. */
export function pretty(text: string): Token[] | null {
  const trimmed = text.trim();
  if (!/^[[{]/.test(trimmed) || trimmed.length > MAX_LENGTH) return null;
  try {
    JSON.parse(trimmed);
  } catch {
    return null;
  }
  const parts = (trimmed.match(TOKEN) ?? []).map(readable);
  const short = shortOnes(parts);
  return short && laidOut(parts, short);
}

function laidOut(parts: string[], short: Set<number>): Token[] {
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

/** Where those objects and arrays begin, within the outermost, that fit on a line; null if they are too deep. */
function shortOnes(parts: string[]): Set<number> | null {
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
