/**
 * Samples of one prompt: the leader computes the prompt, its followers wait for it and start from its blocks.
 *
 *   join ──► follows ──the leader samples──► forked (engine.ts): shares the leader's blocks, sampled from the same row
 *                 │                     └──► queued like any sequence once that step has returned, and hits the prompt's full blocks
 *                 └──the leader leaves─────► the first of them leads
 *
 * A leader samples only when its group is complete, at most GROUP_WAIT_MS after the first member came (P1).
 */
import type { Clock } from '../base/clock.ts';
import { DONE } from '../base/signal.ts';
import type { SampleGroupMessage } from '../protocol/messages.ts';
import type { Sequence } from './sequence.ts';

/** Milliseconds that a leader waits for the members of its group; their calls are sent together. */
const GROUP_WAIT_MS = 1_000;
/** Ids of groups that have ended which are kept, so that a late member does not wait for a leader (P1). */
const MAX_ENDED = 1_024;

const NO_FOLLOWERS: readonly Sequence[] = [];

interface Group {
  readonly id: string;
  /** Members for which the leader waits. */
  readonly size: number;
  leader: Sequence | undefined;
  readonly followers: Sequence[];
  numJoined: number;
  isExpired: boolean;
  /** Ends the wait. */
  readonly waiting: AbortController;
}

/** Role of a member when it joins; `alone`: its group has ended, or has a leader already. */
export type GroupRole = 'leads' | 'follows' | 'alone';

/** The groups whose leader has not sampled yet. */
export class SampleGroups {
  readonly #clock: Pick<Clock, 'sleep'>;
  /** Called when a group has waited long enough: `leader` is the follower that leads from now on, if its leader never came. */
  readonly #onExpired: (leader: Sequence | undefined) => void;
  readonly #groups = new Map<string, Group>();
  readonly #groupOf = new Map<Sequence, Group>();
  readonly #ended = new Set<string>();
  #numFollowing = 0;

  constructor(clock: Pick<Clock, 'sleep'>, onExpired: (leader: Sequence | undefined) => void) {
    this.#clock = clock;
    this.#onExpired = onExpired;
  }

  /** Number of sequences that wait for their leader to sample. */
  get numFollowing(): number {
    return this.#numFollowing;
  }

  /** Whether no group waits. */
  get isEmpty(): boolean {
    return this.#groups.size === 0;
  }

  /** Adds a member to its group. A sequence that follows is not queued. */
  join(sequence: Sequence, { id, index, size }: SampleGroupMessage): GroupRole {
    if (this.#ended.has(id)) return 'alone';
    const group = this.#groups.get(id) ?? this.#begin(id, size);
    if (index === 0 && group.leader) return 'alone';
    group.numJoined++;
    this.#groupOf.set(sequence, group);
    if (index === 0) {
      group.leader = sequence;
      return 'leads';
    }
    group.followers.push(sequence);
    this.#numFollowing++;
    return 'follows';
  }

  #begin(id: string, size: number): Group {
    const waiting = new AbortController();
    const group: Group = { id, size, leader: undefined, followers: [], numJoined: 0, isExpired: false, waiting };
    this.#groups.set(id, group);
    void this.#clock.sleep(GROUP_WAIT_MS, waiting.signal).then(() => {
      if (waiting.signal.aborted) return;
      group.isExpired = true;
      this.#onExpired(group.leader ? undefined : this.#promote(group));
    });
    return group;
  }

  /**
   * Whether the sequence may sample: it leads no group, or all members of its group have come and know their masks, or it has waited
   * long enough.
   */
  maySample(sequence: Sequence): boolean {
    const group = this.#groupOf.get(sequence);
    if (!group || group.isExpired) return true;
    return group.numJoined >= group.size && group.followers.every(({ constraint }) => constraint?.isReady !== false);
  }

  /** Ends the group that the sequence leads, and returns its followers. */
  end(leader: Sequence): readonly Sequence[] {
    const group = this.#groupOf.get(leader);
    if (!group) return NO_FOLLOWERS;
    this.#forget(group);
    return group.followers;
  }

  /** Removes a member that was cancelled. Returns the follower that leads in its place, which has to be queued now. */
  leave(sequence: Sequence): Sequence | undefined {
    const group = this.#groupOf.get(sequence);
    if (!group) return undefined;
    this.#groupOf.delete(sequence);
    if (group.leader === sequence) return this.#promote(group);
    group.followers.splice(group.followers.indexOf(sequence), 1);
    this.#numFollowing--;
    // A group without a leader is kept while its leader may still come.
    return undefined;
  }

  #promote(group: Group): Sequence | undefined {
    const next = group.followers.shift();
    group.leader = next;
    if (next) this.#numFollowing--;
    else this.#forget(group);
    return next;
  }

  #forget(group: Group): void {
    group.waiting.abort(DONE);
    this.#groups.delete(group.id);
    if (group.leader) this.#groupOf.delete(group.leader);
    for (const follower of group.followers) this.#groupOf.delete(follower);
    this.#numFollowing -= group.followers.length;
    this.#ended.add(group.id);
    const [oldest] = this.#ended;
    if (this.#ended.size > MAX_ENDED && oldest !== undefined) this.#ended.delete(oldest);
  }
}
