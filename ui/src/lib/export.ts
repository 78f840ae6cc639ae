/** Tables as files: CSV for spreadsheets and JSON for programs. */

export type ExportRow = object;

/** The columns are the keys of all rows, in the order in which they appear; `omit` names those that are left out. */
export function toCsv(rows: ExportRow[], omit: string[] = []): string {
  const keys = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((key) => !omit.includes(key));
  const lines = [keys, ...rows.map((row) => keys.map((key) => (row as Record<string, unknown>)[key]))];
  return lines.map((cells) => cells.map(cell).join(",") + "\r\n").join("");
}

export function toJson(rows: ExportRow[], omit: string[] = []): string {
  return JSON.stringify(rows, (key, value: unknown) => (omit.includes(key) ? undefined : value), 2) + "\n";
}

/** A cell of CSV. Text that a spreadsheet would run as a formula gets a quotation mark in front. */
function cell(value: unknown): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  let text = typeof value === "string" ? value : Array.isArray(value) ? value.map(String).join(" ") : JSON.stringify(value);
  if (/^[=+\-@\t\r\n]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Saves a file from the page. */
export function save(name: string, type: string, content: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
