/**
 * Serves the Forget call of a router: has the blocks of a tenant deleted at every engine and store. Engines come first, so that none offers
 * the blocks to a store that has just deleted them. Nothing is kept: a member that could not be reached is named in the answer, and the
 * call is made again.
 */
import { asFailure, Failure } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import { answeringOnce, askOnce, type Handler, type Network } from '../../../shared/net/network.ts';
import type { Member } from '../../../shared/protocol/membership.ts';
import type { ForgetOutcome } from '../../../shared/protocol/messages.ts';

/** Milliseconds that a member has: a store waits for readers, and writes its list of keys. */
const MEMBER_TIMEOUT_MS = 60_000;

/** Dependencies of the call. */
export interface ForgetTenantOptions {
  readonly view: { all(): readonly { readonly member: Member }[] };
  readonly network: Network;
  readonly log: Log;
  /** Whether a tenant shares its blocks with others, so that they cannot be told apart; by default only the empty name does. */
  readonly sharesBlocks?: (tenant: string) => boolean;
}

/** Returns the handler of a router's Forget calls. */
export function serveForget({
  view,
  network,
  log,
  sharesBlocks = (tenant) => tenant === '',
}: ForgetTenantOptions): Handler<'forget'> {
  const at = async (member: Member, tenant: string, signal: AbortSignal): Promise<ForgetOutcome> => {
    const { name, role, address } = member;
    const nothing = { blocks: 0, bytes: 0, inUse: 0, isFinal: false };
    try {
      const { outcomes } = await askOnce(
        network,
        address,
        'forget',
        { tenant },
        { signal, timeoutMs: MEMBER_TIMEOUT_MS },
      );
      const [outcome] = outcomes;
      if (!outcome) throw new Failure('internal', 'it has answered without an outcome');
      return { ...outcome, member: name, role };
    } catch (error) {
      return { ...nothing, member: name, role, error: asFailure(error).message };
    }
  };
  return answeringOnce<'forget'>(async ({ tenant }, { signal }) => {
    // The request of a caller may lack the field.
    if (!tenant) throw new Failure('invalid_request', 'name the tenant whose blocks are to be deleted');
    if (sharesBlocks(tenant)) {
      throw new Failure(
        'invalid_request',
        `the tenant ${JSON.stringify(tenant)} shares its blocks with others (sharing: all), so its own cannot be told apart`,
      );
    }
    const members = view.all().map(({ member }) => member);
    const engines = await Promise.all(
      members.filter(({ role }) => role !== 'store').map((one) => at(one, tenant, signal)),
    );
    const stores = await Promise.all(
      members.filter(({ role }) => role === 'store').map((one) => at(one, tenant, signal)),
    );
    const outcomes = [...engines, ...stores];
    const failed = outcomes.filter(({ error }) => error !== '').map(({ member }) => member);
    log.info({ tenant, members: outcomes.length, failed }, 'deleted the blocks of a tenant');
    return { outcomes };
  });
}
