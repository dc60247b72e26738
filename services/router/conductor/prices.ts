/**
 * Cost per token on each instance, as moving averages over the reports of ended calls: milliseconds per computed token and per fetched
 * token. Kept apart from the metrics that people read, so that control does not depend on them.
 */
import type { Report } from '../../../shared/protocol/messages.ts';

/** Weight of a new measurement in the moving average; the previous value keeps 1 - SHARE. */
const SHARE = 0.2;
/** Fewer tokens than this say more about a step's fixed cost than about a token's. */
const MIN_TOKENS = 8;

/** Measured cost per token on one instance; a field is undefined until its first measurement. */
export interface Price {
  /** Milliseconds per token computed on the instance. */
  readonly computeMs: number | undefined;
  /** Milliseconds per token whose KV the instance fetches from another holder. */
  readonly fetchMs: number | undefined;
}

const UNKNOWN: Price = { computeMs: undefined, fetchMs: undefined };

/** Prices of all instances of one model, updated from the reports of ended calls. */
export class Prices {
  /** Prices by instance id (one incarnation). Entries of instances that left are deleted, which bounds the map (P1). */
  readonly #prices = new Map<string, Price>();

  of(id: string): Price {
    return this.#prices.get(id) ?? UNKNOWN;
  }

  /** Updates the prices of an instance from the report of a call. */
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
