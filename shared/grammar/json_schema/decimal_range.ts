/** Decimal numbers within bounds as expressions of their digits, exactly. Integers are numbers without digits after the point. */
import { DIGIT, MAX_INTEGER_DIGITS, MAX_NUMBER_DIGITS, NONZERO } from '../any_json.ts';
import { codePoints } from '../code_points.ts';
import { choice, EMPTY, type Expression, NEVER, oneOf, optional, repeat, sequence, text } from '../grammar.ts';

/** A bound, and whether the number itself is out. */
export interface Bound {
  readonly value: number;
  readonly isExclusive: boolean;
}

/** Bounds scaled to integers; undefined: none. */
export interface ScaledRange {
  readonly low: bigint | undefined;
  readonly high: bigint | undefined;
  /** Digits after the point. */
  readonly digits: number;
}

/** Doubles above this have no digit after the point, and not every integer. */
const EXACT = 2 ** 53;

/** Returns the range of integers, or of numbers with so many digits that no two of them are the same double. */
export function scaledRange(lower: Bound | undefined, upper: Bound | undefined, isInteger: boolean): ScaledRange {
  const magnitude = Math.max(1, ...[lower, upper].flatMap((bound) => (bound ? [Math.abs(bound.value)] : [])));
  const whole = Math.ceil(Math.log10(magnitude + 1));
  const digits = isInteger ? 0 : Math.max(0, MAX_NUMBER_DIGITS - whole);
  return {
    low: lower && scaledUp(lower, digits),
    high: upper && -scaledUp({ value: -upper.value, isExclusive: upper.isExclusive }, digits),
    digits,
  };
}

/** The least integer i with i / 10^digits at or, if exclusive, above the bound. */
function scaledUp({ value, isExclusive }: Bound, digits: number): bigint {
  const { mantissa, exponent } = decimalOf(value);
  const shift = exponent + digits;
  const unit = 10n ** BigInt(Math.abs(shift));
  const scaled = shift >= 0 ? mantissa * unit : -floorDiv(-mantissa, unit);
  const isExact = shift >= 0 || mantissa % unit === 0n;
  if (!isExclusive || !isExact) return scaled;
  // Integers next to a large double are read as that double.
  const gap = Math.abs(value) >= EXACT ? BigInt(Math.ceil(Math.abs(value) * 2 ** -51)) : 1n;
  return scaled + gap;
}

/** A double as mantissa × 10^exponent, as it is written in JSON. */
function decimalOf(value: number): { mantissa: bigint; exponent: number } {
  const [, sign = '', whole = '0', fraction = '', exponent = '0'] =
    /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/.exec(String(value)) ?? [];
  return { mantissa: BigInt(`${sign}${whole}${fraction}`), exponent: Number(exponent) - fraction.length };
}

function floorDiv(a: bigint, b: bigint): bigint {
  const quotient = a / b;
  return a % b !== 0n && a < 0n !== b < 0n ? quotient - 1n : quotient;
}

/** Returns the expression of the numbers in a range, without leading zeros and without `-0`. */
export function rangeExpression({ low, high, digits }: ScaledRange): Expression {
  const one = 10n ** BigInt(digits);
  const cap = capOf(low, high, digits);
  const [first, last] = [low ?? -cap, high ?? cap];
  if (first > last) return NEVER;
  const negative = first < 0n ? unsigned(last < 0n ? -last : 1n, -first, digits, one) : NEVER;
  const positive = last >= 0n ? unsigned(first > 0n ? first : 0n, last, digits, one) : NEVER;
  return choice(positive, sequence(text('-'), negative));
}

/** The largest magnitude where there is no bound. */
function capOf(low: bigint | undefined, high: bigint | undefined, digits: number): bigint {
  const usual = (digits === 0 ? MAX_INTEGER_DIGITS : MAX_NUMBER_DIGITS) + digits;
  const longest = Math.max(usual, ...[low, high].map((bound) => (bound ?? 0n).toString().length + 1));
  return 10n ** BigInt(longest) - 1n;
}

/** low / one to high / one, both at least 0. */
function unsigned(low: bigint, high: bigint, digits: number, one: bigint): Expression {
  if (low > high) return NEVER;
  const [first, last] = [low / one, high / one];
  const [from, to] = [low % one, high % one].map((rest) => rest.toString().padStart(digits, '0'));
  if (digits === 0) return integersBetween(first, last);
  if (first === last) return sequence(text(first.toString()), fraction(from, to, digits));
  // Integers whose every fraction is in the range.
  const [isFirstWhole, isLastWhole] = [/^0*$/.test(from ?? ''), /^9*$/.test(to ?? '')];
  const between = integersBetween(isFirstWhole ? first : first + 1n, isLastWhole ? last : last - 1n);
  return choice(
    sequence(between, fraction(undefined, undefined, digits)),
    isFirstWhole ? NEVER : sequence(text(first.toString()), fraction(from, undefined, digits)),
    isLastWhole ? NEVER : sequence(text(last.toString()), fraction(undefined, to, digits)),
  );
}

/** Returns the integers from low to high, both at least 0. */
function integersBetween(low: bigint, high: bigint): Expression {
  if (low > high) return NEVER;
  const alternatives: Expression[] = low === 0n ? [text('0')] : [];
  const first = low === 0n ? 1n : low;
  /** Consecutive lengths that have all their numbers. */
  let whole: [number, number] | undefined;
  for (let length = first.toString().length; length <= high.toString().length; length++) {
    const [least, most] = [10n ** BigInt(length - 1), 10n ** BigInt(length) - 1n];
    const [from, to] = [first > least ? first : least, high < most ? high : most];
    if (from > to) continue;
    if (from === least && to === most) whole = [whole?.[0] ?? length, length];
    else alternatives.push(digitsBetween(from.toString(), to.toString()));
  }
  if (whole) alternatives.push(sequence(NONZERO, repeat(DIGIT, whole[0] - 1, whole[1] - 1)));
  return choice(...alternatives);
}

/** Texts of digits of one length between two. */
function digitsBetween(low: string, high: string): Expression {
  const length = low.length;
  if (length === 0) return EMPTY;
  if (/^0*$/.test(low) && /^9*$/.test(high)) return repeat(DIGIT, length, length);
  const [first, last] = [Number(low[0]), Number(high[0])];
  const [lows, highs] = [low.slice(1), high.slice(1)];
  const [zeros, nines] = ['0'.repeat(length - 1), '9'.repeat(length - 1)];
  if (first === last) return sequence(text(String(first)), digitsBetween(lows, highs));
  const isFirstWhole = lows === zeros;
  const isLastWhole = highs === nines;
  return choice(
    isFirstWhole ? NEVER : sequence(text(String(first)), digitsBetween(lows, nines)),
    sequence(
      digitSet(isFirstWhole ? first : first + 1, isLastWhole ? last : last - 1),
      repeat(DIGIT, length - 1, length - 1),
    ),
    isLastWhole ? NEVER : sequence(text(String(last)), digitsBetween(zeros, highs)),
  );
}

/** Returns one digit from `first` to `last`. */
function digitSet(first: number, last: number): Expression {
  return first > last ? NEVER : oneOf(codePoints([[0x30 + first, 0x30 + last]]));
}

/** The point and the digits after it, at least `low` and at most `high`, where there are bounds. */
function fraction(low: string | undefined, high: string | undefined, digits: number): Expression {
  if (low === undefined && high === undefined) return optional(sequence(text('.'), repeat(DIGIT, 1, digits)));
  const isZeroIn = low === undefined || /^0*$/.test(low);
  return choice(isZeroIn ? EMPTY : NEVER, sequence(text('.'), nextDigit(low, high, digits)));
}

/** At least one digit of those that are left. */
function nextDigit(low: string | undefined, high: string | undefined, digits: number): Expression {
  if (digits === 0) return NEVER;
  if (low === undefined && high === undefined) return repeat(DIGIT, 1, digits);
  const [first, last] = [Number(low?.[0] ?? 0), Number(high?.[0] ?? 9)];
  const tail = (lows: string | undefined, highs: string | undefined): Expression =>
    choice(lows === undefined || /^0*$/.test(lows) ? EMPTY : NEVER, nextDigit(lows, highs, digits - 1));
  const [lows, highs] = [low?.slice(1), high?.slice(1)];
  if (first === last && low !== undefined && high !== undefined)
    return sequence(text(String(first)), tail(lows, highs));
  return choice(
    low === undefined ? NEVER : sequence(text(String(first)), tail(lows, undefined)),
    sequence(
      digitSet(low === undefined ? first : first + 1, high === undefined ? last : last - 1),
      tail(undefined, undefined),
    ),
    high === undefined ? NEVER : sequence(text(String(last)), tail(undefined, highs)),
  );
}
