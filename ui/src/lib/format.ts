/** Formats numbers, times and sizes. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS: [number, string][] = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e4, "k"],
];

/** 1234567 as 1,234,567. */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : whole.format(value);
}

/** 1234567 as 1.23M; up to four digits are not shortened. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of UNITS) {
    if (Math.abs(value) >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return scaled.toFixed(scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2) + unit;
    }
  }
  return whole.format(value);
}

/** A rate per second, with a decimal only below 10. */
export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 0.05) return "<0.1";
  return value < 10 ? value.toFixed(1) : short(Math.round(value));
}

/** Nanoseconds as 1.2 ms. */
export function nanoseconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 1e3) return `${Math.round(value)} ns`;
  if (value < 1e6) return `${three(value / 1e3)} µs`;
  if (value < 1e9) return `${three(value / 1e6)} ms`;
  return seconds(value / 1e9);
}

/** A duration in its two largest units. */
export function seconds(value: number): string {
  if (value < 10) return `${three(value)} s`;
  const total = Math.round(value);
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60} s`;
  if (total < 86400) return `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
  return `${Math.floor(total / 86400)} d ${Math.floor((total % 86400) / 3600)} h`;
}

/** The time since `timeS`, in one unit. */
export function ago(timeS: number, nowS: number): string {
  const span = Math.max(0, Math.round(nowS - timeS));
  if (span < 2) return "just now";
  if (span < 60) return `${span} s ago`;
  if (span < 3600) return `${Math.floor(span / 60)} min ago`;
  if (span < 86400) return `${Math.floor(span / 3600)} h ago`;
  return `${Math.floor(span / 86400)} d ago`;
}

export function bytes(value: number): string {
  if (value < 1024) return `${value} B`;
  if (value < 1024 * 1024) return `${three(value / 1024)} KiB`;
  if (value < 1024 ** 3) return `${three(value / 1024 ** 2)} MiB`;
  if (value < 1024 ** 4) return `${three(value / 1024 ** 3)} GiB`;
  return `${three(value / 1024 ** 4)} TiB`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** The time of day, with the date if it is not today. */
export function time(date: Date, now = new Date()): string {
  const today = date.toDateString() === now.toDateString();
  return today ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`;
}

/** The date of a time in nanoseconds since 1970, as text. */
export function dateOf(timeNs: string): Date {
  return new Date(Number(BigInt(timeNs) / 1_000_000n));
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

function three(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
