/**
 * What work costs where, as the reports of calls that ended tell it: a step-time model of one number, and a link's of another. Control
 * has its own copy of what people read elsewhere.
 */
import type { Report } from '../../../shared/protocol/messages.ts';

/** Of a new measurement; the rest is what was known. */
const SHARE = 0.2;
/** Fewer tokens than this say more about a step's fixed cost than about a token's. */
const MIN_TOKENS = 8;

/** Undefined where nothing was measured yet. */
export interface Price {
  /** Of a token that is computed there, ms. */
  readonly computeMs: number | undefined;
  /** Of a token whose KV is fetched from elsewhere, ms. */
  readonly fetchMs: number | undefined;
}

const UNKNOWN: Price = { computeMs: undefined, fetchMs: undefined };

export class Prices {
  /** By incarnation; those that left are forgotten (P1). */
  readonly #prices = new Map<string, Price>();

  of(id: string): Price {
    return this.#prices.get(id) ?? UNKNOWN;
  }

  /** A call there has ended. */
  learn(id: string, { computedTokens, computeMs, fetchedTokens, loadMs }: Report): void {
    const known = this.of(id);
    this.#prices.set(id, {
      computeMs: computedTokens >= MIN_TOKENS ? blend(known.computeMs, computeMs / computedTokens) : known.computeMs,
      fetchMs: fetchedTokens >= MIN_TOKENS ? blend(known.fetchMs, loadMs / fetchedTokens) : known.fetchMs,
    });
  }

  forget(id: string): void {
    this.#prices.delete(id);
  }
}

function blend(known: number | undefined, measured: number): number {
  return known === undefined ? measured : (1 - SHARE) * known + SHARE * measured;
}
