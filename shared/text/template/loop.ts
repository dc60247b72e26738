/** Jinja's `loop` variable. */
import type { Given } from './values.ts';
import { Method, Thing, Tuple, Undefined, equals, sizeOf, typeError, type Value } from './values.ts';

/** The `loop` variable inside a `for` loop: the position, the neighbouring items, the length and, for a recursive loop, the call. */
export class LoopContext extends Thing {
  readonly type = 'LoopContext';
  override readonly module = 'jinja2.runtime';
  override readonly call: (given: Given) => Value;
  #iterator: Iterator<Value>;
  #length: number | undefined;
  /** The next item, when it has been read ahead; undefined when it has not. */
  #after: IteratorResult<Value> | undefined;
  #before: Value | undefined;
  #current: Value | undefined;
  #changed: Tuple | undefined;
  #index0 = -1;
  readonly #depth0: number;

  /** @param recurse renders the loop for other items when the template calls `loop`; undefined when the loop is not recursive */
  constructor(over: Value, items: Iterable<Value>, depth0: number, recurse: ((items: Value) => Value) | undefined) {
    super();
    this.#iterator = items[Symbol.iterator]();
    this.#length = Array.isArray(items) ? items.length : sizeOf(over);
    this.#depth0 = depth0;
    this.call = (given) => {
      if (!recurse) throw typeError("The loop must have the 'recursive' marker to be called recursively.");
      return recurse(given.take('loop', ['iterable'], 1)[0] ?? null);
    };
  }

  /** Moves to the next item, which `item` then returns. @returns false when there is none */
  advance(): boolean {
    const next = this.#after ?? this.#iterator.next();
    this.#after = undefined;
    if (next.done === true) return false;
    this.#index0++;
    this.#before = this.#current;
    this.#current = next.value;
    return true;
  }

  get item(): Value {
    return this.#current ?? null;
  }

  override attribute(name: string): Value | undefined {
    switch (name) {
      case 'index':
        return BigInt(this.#index0 + 1);
      case 'index0':
        return BigInt(this.#index0);
      case 'length':
        return BigInt(this.length());
      case 'revindex':
        return BigInt(this.length() - this.#index0);
      case 'revindex0':
        return BigInt(this.length() - this.#index0 - 1);
      case 'first':
        return this.#index0 === 0;
      case 'last':
        return this.#peek().done === true;
      case 'previtem':
        return this.#index0 > 0 ? (this.#before ?? null) : new Undefined(() => 'there is no previous item');
      case 'nextitem': {
        const next = this.#peek();
        return next.done === true ? new Undefined(() => 'there is no next item') : next.value;
      }
      case 'depth':
        return BigInt(this.#depth0 + 1);
      case 'depth0':
        return BigInt(this.#depth0);
      case 'cycle':
        return new Method(name, this, (given) => this.#cycle(given));
      case 'changed':
        return new Method(name, this, (given) => this.#hasChanged(given));
      default:
        return undefined;
    }
  }

  /** Returns the number of items. When the iterable has no known length, all remaining items are read and kept. */
  length(): number {
    if (this.#length !== undefined) return this.#length;
    const rest: Value[] = [];
    for (let next = this.#iterator.next(); next.done !== true; next = this.#iterator.next()) rest.push(next.value);
    this.#iterator = rest[Symbol.iterator]();
    const ahead = this.#after && this.#after.done !== true ? 1 : 0;
    this.#length = rest.length + this.#index0 + 1 + ahead;
    return this.#length;
  }

  #peek(): IteratorResult<Value> {
    this.#after ??= this.#iterator.next();
    return this.#after;
  }

  #cycle({ positional }: Given): Value {
    if (positional.length === 0) throw typeError('no items for cycling given');
    return positional[this.#index0 % positional.length] ?? null;
  }

  #hasChanged({ positional }: Given): boolean {
    const value = new Tuple(positional);
    if (this.#changed && equals(this.#changed, value)) return false;
    this.#changed = value;
    return true;
  }

  override shown(): string {
    return `<LoopContext ${this.#index0 + 1}/${this.length()}>`;
  }
}
