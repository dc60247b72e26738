/** Length of the context that a request needs of an instance. */
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { Generation } from './generation.ts';

/**
 * Returns the least maxModelLen of an instance for a request that has `numTokens` tokens already. A request without a limit accepts the
 * largest context in the cluster.
 */
export function neededLength(
  view: Pick<MembersView, 'generating'>,
  { isOpenEnded, request: { maxLength } }: Pick<Generation, 'isOpenEnded' | 'request'>,
  numTokens: number,
): number {
  const largest = Math.max(0, ...view.generating().map(({ maxModelLen }) => maxModelLen));
  return isOpenEnded && largest < maxLength ? Math.max(largest, numTokens + 1) : maxLength;
}
