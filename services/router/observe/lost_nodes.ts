/** Members that were lost and have not come back: the pool is smaller than it was, though every member that is left is well. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { MemberEvent } from '../cluster/member_changes.ts';

/** Milliseconds after which a lost member is taken for one that is not meant to come back. */
const KEEP_MS = 900_000;
/** Lost members that are remembered, the newest ones (P1). */
const MAX_LOST = 256;

interface Loss {
  readonly atMs: number;
  readonly role: string;
  readonly why: string;
}

/** Lost members by name, each until a member joins or leaves under the name, and for a quarter of an hour at most. */
export class LostNodes {
  readonly #clock: Pick<Clock, 'nowMs'>;
  readonly #losses = new Map<string, Loss>();

  constructor(clock: Pick<Clock, 'nowMs'>) {
    this.#clock = clock;
  }

  /** Takes notice of a change of the members. */
  note({ kind, member: { name, role }, why }: MemberEvent): void {
    if (kind === 'refused') return;
    this.#losses.delete(name);
    if (kind !== 'lost') return;
    this.#losses.set(name, { atMs: this.#clock.nowMs(), role, why });
    const [oldest] = this.#losses.keys();
    if (this.#losses.size > MAX_LOST && oldest !== undefined) this.#losses.delete(oldest);
  }

  /** Sentences about the lost members, those that were lost last first. */
  get sentences(): string[] {
    const nowMs = this.#clock.nowMs();
    for (const [name, { atMs }] of this.#losses) if (nowMs - atMs >= KEEP_MS) this.#losses.delete(name);
    return [...this.#losses].reverse().map(([name, { atMs, role, why }]) => {
      return `${name} (${role}) was lost ${agoOf(nowMs - atMs)} and has not come back: ${why}`;
    });
  }
}

function agoOf(ms: number): string {
  const minutes = Math.floor(ms / 60_000);
  return minutes === 0 ? 'less than a minute ago' : minutes === 1 ? 'a minute ago' : `${minutes} minutes ago`;
}
