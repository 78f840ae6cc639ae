/** The ticks of graphs: at least two on every axis, at round values. */

const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86400;
const STEPS_S = [
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((count) => count * MINUTE_S),
  ...[1, 2, 3, 6, 12].map((count) => count * HOUR_S),
  ...[1, 2, 4, 7, 14].map((count) => count * DAY_S),
];

/** Round local times between two times, at most `most` of them, but at least two. */
export function timeTicks(from: number, to: number, most: number): number[] {
  const wanted = STEPS_S.findIndex((step) => (to - from) / step <= Math.max(2, most));
  for (let index = wanted < 0 ? STEPS_S.length - 1 : wanted; index >= 0; index -= 1) {
    const ticks = multiples(from, to, STEPS_S[index] ?? 1);
    if (ticks.length >= 2) return ticks;
  }
  return [from, to];
}

function multiples(from: number, to: number, step: number): number[] {
  const offset = new Date(from * 1000).getTimezoneOffset() * MINUTE_S;
  const ticks: number[] = [];
  for (let tick = Math.ceil((from - offset) / step) * step + offset; tick <= to; tick += step) ticks.push(tick);
  return ticks;
}

/** The text of a tick; seconds only if the ticks need them, the date only at midnight. */
export function timeTickText(tick: number, step: number): string {
  const date = new Date(tick * 1000);
  const digits = (value: number) => String(value).padStart(2, "0");
  const clock = `${digits(date.getHours())}:${digits(date.getMinutes())}`;
  if (step < MINUTE_S) return `${clock}:${digits(date.getSeconds())}`;
  const isMidnight = !date.getHours() && !date.getMinutes();
  return isMidnight && step >= HOUR_S ? date.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : clock;
}

/** The largest value of an axis that begins at 0, and the distance of its ticks. */
export function valueScale(highest: number, least: number): { top: number; step: number } {
  const top = Math.max(highest * 1.1, least);
  const size = 10 ** Math.floor(Math.log10(top));
  const step = [0.2, 0.5, 1, 2, 5].map((each) => each * size).find((each) => top / each <= 5) ?? size * 5;
  return { top: Math.ceil(top / step - 1e-9) * step, step };
}

export function valueTicks(top: number, step: number): number[] {
  return Array.from({ length: Math.floor(top / step + 1e-6) + 1 }, (_, index) => Number((index * step).toPrecision(6)));
}
