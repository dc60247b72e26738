/**
 * Samples of one prompt, as the router places them: in each round one of them, the leader, is placed like any request, and the others
 * go to the decode instance that it got, where they start from its blocks (shared/engine/sample_groups.ts).
 *
 *   first to be placed ──► leads ──conductor──► decode instance ◄── the others follow, without sources
 *                                                     │ lost, or busy
 *                                                     └──► whoever is placed first again leads the next round
 *
 * Every sample is a request of its own otherwise: its failover, its stop and its tokens depend on no other sample.
 */
import type { SampleGroupMessage } from '../../../shared/protocol/messages.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';
import type { FullBlocks } from './request_chain.ts';

/** Where a request was placed: the instances, its full blocks, and its membership in a group of samples. */
export interface Placed {
  readonly chosen: Chosen;
  readonly blocks: FullBlocks;
  /** Number of tokens, prompt and output, that the blocks are those of. */
  readonly numTokens: number;
  readonly group?: SampleGroupMessage | undefined;
}

/** How a sample is placed: by the conductor, or at the instance of its leader. */
export interface SamplePlacement {
  /** Whether the sample may run on the instance. */
  readonly mayFollow: (decode: Instance) => boolean;
  readonly lead: () => Promise<Placed>;
  /** `leader` is the leader's placement. */
  readonly follow: (leader: Placed) => Promise<Placed>;
}

interface Round {
  readonly members: Set<object>;
  readonly placed: Promise<Placed>;
}

/** The samples of one prompt. */
export class SampleGroup {
  readonly #id: string;
  readonly #size: number;
  #round: Round | undefined;
  #numRounds = 0;

  /** `id` is the request's id, `size` the number of its samples. */
  constructor(id: string, size: number) {
    this.#id = id;
    this.#size = size;
  }

  /**
   * Places a sample: at the instance of this round's leader, or as the leader of another round when it has been part of this one, or
   * may not run there. @throws Failure of the leader's placement, which concerns all that follow.
   */
  async place(sample: object, { mayFollow, lead, follow }: SamplePlacement): Promise<Placed> {
    const round = this.#round;
    if (round && !round.members.has(sample)) {
      round.members.add(sample);
      const index = round.members.size - 1;
      const leader = await round.placed;
      const { group } = leader;
      if (group && mayFollow(leader.chosen.decode)) return { ...(await follow(leader)), group: { ...group, index } };
      // Another sample may have begun a round meanwhile.
      return this.place(sample, { mayFollow, lead, follow });
    }
    const number = ++this.#numRounds;
    // All samples are placed together in the first round only; in a later one the others may go on where they are.
    const group = { id: `${this.#id}.${number}`, index: 0, size: number === 1 ? this.#size : 1 };
    const placed = lead().then((one) => ({ ...one, group }));
    this.#round = { members: new Set([sample]), placed };
    return placed;
  }
}
