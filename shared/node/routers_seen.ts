/** How far each router's placements have come, as heartbeats say it: a router counts those that are still on their way itself. */
import type { RequestContext } from '../protocol/messages.ts';

/** Most routers whose placements are counted (P1); beyond it the least recently heard one is forgotten. */
const MAX_ROUTERS = 64;

/** Last placement number received from each router. */
export class RoutersSeen {
  /** The last placement that came from each, who was heard of last at the end. */
  readonly #last = new Map<string, number>();

  /** A call of that router's has come. */
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
