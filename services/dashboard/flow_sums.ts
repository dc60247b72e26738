/** Links as a matrix of holders and readers, and how fast each is. */
import type { LinkView } from '../../shared/protocol/router_api.ts';
import { compareNames } from './format.ts';

/** A matrix of what moves now. */
export interface Matrix {
  /** Holders, those that send most first. */
  readonly from: readonly string[];
  /** Readers, those that receive most first. */
  readonly to: readonly string[];
  /** Bytes a second over all ways, by holder and reader. */
  readonly at: (from: string, to: string) => number;
  readonly largest: number;
  /** Whether nodes were left out for the limit. */
  readonly isPart: boolean;
}

/** The matrix of the `rows` busiest holders and the `columns` busiest readers. */
export function matrixOf(links: readonly LinkView[], rows: number, columns: number): Matrix {
  const cells = new Map<string, number>();
  const sums = { from: new Map<string, number>(), to: new Map<string, number>() };
  const add = (map: Map<string, number>, key: string, value: number): void =>
    void map.set(key, (map.get(key) ?? 0) + value);
  for (const { from, to, bytes_per_s } of links) {
    add(sums.from, from, bytes_per_s);
    add(sums.to, to, bytes_per_s);
    add(cells, `${from}\n${to}`, bytes_per_s);
  }
  const busiest = (map: Map<string, number>): readonly string[] =>
    [...map].sort(([a, x], [b, y]) => y - x || compareNames(a, b)).map(([name]) => name);
  const [from, to] = [busiest(sums.from), busiest(sums.to)];
  return {
    // In the order of names, so that rows keep their place while their sums change.
    from: from.slice(0, rows).sort(compareNames),
    to: to.slice(0, columns).sort(compareNames),
    at: (holder, reader) => cells.get(`${holder}\n${reader}`) ?? 0,
    largest: Math.max(0, ...cells.values()),
    isPart: from.length > rows || to.length > columns,
  };
}

/** Returns the bytes a second of a link while blocks moved; null where no time was measured. */
export function speedOf({ bytes, ms }: LinkView): number | null {
  return ms > 0 ? (bytes * 1_000) / ms : null;
}

/** Returns the milliseconds in which a record of a link moves; null where no time was measured: some records come with an answer. */
export function perRecord({ records, ms }: LinkView): number | null {
  return records > 0 && ms > 0 ? ms / records : null;
}
