/** Escapes in JSON strings. */

const UNICODE_ESCAPE = /(\\\\)|((?:\\u[0-9a-fA-F]{4})+)/g;
const ANY_ESCAPE = /\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))/g;
const SHORT: Record<string, string> = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
// Characters stay escaped if they are invisible, change the text direction or break the line; so do the two that end a
// string.
const HIDDEN = /[\p{C}\p{Z}"\\]/u;

function looksLikeJSON(text: string): boolean {
  return /^\s*[{["]/.test(text);
}

/** Shows 李 for `\u674e` in JSON, which stays valid; returns any other text unchanged. */
export function readable(text: string): string {
  if (!text.includes("\\u") || !looksLikeJSON(text)) return text;
  return text.replace(UNICODE_ESCAPE, (written: string, backslashes?: string) =>
    backslashes ? written : [...units(written)].map((each) => (HIDDEN.test(each) ? escaped(each) : each)).join(""),
  );
}

/** Decodes every escape in JSON, for searching; returns any other text unchanged. */
export function decoded(text: string): string {
  if (!text.includes("\\") || !looksLikeJSON(text)) return text;
  return text.replace(ANY_ESCAPE, (_written, digits?: string, letter = "") =>
    digits ? String.fromCharCode(parseInt(digits, 16)) : (SHORT[letter as string] ?? (letter as string)),
  );
}

function units(escapes: string): string {
  return String.fromCharCode(...(escapes.match(/[0-9a-fA-F]{4}/g) ?? []).map((each) => parseInt(each, 16)));
}

function escaped(character: string): string {
  return character
    .split("")
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .join("");
}
