import type { Clock } from './clock.ts';
import type { Random } from './random.ts';

/** Waits between half of `ms` and all of it, so that callers refused together do not retry together. */
export function pause(clock: Pick<Clock, 'sleep'>, random: Random, ms: number, signal?: AbortSignal): Promise<void> {
  return clock.sleep(ms / 2 + random.below(Math.ceil(ms / 2) + 1), signal);
}
