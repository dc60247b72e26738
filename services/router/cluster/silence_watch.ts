/** Finds the members of a cluster of which nothing is heard any more. */
import { inStep, type Clock } from '../../../shared/base/clock.ts';
import type { Bus } from '../../../shared/bus/bus.ts';
import type { Instance } from '../../../shared/placement/instance.ts';

/** Milliseconds between two looks for silent members; one more comes where a member becomes silent between two. */
const CHECK_MS = 250;
/** Looks that are further apart mean that the router itself was stopped. */
const MAX_APART_MS = 600;
/** A member that becomes silent this shortly before a look is left to the look. */
const MAX_EARLY_MS = 10;

/** Dependencies of {@link watchSilence}. */
export interface SilenceWatchOptions {
  readonly bus: Pick<Bus, 'isConnected'>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** Milliseconds without a heartbeat after which a member is lost. */
  readonly silenceMs: number;
  /** Returns the members; a look changes when they were heard last, where no heartbeat could come. */
  readonly members: () => Iterable<Instance>;
  /** Called for each member that is lost: as soon as `silenceMs` have passed. */
  readonly onSilent: (instance: Instance) => void;
}

/** Looks for silent members until `signal` aborts. */
export function watchSilence({ bus, clock, signal, silenceMs, members, onSilent }: SilenceWatchOptions): void {
  let lookedMs = clock.nowMs();
  const look = (): void => {
    const nowMs = clock.nowMs();
    const sinceMs = nowMs - lookedMs;
    lookedMs = nowMs;
    if (!bus.isConnected) {
      // No heartbeat can arrive without the bus, so nobody is dropped; silence is counted anew after the reconnection.
      for (const instance of members()) instance.lastHeardMs = nowMs;
      return;
    }
    if (sinceMs > MAX_APART_MS) {
      // This process was stopped, not its members: their heartbeats of that time are still to be read.
      for (const instance of members()) instance.lastHeardMs += sinceMs;
      return;
    }
    for (const instance of [...members()]) if (instance.lastHeardMs < nowMs - silenceMs) onSilent(instance);
  };
  /** Looks whenever a member becomes silent before the next look. */
  const lookBetween = async (): Promise<void> => {
    const nextMs = clock.nowMs() + CHECK_MS - MAX_EARLY_MS;
    for (let beforeMs = -Infinity; ;) {
      const firstMs = Math.min(...[...members()].map(({ lastHeardMs }) => lastHeardMs));
      const dueMs = firstMs + silenceMs + 1;
      if (dueMs >= nextMs || dueMs <= beforeMs) return;
      beforeMs = dueMs;
      await clock.sleep(Math.ceil(dueMs - clock.nowMs()), signal);
      if (signal.aborted) return;
      look();
    }
  };
  inStep(clock, CHECK_MS, signal, () => {
    look();
    void lookBetween();
  });
}
