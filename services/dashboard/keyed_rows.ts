/** Rows of a table by id. Each row is a signal of its own, so that a change of one row draws that row and no other. */
import { signal, type ReadonlySignal, type Signal } from '@preact/signals';

/** Rows in order. */
export class KeyedRows<Row> {
  readonly #rows = new Map<string, Signal<Row>>();
  readonly #idOf: (row: Row) => string;
  readonly #ids = signal<readonly string[]>([]);
  readonly #changes = signal(0);
  readonly #limit: number;

  /** @param limit rows that are kept; the last ones of the order go first. */
  constructor(idOf: (row: Row) => string, limit: number) {
    this.#idOf = idOf;
    this.#limit = limit;
  }

  /** Ids in order. */
  get ids(): ReadonlySignal<readonly string[]> {
    return this.#ids;
  }

  /** Number of times that rows were changed: what summarises all rows reads it to be computed again. */
  get changes(): ReadonlySignal<number> {
    return this.#changes;
  }

  /** The row as a signal; undefined when there is none with this id. */
  row(id: string): ReadonlySignal<Row> | undefined {
    return this.#rows.get(id);
  }

  /** The rows as they are now, in order. Reads signals: a component that calls it is drawn again after every change of any row. */
  all(): readonly Row[] {
    if (this.#changes.value === 0) return [];
    return this.#ids.value.flatMap((id) => {
      const row = this.#rows.get(id)?.peek();
      return row === undefined ? [] : [row];
    });
  }

  /** Changes rows in place; new ones are placed before all others (`first`, in their order) or after them (`last`). */
  put(rows: readonly Row[], place: 'first' | 'last'): void {
    if (rows.length === 0) return;
    const added: string[] = [];
    for (const row of rows) {
      const id = this.#idOf(row);
      const known = this.#rows.get(id);
      if (known) known.value = row;
      else {
        this.#rows.set(id, signal(row));
        added.push(id);
      }
    }
    if (added.length > 0) {
      const ids = this.#ids.peek();
      this.#setIds(place === 'first' ? [...added, ...ids] : [...ids, ...added]);
    }
    this.#changes.value++;
  }

  /** Replaces all rows. Rows whose id stays keep their signal. */
  replace(rows: readonly Row[]): void {
    const ids = new Set(rows.map(this.#idOf));
    this.remove(this.#ids.peek().filter((id) => !ids.has(id)));
    this.put(rows, 'last');
  }

  /** Removes rows; ids without a row are passed over. */
  remove(gone: readonly string[]): void {
    const known = new Set(gone.filter((id) => this.#rows.delete(id)));
    if (known.size === 0) return;
    this.#ids.value = this.#ids.peek().filter((id) => !known.has(id));
    this.#changes.value++;
  }

  #setIds(ids: readonly string[]): void {
    for (const id of ids.slice(this.#limit)) this.#rows.delete(id);
    this.#ids.value = ids.slice(0, this.#limit);
  }
}
