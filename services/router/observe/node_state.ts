/** State of a member in one word, as the pool view and the events show it. */
import { SILENT_MS, type Instance } from '../../../shared/placement/instance.ts';

/** State of a node: it is placed at only when it is `alive`. */
export type NodeState = 'alive' | 'draining' | 'suspect' | 'unreachable';

/**
 * Returns the state of a member at router time `nowMs`. A member is `suspect` after a call that failed, and when two heartbeats have not
 * come, before it is dropped.
 */
export function nodeState(instance: Instance, nowMs: number): NodeState {
  if (instance.unreachable !== undefined) return 'unreachable';
  if (instance.isSuspect || isSilent(instance, nowMs)) return 'suspect';
  return instance.load?.isDraining ? 'draining' : 'alive';
}

/** Whether two heartbeats of the member have not come. */
export function isSilent({ lastHeardMs }: Instance, nowMs: number): boolean {
  return nowMs - lastHeardMs > SILENT_MS;
}
