/** Multiples of an integer within bounds, by the remainder of the digits so far. */
import { choice, EMPTY, type Expression, NEVER, oneOf, sequence, text } from '../grammar.ts';
import type { Conversion } from './conversion.ts';
import { codePoints } from '../code_points.ts';
import type { ScaledRange } from './decimal_range.ts';

/** Digits of a multiple that has no bound. */
const MAX_DIGITS = 9;

/** Returns how many rules {@link multiplesExpression} may need. */
export function multiplesCost(range: ScaledRange, modulus: number): number {
  const length = Math.max(
    ...[range.low, range.high].map((bound) => (bound === undefined ? MAX_DIGITS : digitsOf(bound))),
  );
  return modulus * length;
}

function digitsOf(bound: bigint): number {
  return (bound < 0n ? -bound : bound).toString().length;
}

/** Returns the multiples of `modulus` from low to high. */
export function multiplesExpression(
  { low, high }: ScaledRange,
  modulus: number,
  sink: Pick<Conversion, 'rule'>,
): Expression {
  const cap = 10n ** BigInt(Math.max(MAX_DIGITS, digitsOf(low ?? 0n), digitsOf(high ?? 0n))) - 1n;
  const [first, last] = [low ?? -cap, high ?? cap];
  const builder = new Multiples(modulus, sink);
  return choice(
    first <= 0n && last >= 0n ? text('0') : NEVER,
    last > 0n ? builder.between(first > 0n ? first : 1n, last) : NEVER,
    first < 0n ? sequence(text('-'), builder.between(last < 0n ? -last : 1n, -first)) : NEVER,
  );
}

class Multiples {
  readonly #modulus: number;
  readonly #sink: Pick<Conversion, 'rule'>;

  constructor(modulus: number, sink: Pick<Conversion, 'rule'>) {
    this.#modulus = modulus;
    this.#sink = sink;
  }

  /** Multiples from low to high, both positive. */
  between(low: bigint, high: bigint): Expression {
    const alternatives: Expression[] = [];
    for (let length = low.toString().length; length <= high.toString().length; length++) {
      const [least, most] = [10n ** BigInt(length - 1), 10n ** BigInt(length) - 1n];
      const [from, to] = [low > least ? low : least, high < most ? high : most];
      if (from <= to) alternatives.push(this.#digits(from.toString(), to.toString(), 0));
    }
    return choice(...alternatives);
  }

  /** Digits from `low` to `high` after digits with this remainder; `undefined`: that side is free. */
  #digits(low: string, high: string, remainder: number): Expression {
    const left = low.length;
    if (left === 0) return remainder === 0 ? EMPTY : NEVER;
    if (/^0*$/.test(low) && /^9*$/.test(high))
      return this.#sink.rule(`multiple of ${this.#modulus}: ${left} digits after ${remainder}`, () =>
        this.#free(left, remainder),
      );
    return this.#step(low, high, remainder);
  }

  #step(low: string, high: string, remainder: number): Expression {
    const [first, last] = [Number(low[0]), Number(high[0])];
    const [zeros, nines] = ['0'.repeat(low.length - 1), '9'.repeat(low.length - 1)];
    const alternatives: Expression[] = [];
    for (let digit = first; digit <= last; digit++) {
      const lows = digit === first ? low.slice(1) : zeros;
      const highs = digit === last ? high.slice(1) : nines;
      alternatives.push(
        sequence(text(String(digit)), this.#digits(lows, highs, (remainder * 10 + digit) % this.#modulus)),
      );
    }
    return choice(...alternatives);
  }

  #free(left: number, remainder: number): Expression {
    const byNext = new Map<number, number[]>();
    for (let digit = 0; digit <= 9; digit++) {
      const next = (remainder * 10 + digit) % this.#modulus;
      byNext.set(next, [...(byNext.get(next) ?? []), digit]);
    }
    const [zeros, nines] = ['0'.repeat(left - 1), '9'.repeat(left - 1)];
    return choice(
      ...[...byNext].map(([next, digits]) =>
        sequence(
          oneOf(codePoints(digits.map((digit) => [0x30 + digit, 0x30 + digit]))),
          this.#digits(zeros, nines, next),
        ),
      ),
    );
  }
}
