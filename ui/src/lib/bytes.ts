/** Message bodies as bytes. */

const WIDTH = 16;
const MAX_LINES = 256;

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function bodyBytes(message: { encoding: "text" | "base64"; body: string }): Uint8Array<ArrayBuffer> {
  return message.encoding === "base64" ? fromBase64(message.body) : new TextEncoder().encode(message.body);
}

/** A hex dump: offset, bytes and printable characters, 16 bytes per line. */
export function hexDump(data: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < data.length && lines.length < MAX_LINES; at += WIDTH) {
    const part = Array.from(data.subarray(at, at + WIDTH));
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(WIDTH * 3)} ${text}`);
  }
  if (data.length > MAX_LINES * WIDTH) lines.push(`… ${data.length - MAX_LINES * WIDTH} bytes more`);
  return lines.join("\n");
}

/** Offers content to the user as a file download. */
export function download(name: string, content: BlobPart, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name.replace(/[^\w.-]/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
