/** Batched reports of records received over data channels: one message to another thread costs as much as several records. */
import type { Clock } from '../../base/clock.ts';

/** Records that are reported together, and milliseconds that the first of them waits for others. */
const MAX_BATCH = 64;
const BATCH_WITHIN_MS = 1;

/** Records of one stream that are now in their slots. `faults` holds, for each, the reason why it cannot be used, or undefined. */
export interface ReceivedBatch {
  readonly channel: number;
  readonly stream: number;
  readonly indices: readonly number[];
  readonly faults: readonly (string | undefined)[];
  /** Through memory that both ends share; else over the socket. */
  readonly isShared: boolean;
}

type Group = ReceivedBatch & { readonly indices: number[]; readonly faults: (string | undefined)[] };

/**
 * Collects received records and emits them in batches: at the end of the event-loop turn when a record is waited for or MAX_BATCH
 * have come, else after BATCH_WITHIN_MS.
 */
export class ReceivedRecords {
  readonly #clock: Pick<Clock, 'turn' | 'sleep'>;
  readonly #emit: (incoming: readonly ReceivedBatch[]) => void;
  #groups: Group[] = [];
  #numPending = 0;
  #isEmitting = false;

  constructor(clock: Pick<Clock, 'turn' | 'sleep'>, emit: (incoming: readonly ReceivedBatch[]) => void) {
    this.#clock = clock;
    this.#emit = emit;
  }

  /**
   * Adds a received record. `isWaitedFor`: it can be used without waiting for others, so it is reported at the end of this event-loop
   * turn.
   */
  add(
    of: Pick<ReceivedBatch, 'channel' | 'stream' | 'isShared'>,
    index: number,
    fault: string | undefined,
    isWaitedFor: boolean,
  ): void {
    const { channel, stream, isShared } = of;
    let group = this.#groups.at(-1);
    if (group?.channel !== channel || group.stream !== stream || group.isShared !== isShared) {
      group = { channel, stream, indices: [], faults: [], isShared };
      this.#groups.push(group);
    }
    group.indices.push(index);
    group.faults.push(fault);
    this.#numPending++;
    if (this.#isEmitting) return;
    if (isWaitedFor || this.#numPending >= MAX_BATCH) {
      this.#isEmitting = true;
      void this.#clock.turn().then(this.notify);
    } else if (this.#numPending === 1) void this.#clock.sleep(BATCH_WITHIN_MS).then(this.notify);
  }

  readonly notify = (): void => {
    const groups = this.#groups;
    this.#groups = [];
    this.#numPending = 0;
    this.#isEmitting = false;
    if (groups.length > 0) this.#emit(groups);
  };
}
