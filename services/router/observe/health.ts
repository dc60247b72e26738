/** Health of the cluster in words: the alarms that last, the members that take no requests, and those that were lost. */
import type { Instance } from '../../../shared/placement/instance.ts';
import type { Health } from '../../../shared/protocol/router_api.ts';
import type { Alarms } from './alarms.ts';
import { nodeState } from './node_state.ts';

/** Problems that are named (P1). */
const MAX_PROBLEMS = 20;
/**
 * Members that are named of those that are sick, and of those that were lost: when a rack fails, alarms are still to be seen next to it.
 */
const MAX_NAMED = 6;

/**
 * Returns the health of the cluster at router time `nowMs`: `down` when no request can be answered, `degraded` when something is wrong.
 * `lost` has a sentence for each member that was lost and has not come back.
 */
export function healthOf(
  instances: readonly Instance[],
  alarms: Pick<Alarms, 'lasting'>,
  {
    isDraining,
    nowMs,
    lost,
  }: { readonly isDraining: boolean; readonly nowMs: number; readonly lost: readonly string[] },
): Health {
  const fatal = alarms.lasting.filter(({ isFatal }) => isFatal);
  const others = alarms.lasting.filter(({ isFatal }) => !isFatal);
  const sick = instances.flatMap((instance) => {
    const { name } = instance.member;
    const state = nodeState(instance, nowMs);
    if (state === 'unreachable') return [`${name} cannot be reached: ${instance.unreachable ?? ''}`];
    if (state === 'suspect') return [`${name} is suspect: it did not answer, or sends no heartbeats`];
    return [];
  });
  const problems = [
    ...fatal.map(({ text }) => text),
    ...(isDraining ? ['This router drains: it takes no new requests'] : []),
    ...firstOf(sick, 'that are suspect or cannot be reached'),
    ...firstOf(lost, 'that were lost and have not come back'),
    ...others.map(({ text }) => text),
  ];
  const left = problems.length - MAX_PROBLEMS;
  return {
    state: fatal.length > 0 || isDraining ? 'down' : problems.length > 0 ? 'degraded' : 'ok',
    problems: left > 0 ? [...problems.slice(0, MAX_PROBLEMS), `and ${left} more`] : problems,
  };
}

/** Returns the first few sentences about members, and the number of further ones in words. */
function firstOf(sentences: readonly string[], what: string): string[] {
  const left = sentences.length - MAX_NAMED;
  if (left <= 0) return [...sentences];
  return [...sentences.slice(0, MAX_NAMED), `${left} more ${left === 1 ? 'member' : 'members'} ${what}`];
}
