/** Rows that change while they are watched: what of them has to be sent again, within a number of bytes and of rows that are looked at. */

/** A row as JSON. */
export type Row = Readonly<Record<string, unknown>>;

/** A row that is made only when it is looked at. */
export interface LazyRow {
  readonly key: string;
  /** Text that changes when the row must be sent before others. */
  readonly urgency: string;
  readonly make: () => Row;
}

/** Names of fields. */
export interface RowFields {
  /** Fields of the key, which every partial row has. */
  readonly key: readonly string[];
  /** Fields that are sent with a change, and are no change by themselves. */
  readonly companions: readonly string[];
}

/** Changes of rows since they were sent last. */
export interface RowChanges {
  readonly changed: readonly Row[];
  /** Keys of `changed`. */
  readonly keys: readonly string[];
  /** Keys of rows that are gone. */
  readonly gone: readonly string[];
}

/** Most rows that one tick looks at besides new and urgent ones. */
const MAX_LOOKED_AT = 256;

/** Bytes of urgent rows in one tick: a slow link is not to be filled by a thousand nodes that join. The others are urgent still. */
const MAX_URGENT_BYTES = 64_000;

/** Rows as they were sent last, and the changes that are still to be sent. Bounded by the rows that are shown. */
export class RowDeltas {
  readonly #fields: RowFields;
  readonly #sent = new Map<string, { readonly row: Row; readonly urgency: string }>();
  /** Index of the row with which the next look for changes begins, so that every row has its turn. */
  #cursor = 0;

  constructor(fields: RowFields) {
    this.#fields = fields;
  }

  /** All rows as they were sent last. */
  get all(): Row[] {
    return Array.from(this.#sent.values(), ({ row }) => row);
  }

  /** Returns a row as it was sent last; undefined for one that was not sent, or is gone. */
  row(key: string): Row | undefined {
    return this.#sent.get(key)?.row;
  }

  clear(): void {
    this.#sent.clear();
    this.#cursor = 0;
  }

  /**
   * Compares with the rows as they are now. Returns new rows, changed fields of others (of urgent ones first, of the rest as far as
   * `maxBytes` allow), the keys of both, and those of rows that are gone.
   */
  take(rows: readonly LazyRow[], maxBytes: number): RowChanges {
    const present = new Set(rows.map(({ key }) => key));
    const gone = [...this.#sent.keys()].filter((key) => !present.has(key));
    for (const key of gone) this.#sent.delete(key);
    const urgent = rows.filter(({ key, urgency }) => this.#sent.get(key)?.urgency !== urgency);
    const [changed, keys]: [Row[], string[]] = [[], []];
    let numBytes = 0;
    const send = (row: LazyRow): void => {
      const fields = this.#changeOf(row);
      if (!fields) return;
      changed.push(fields);
      keys.push(row.key);
      numBytes += JSON.stringify(fields).length;
    };
    for (let i = 0; i < urgent.length && numBytes < Math.max(MAX_URGENT_BYTES, maxBytes); i++) {
      const row = urgent[(this.#cursor + i) % urgent.length];
      if (row) send(row);
    }
    const numLooked = Math.min(rows.length, MAX_LOOKED_AT);
    for (let i = 0; i < numLooked && numBytes < maxBytes; i++) {
      const row = rows[this.#cursor++ % rows.length];
      if (row) send(row);
    }
    this.#cursor %= Math.max(1, rows.length);
    return { changed, keys, gone };
  }

  /** Returns a new row, the changed fields of a known one, or undefined when nothing has changed; it counts as sent. */
  #changeOf({ key, urgency, make }: LazyRow): Row | undefined {
    const row = make();
    const before = this.#sent.get(key)?.row;
    const { key: names, companions } = this.#fields;
    const changes = before
      ? Object.keys(row).filter((name) => !companions.includes(name) && !isSame(row[name], before[name]))
      : [];
    this.#sent.set(key, { row, urgency });
    if (before && changes.length === 0) return undefined;
    if (!before) return row;
    return Object.fromEntries([...names, ...companions, ...changes].map((name) => [name, row[name]]));
  }
}

function isSame(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false;
  return JSON.stringify(a) === JSON.stringify(b);
}
