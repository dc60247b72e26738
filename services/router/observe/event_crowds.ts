/**
 * Events that come in crowds: when many nodes do the same within a short time, as when a rack fails or a network breaks off, the first few
 * are told of singly and at once, and the others together.
 *
 *   the first MAX_SINGLE of a kind ──► at once
 *   more of them ──► held ──1 s later, then 2, 4, ... 16 s──► one event that tells of all
 *   none held for CALM_MS ──► from the beginning
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { EventKind } from '../../../shared/protocol/router_api.ts';

/** Events of a kind that are told of singly before further ones are held. Of two kinds at once the stream has room for all in one tick. */
const MAX_SINGLE = 8;
/** Milliseconds without more than MAX_SINGLE events of a kind after which it is no crowd any more. */
const CALM_MS = 10_000;
/** Milliseconds from an event that is held to the one that tells of it: the first and the longest. */
const HELD_MS = { first: 1_000, most: 16_000 };
/** Events that are held of a kind (P1). */
const MAX_HELD = 4_096;
/** Nodes that a text names. */
const MAX_NAMED = 3;

/** An event before it has its number and time; fields that are left out are null. */
export interface NewEvent {
  readonly kind: EventKind;
  readonly node?: string | undefined;
  readonly role?: string | undefined;
  readonly model?: string | undefined;
  readonly text: string;
}

/** Words for several nodes, with which a sentence goes on after their number. */
const WORDS: Partial<Record<EventKind, string>> = {
  joined: 'joined',
  left: 'said goodbye',
  lost: 'are lost',
  refused: 'were refused',
  suspect: 'are suspect',
  unreachable: 'cannot be reached',
  reachable: 'take requests again',
  draining: 'drain',
  error: 'had calls that failed',
  alarm: 'need attention',
  alarm_ended: 'need attention no more',
};

/** Events of one kind. */
interface Crowd {
  /** When the first of the events began that are told of singly. */
  sinceMs: number;
  numSingle: number;
  held: NewEvent[];
  /** When the first held one came, and for how long they are held. */
  heldMs: number;
  patienceMs: number;
}

/** Holds events back that come in crowds. Bounded by the kinds of events, and MAX_HELD of each. */
export class EventCrowds {
  readonly #clock: Pick<Clock, 'nowMs'>;
  readonly #crowds = new Map<EventKind, Crowd>();

  constructor(clock: Pick<Clock, 'nowMs'>) {
    this.#clock = clock;
  }

  /** Takes an event that is to be told of later; returns false for one that is to be told of now. Events of no node are told of now. */
  takes(event: NewEvent): boolean {
    const { kind, node } = event;
    if (node === undefined || WORDS[kind] === undefined) return false;
    const nowMs = this.#clock.nowMs();
    let crowd = this.#crowds.get(kind);
    if (!crowd || (crowd.held.length === 0 && nowMs - crowd.sinceMs >= CALM_MS)) {
      crowd = { sinceMs: nowMs, numSingle: 0, held: [], heldMs: 0, patienceMs: HELD_MS.first };
      this.#crowds.set(kind, crowd);
    }
    if (crowd.held.length === 0 && crowd.numSingle < MAX_SINGLE) {
      crowd.numSingle++;
      return false;
    }
    if (crowd.held.length === 0) crowd.heldMs = nowMs;
    if (crowd.held.length < MAX_HELD) crowd.held.push(event);
    return true;
  }

  /** Returns the events that tell of those held for long enough, and the nodes of each, and holds these no more. */
  due(): { readonly event: NewEvent; readonly nodes: readonly string[] }[] {
    const nowMs = this.#clock.nowMs();
    const due: ReturnType<EventCrowds['due']> = [];
    for (const crowd of this.#crowds.values()) {
      const { held, heldMs, patienceMs } = crowd;
      if (held.length === 0 || (nowMs - heldMs < patienceMs && held.length < MAX_HELD)) continue;
      due.push(together(held));
      Object.assign(crowd, { held: [], sinceMs: nowMs, patienceMs: Math.min(2 * patienceMs, HELD_MS.most) });
    }
    return due;
  }
}

/** Returns one event that tells of several of a kind. */
function together(held: readonly NewEvent[]): ReturnType<EventCrowds['due']>[number] {
  const nodes = [...new Set(held.map(({ node }) => node ?? ''))];
  const [first] = held as readonly [NewEvent];
  if (held.length === 1) return { event: first, nodes };
  const { kind } = first;
  const named = nodes.slice(0, MAX_NAMED).join(', ');
  const left = nodes.length - MAX_NAMED;
  const times = held.length > nodes.length ? `, ${held.length} times in all` : '';
  const text = `${nodes.length} ${nodes.length === 1 ? 'node' : 'nodes'} ${WORDS[kind] ?? kind}${times}: ${named}${left > 0 ? ` and ${left} others` : ''}. The first one: ${first.text}`;
  const common = (field: 'role' | 'model'): string | undefined =>
    held.every((event) => event[field] === first[field]) ? first[field] : undefined;
  return { event: { kind, role: common('role'), model: common('model'), text }, nodes };
}
