/**
 * Prints repetitions with large bounds. One rule per time would cost the library a mask of the whole vocabulary each, so the first
 * times are counted by rules that double: `exactly 2n` is `exactly n` twice, `up to n` is a choice of halves; only the last TAIL times are
 * printed one by one, where a token may be longer than what is left. Compiling takes the same time for every bound.
 *
 * The unit that the doubled rules share has a lookahead, so that tokens of several characters are judged when the grammar is compiled. The
 * library believes a lookahead where the rule has one use that is not the last of its rule, and it moves small rules that come first into
 * their users, so the unit stands between two empty rules. Tokens of more than TAIL + 1 units are never allowed inside such
 * a repetition: shorter ones spell the same text.
 */
import { byteClass, type ExpressionPrinter, type Following, joinParts, literal } from './ebnf_rules.ts';
import { type Expression, isEmpty } from './grammar.ts';
import { SPECIAL_START } from './special_token_bytes.ts';
import { byteAutomaton, type ByteRange } from './utf8_bytes.ts';

/** Units at the end that are counted one by one. */
const TAIL = 16;
/** A byte that UTF-8 never has. */
const NO_BYTE = byteClass([[0xff, 0xff]]);

/** How often something is repeated. */
interface Times {
  readonly item: Expression;
  readonly min: number;
  readonly max: number;
}

/** Returns the alternatives of the item repeated, then rule `next`. `following`: the expression that `next` begins with. */
export function printCounter(
  printer: ExpressionPrinter,
  { item, min, max }: Times,
  next: string,
  following: Following,
): string[] {
  if (!isUnit(item)) {
    const unit = printer.rules.shared(printer.alternatives(item, ''));
    return new Counter(printer, unit).between(min, max, next);
  }
  const stop = stopBytes(printer, item, following);
  if (stop === undefined) return printer.steps(item, min, max, next);
  // The last TAIL times, by how many there have been.
  const counted = max - TAIL;
  const tail = printer.rules.continuation(printer.steps(item, Math.max(0, min - counted), TAIL, next));
  // One character that follows is what a lookahead ends with, too: then the tail is one.
  const isOneByte =
    following !== 'end' &&
    following?.kind === 'text' &&
    printer.rules.isShared(next, [literal(following.text[0] ?? '')]);
  const ahead = isOneByte && min <= counted ? tail : lookahead(printer, item, stop);
  const counter = new Counter(printer, counterUnit(printer, item, ahead));
  if (min >= counted) return [joinParts(counter.exactly(counted), tail)];
  const few = counter.between(min, counted - 1, next);
  return [...few, joinParts(counter.exactly(counted), tail)];
}

/** Returns the alternatives of `min` times the item, then rule `loop`: more of them, then what begins with `following`. */
export function printAtLeast(
  printer: ExpressionPrinter,
  item: Expression,
  min: number,
  loop: string,
  following: Following,
): string[] {
  const stop = isUnit(item) ? stopBytes(printer, item, following) : undefined;
  if (isUnit(item) && !stop) return printer.steps(item, min, min, loop);
  const unit = stop
    ? counterUnit(printer, item, lookahead(printer, item, stop))
    : printer.rules.shared(printer.alternatives(item, ''));
  return new Counter(printer, unit).between(min, min, loop);
}

/** Whether an expression is a small choice of texts, whose tokens are judged when the grammar is compiled. */
function isUnit(expression: Expression): boolean {
  switch (expression.kind) {
    case 'text':
      return !isEmpty(expression);
    case 'set':
      return true;
    case 'sequence':
    case 'choice':
      return expression.items.length > 0 && expression.items.every(isUnit);
    case 'repeat':
      return expression.min > 0 && expression.max !== undefined && expression.max <= 8 && isUnit(expression.item);
    case 'special':
    case 'rule':
      return false;
  }
}

/** The unit between empty rules, with a lookahead that the library believes. */
function counterUnit(printer: ExpressionPrinter, item: Expression, ahead: string): string {
  const { rules } = printer;
  const units = printer.alternatives(item, '');
  const key = `${units.join(' | ')} (= ${ahead})`;
  return rules.once(key, () => {
    const [unit, name] = [rules.newName('u'), rules.newName('c')];
    const empty = rules.shared(['']);
    rules.define(unit, units, ahead);
    rules.define(name, [`${empty} ${unit} ${empty}`]);
    return name;
  });
}

/** Up to TAIL units, then a byte of what follows, if anything does. */
function lookahead(printer: ExpressionPrinter, item: Expression, stop: readonly ByteRange[]): string {
  const ends = stop.length > 0 ? [byteClass(stop)] : [];
  let alternatives = [...ends, NO_BYTE];
  for (let i = 0; i < TAIL; i++)
    alternatives = [...ends, ...printer.alternatives(item, printer.rules.shared(alternatives))];
  return printer.rules.shared(alternatives);
}

/** Counts a rule by doubling. */
class Counter {
  readonly #printer: ExpressionPrinter;
  readonly #unit: string;

  constructor(printer: ExpressionPrinter, unit: string) {
    this.#printer = printer;
    this.#unit = unit;
  }

  /** The name of a rule that matches the unit `times` times, at least once. */
  exactly(times: number): string {
    if (times <= 1) return times === 1 ? this.#unit : '';
    const half = times >> 1;
    return this.#printer.rules.shared([joinParts(this.exactly(half), this.exactly(times - half))]);
  }

  /** The name of a rule that matches the unit at most `times` times; each number in one way. */
  upTo(times: number): string {
    if (times <= 0) return '';
    if (times === 1) return this.#printer.rules.shared(['', this.#unit]);
    const half = Math.ceil(times / 2);
    return this.#printer.rules.shared([this.upTo(half - 1), joinParts(this.exactly(half), this.upTo(times - half))]);
  }

  between(min: number, max: number, next: string): string[] {
    return [joinParts(joinParts(this.exactly(min), this.upTo(max - min)), next)];
  }
}

/**
 * The bytes that what follows the repetition begins with: none at the end of the whole text. Undefined where they are not known, or where
 * the item begins with one of them, too.
 */
function stopBytes(
  printer: ExpressionPrinter,
  item: Expression,
  following: Following,
): readonly ByteRange[] | undefined {
  if (following === 'end') return [];
  const [stop, first] = [firstBytes(printer, following, 0), firstBytes(printer, item, 0)];
  if (!stop || !first) return undefined;
  const overlaps = stop.some(([a, b]) => first.some(([c, d]) => a <= d && c <= b));
  return overlaps ? undefined : stop;
}

/** Rules that are followed to find how an expression begins. */
const MAX_FOLLOWED = 4;

function firstBytes(printer: ExpressionPrinter, expression: Following, depth: number): ByteRange[] | undefined {
  if (expression === undefined || expression === 'end') return undefined;
  switch (expression.kind) {
    case 'text': {
      const [byte] = new TextEncoder().encode(expression.text.slice(0, 2));
      return byte === undefined ? undefined : [[byte, byte]];
    }
    case 'special':
      return [[SPECIAL_START, SPECIAL_START]];
    case 'set':
      return byteAutomaton(expression.set).edges.flatMap(({ ranges }) => ranges);
    case 'choice':
      return unionOfAll(expression.items.map((item) => firstBytes(printer, item, depth)));
    case 'sequence':
      return firstBytes(printer, expression.items[0], depth);
    case 'repeat':
      return expression.min === 0 ? undefined : firstBytes(printer, expression.item, depth);
    case 'rule':
      return depth < MAX_FOLLOWED ? firstBytes(printer, printer.bodyOf(expression.name), depth + 1) : undefined;
  }
}

function unionOfAll(all: readonly (ByteRange[] | undefined)[]): ByteRange[] | undefined {
  return all.every((one) => one !== undefined) ? all.flat() : undefined;
}
