/** Serves the Forget call of an engine or a store. */
import { Failure } from '../base/failure.ts';
import { tenantIdOf, type TenantId } from '../kv/block_key.ts';
import { answeringOnce, type Handler } from './network.ts';

/** Blocks of a tenant that a member has deleted; the fields are those of ForgetOutcome in penstock.proto. */
export interface Forgotten {
  readonly blocks: number;
  readonly bytes: number;
  readonly inUse: number;
  readonly isFinal: boolean;
}

/** Returns the handler of a member that deletes its own blocks of a tenant by `forget`. */
export function forgetHandler(
  forget: (tenant: TenantId, signal: AbortSignal) => Promise<Forgotten>,
): Handler<'forget'> {
  return answeringOnce<'forget'>(async ({ tenant }, { signal }) => {
    if (!tenant) throw new Failure('invalid_request', 'name the tenant whose blocks are to be deleted');
    const forgotten = await forget(tenantIdOf(tenant), signal);
    return { outcomes: [{ member: '', role: '', ...forgotten, error: '' }] };
  });
}
