/** What has come over lanes, told of together: each message to another thread costs as much as some records do. */
import type { Clock } from '../../base/clock.ts';

/** Records that are told of together while more of them come, and how long the first of them waits for that. */
const TOLD_TOGETHER = 64;
const TOLD_WITHIN_MS = 1;

/** They are in their slots; `faults` say why some cannot be used. */
export interface ArrivedRecords {
  readonly lane: number;
  readonly stream: number;
  readonly indices: readonly number[];
  readonly faults: readonly (string | undefined)[];
  /** Through memory that both ends share; else over the socket. */
  readonly isShared: boolean;
}

type Group = ArrivedRecords & { readonly indices: number[]; readonly faults: (string | undefined)[] };

export class Arrivals {
  readonly #clock: Pick<Clock, 'turn' | 'sleep'>;
  readonly #emit: (arrivals: readonly ArrivedRecords[]) => void;
  #groups: Group[] = [];
  #numUntold = 0;
  #isTelling = false;

  constructor(clock: Pick<Clock, 'turn' | 'sleep'>, emit: (arrivals: readonly ArrivedRecords[]) => void) {
    this.#clock = clock;
    this.#emit = emit;
  }

  /** `isWaitedFor`: nothing else has to come before it can be used. */
  add(
    of: Pick<ArrivedRecords, 'lane' | 'stream' | 'isShared'>,
    index: number,
    fault: string | undefined,
    isWaitedFor: boolean,
  ): void {
    const { lane, stream, isShared } = of;
    let group = this.#groups.at(-1);
    if (group?.lane !== lane || group.stream !== stream || group.isShared !== isShared) {
      group = { lane, stream, indices: [], faults: [], isShared };
      this.#groups.push(group);
    }
    group.indices.push(index);
    group.faults.push(fault);
    this.#numUntold++;
    if (this.#isTelling) return;
    if (isWaitedFor || this.#numUntold >= TOLD_TOGETHER) {
      this.#isTelling = true;
      void this.#clock.turn().then(this.tell);
    } else if (this.#numUntold === 1) void this.#clock.sleep(TOLD_WITHIN_MS).then(this.tell);
  }

  readonly tell = (): void => {
    const groups = this.#groups;
    this.#groups = [];
    this.#numUntold = 0;
    this.#isTelling = false;
    if (groups.length > 0) this.#emit(groups);
  };
}
