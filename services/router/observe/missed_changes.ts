/** Changes that a reader of the stream did not take: a reader on a slow link gets them later, and not everything anew, which it could take even less. */
import type { RequestRow } from '../../../shared/protocol/router_api.ts';
import type { Row, RowChanges, RowDeltas } from './row_deltas.ts';

/** Requests that one reader is owed (P1); of more, the newest. */
const MAX_REQUESTS = 256;
/** Rows that left while a reader took no ticks (P1). */
const MAX_GONE = 4_096;

/** Rows of one kind that have changed since a reader took them; bounded by the rows that there are, and MAX_GONE that left. */
class MissedRows {
  readonly #changed = new Set<string>();
  readonly #gone = new Set<string>();

  add({ keys, gone }: RowChanges): void {
    for (const key of keys) {
      this.#changed.add(key);
      this.#gone.delete(key);
    }
    for (const key of gone) {
      this.#changed.delete(key);
      this.#gone.add(key);
    }
    for (const key of this.#gone) {
      if (this.#gone.size <= MAX_GONE) break;
      this.#gone.delete(key);
    }
  }

  /** Returns the rows that have changed, whole, as they were sent last to others, and the keys of those that left. */
  of(rows: RowDeltas): { readonly changed: Row[]; readonly gone: string[] } {
    const changed = Array.from(this.#changed, (key) => rows.row(key)).filter((row) => row !== undefined);
    return { changed, gone: [...this.#gone] };
  }
}

/** Changes of all kinds that a reader did not take. */
export class MissedChanges {
  readonly nodes = new MissedRows();
  readonly flows = new MissedRows();
  /** Number of the last event that the reader has. */
  readonly lastEvent: number;
  readonly #requests = new Map<string, RequestRow>();

  constructor(lastEvent: number) {
    this.lastEvent = lastEvent;
  }

  get requests(): RequestRow[] {
    return [...this.#requests.values()];
  }

  addRequests(rows: readonly RequestRow[]): void {
    for (const row of rows) {
      this.#requests.delete(row.id);
      this.#requests.set(row.id, row);
    }
    for (const id of this.#requests.keys()) {
      if (this.#requests.size <= MAX_REQUESTS) break;
      this.#requests.delete(id);
    }
  }
}
