/**
 * Records the last placement that has arrived here from each router. Heartbeats report the numbers, so that a router can add its
 * placements that are still on their way to the reported load.
 */
import type { RequestContext } from '../protocol/messages.ts';

/** Most routers whose placements are counted (P1); beyond it the least recently heard one is forgotten. */
const MAX_ROUTERS = 64;

/** Last placement number received from each router. */
export class RoutersSeen {
  /** Last placement number by router; the router heard most recently is at the end. */
  readonly #last = new Map<string, number>();

  /** Records the placement number of a call that has arrived. */
  saw({ router, placement }: Pick<RequestContext, 'router' | 'placement'>): void {
    const last = this.#last.get(router) ?? 0;
    this.#last.delete(router);
    this.#last.set(router, Math.max(last, placement));
    const [oldest] = this.#last.keys();
    if (this.#last.size > MAX_ROUTERS && oldest !== undefined) this.#last.delete(oldest);
  }

  get placements(): Readonly<Record<string, number>> {
    return Object.fromEntries(this.#last);
  }
}
