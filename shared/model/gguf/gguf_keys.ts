/** Metadata keys of a GGUF file that begin with its architecture. */

/** Most layers of a model, and most experts of a layer. */
const MAX_COUNT = 4_096;

/** Reads metadata keys with the prefix of the architecture. */
export class Keys {
  readonly #metadata: Readonly<Record<string, unknown>>;
  readonly #architecture: string;

  constructor(metadata: Readonly<Record<string, unknown>>, architecture: string) {
    this.#metadata = metadata;
    this.#architecture = architecture;
  }

  /** Returns a numeric key, or undefined when it is absent. @throws Error when the value is no number, or differs between layers. */
  number(key: string): number | undefined {
    const name = `${this.#architecture}.${key}`;
    const value = this.#metadata[name];
    if (value === undefined) return undefined;
    const values = (Array.isArray(value) ? value : [value]).map(Number);
    const [first] = values;
    if (first === undefined || !Number.isFinite(first)) throw new Error(`${name} is no number`);
    if (values.some((one) => one !== first)) throw new Error(`${name} differs between layers, which is not supported`);
    return shortest(first);
  }

  needed(key: string): number {
    const value = this.number(key);
    if (value !== undefined) return value;
    throw new Error(`${this.#architecture}.${key} is missing`);
  }

  /** Returns the number of layers or experts. @throws Error in words when the key is missing, or larger than MAX_COUNT. */
  count(key: string): number {
    const value = this.needed(key);
    if (value <= MAX_COUNT) return value;
    throw new Error(`${this.#architecture}.${key} is ${value}, which no model has`);
  }

  text(key: string): string | undefined {
    const value = this.#metadata[`${this.#architecture}.${key}`];
    return typeof value === 'string' ? value : undefined;
  }

  /** Returns the value of the first layer of a key that may have one per layer, undefined when the key is absent. */
  first(key: string): number | undefined {
    const [first] = this.list(key) ?? [];
    return first === undefined ? this.number(key) : Number(first);
  }

  /** Returns whether a key is true; an absent key is false. */
  flag(key: string): boolean {
    return this.#metadata[`${this.#architecture}.${key}`] === true;
  }

  /** Returns the values of a key with one per layer, undefined when the key is absent or holds one value for all layers. */
  list(key: string): readonly unknown[] | undefined {
    const value = this.#metadata[`${this.#architecture}.${key}`];
    return Array.isArray(value) ? value : undefined;
  }

  /** @throws Error that says that a key of the file has a value which is not supported. */
  refuse(key: string, what: string): never {
    throw new Error(`${this.#architecture}.${key} ${what}`);
  }
}

/** Returns the number with the fewest digits that rounds to this f32: the value that the file's author wrote (1e-5, say). */
function shortest(value: number): number {
  if (Number.isInteger(value) || Math.fround(value) !== value) return value;
  for (let digits = 1; digits < 9; digits++) {
    const candidate = Number(value.toPrecision(digits));
    if (Math.fround(candidate) === value) return candidate;
  }
  return value;
}
