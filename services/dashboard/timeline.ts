/** Values over time: a body of `/api/history`, continued with the values of the stream. */
import type { HistoryBody } from '../../shared/protocol/router_api.ts';

/** A span of time that charts show, and the distance of its values, in milliseconds. */
export interface Range {
  readonly label: string;
  readonly spanMs: number;
  readonly stepMs: number;
}

/** Spans that the router keeps. */
export const RANGES: readonly [Range, Range] = [
  { label: '15 minutes', spanMs: 900_000, stepMs: 1_000 },
  { label: '24 hours', spanMs: 86_400_000, stepMs: 60_000 },
];

/** Span that the router keeps of a node. */
export const NODE_RANGE: Range = { label: '15 minutes', spanMs: 900_000, stepMs: 5_000 };

/** Series with common times, bounded to a span. */
export class Timeline {
  /** Milliseconds since 1970, ascending. */
  readonly times: number[];
  readonly #series: Map<string, (number | null)[]>;
  readonly #stepMs: number;
  readonly #spanMs: number;

  constructor({ start_at, step_ms, series }: HistoryBody, spanMs: number) {
    this.#series = new Map(Object.entries(series).map(([name, values]) => [name, [...values]]));
    const length = Math.max(0, ...[...this.#series.values()].map((values) => values.length));
    this.times = Array.from({ length }, (_, i) => start_at + i * step_ms);
    this.#stepMs = step_ms;
    this.#spanMs = spanMs;
  }

  /** Values of a series, one for each time; all null for a series that there is not. */
  values(name: string): readonly (number | null)[] {
    return this.#series.get(name) ?? this.times.map(() => null);
  }

  /** Whether there is any value of a series. */
  has(name: string): boolean {
    return this.#series.get(name)?.some((value) => value !== null) ?? false;
  }

  /** Mean of a series over its last `spanMs`; null where it has no value there. */
  mean(name: string, spanMs: number): number | null {
    const from = (this.times.at(-1) ?? 0) - spanMs;
    const values = this.values(name).filter((value, i) => value !== null && (this.times[i] ?? 0) > from) as number[];
    return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
  }

  /** Newest value of a series that is not older than `spanMs`; null where there is none. */
  latest(name: string, spanMs: number): number | null {
    const values = this.values(name);
    const from = (this.times.at(-1) ?? 0) - spanMs;
    for (let i = values.length - 1; i >= 0 && (this.times[i] ?? 0) > from; i--) {
      const value = values[i] ?? null;
      if (value !== null) return value;
    }
    return null;
  }

  /** Adds the values of a time. A time within the last step is passed over; after a pause there is a gap. */
  append(at: number, now: Readonly<Record<string, number | null>>): void {
    const last = this.times.at(-1);
    if (last !== undefined && at < last + this.#stepMs / 2) return;
    if (last !== undefined && at > last + 5 * this.#stepMs) this.#push(last + this.#stepMs, {});
    this.#push(at, now);
    const old = this.times.findIndex((time) => time >= at - this.#spanMs);
    if (old <= 0) return;
    this.times.splice(0, old);
    for (const values of this.#series.values()) values.splice(0, old);
  }

  #push(at: number, now: Readonly<Record<string, number | null>>): void {
    for (const name of Object.keys(now))
      if (!this.#series.has(name))
        this.#series.set(
          name,
          this.times.map(() => null),
        );
    this.times.push(at);
    for (const [name, values] of this.#series) values.push(now[name] ?? null);
  }
}
