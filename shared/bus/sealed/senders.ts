/**
 * Which messages of which senders are new.
 *
 *   unknown ──message──► asked whether it lives; its messages are held ──answer──► known: each message is taken once (counters.ts)
 *      ▲                   │ no answer within HOLD_MS: they are dropped              │ nothing new of it for SILENT_MS
 *      └───────────────────┴────────────────────────────────────────────────────────┘
 *
 * A receiver that starts later than a message was recorded has no memory that would show the message to be old. Times of day could, but clocks of
 * machines differ and jump, nothing else here relies on them, and whatever difference were allowed would be time to send messages again. So the sender
 * is asked: who has ended does not answer, and who lives says which counters it has used within the last second, by its own clock (RecentCounters).
 * The first message of a sender waits for one round trip on the bus; nothing waits after that.
 */
import type { Clock } from '../../base/clock.ts';
import { LATE_MS, ReplayWindow } from './counters.ts';
import { canBeSealed, type ClusterSecret, counterOf, EPOCH_BYTES, Opener, senderOf } from './seal.ts';

/** Milliseconds between two questions to a sender: a question, or its answer, may be lost. */
const ASK_MS = 100;
/** Milliseconds that messages of a sender wait for its answer. */
const HOLD_MS = 2_000;
/** Milliseconds without a new message after which a sender is asked again: processes send twice a second at least, so it was cut off or has ended. */
const SILENT_MS = 2.5 * LATE_MS;
/** Senders that are known; beyond that the one that was not heard for longest is asked again (P1). A cluster has 1,024 members at most. */
const MAX_KNOWN = 4_096;
/** Senders that are asked at a time; messages of more are dropped (P1). All members of a cluster are new to a router that starts. */
const MAX_ASKED = 2_048;
/** Messages of one sender, and bytes of all senders, that wait for answers; more are dropped (P1). */
const MAX_HELD = 256;
const MAX_HELD_BYTES = 32 << 20;

/** Whether a message is new: not if it was `seen`, comes too `late`, or its sender is unknown and has not answered. */
export type Verdict = 'fresh' | 'seen' | 'late' | 'unanswered';

/** A message that was opened. */
export interface OpenedMessage {
  readonly sender: string;
  readonly counter: number;
  readonly payload: Buffer;
  /** Token under which it was sealed. */
  readonly token: string;
  readonly opener: Opener;
}

interface KnownSender {
  readonly opener: Opener;
  readonly window: ReplayWindow;
  /** Time of its last new message. */
  heardMs: number;
}

interface HeldMessage {
  readonly counter: number;
  readonly bytes: number;
  readonly settle: (verdict: Verdict) => void;
}

interface AskedSender {
  readonly opener: Opener;
  /** Counter of the first question: answers to earlier ones prove nothing about now. */
  readonly question: number;
  readonly sinceMs: number;
  askedMs: number;
  readonly held: HeldMessage[];
}

/** Dependencies of {@link Senders}. */
export interface SendersOptions {
  readonly secret: ClusterSecret;
  readonly clock: Clock;
  /** The sender that this process is: known from the start. */
  readonly own: string;
  /** Returns the counter of the next message of this process. */
  readonly nextCounter: () => number;
  /** Asks a sender whether it lives, under a token that it has. Its answer may come before this returns. */
  readonly ask: (sender: string, token: string) => void;
  /** Aborts when nothing is received any more. */
  readonly signal: AbortSignal;
}

/** The senders that one process receives messages of: opens the messages, and says which are new. */
export class Senders {
  readonly #options: SendersOptions;
  readonly #known = new Map<string, KnownSender>();
  readonly #asked = new Map<string, AskedSender>();
  #heldBytes = 0;
  #isWatching = false;

  constructor(options: SendersOptions) {
    this.#options = options;
    const { secret, clock, own } = options;
    const nowMs = clock.nowMs();
    const opener = new Opener(secret, Buffer.from(own, 'hex'));
    this.#known.set(own, { opener, window: new ReplayWindow(0, nowMs), heardMs: nowMs });
  }

  /** Returns a message that was sealed for `subject` under a token of the cluster, new or not; undefined for any other. */
  open(subject: Uint8Array, sealed: Buffer): OpenedMessage | undefined {
    if (!canBeSealed(sealed)) return undefined;
    const sender = senderOf(sealed);
    const opener =
      (this.#known.get(sender) ?? this.#asked.get(sender))?.opener ??
      new Opener(this.#options.secret, sealed.subarray(0, EPOCH_BYTES));
    const opened = opener.open(subject, sealed);
    if (!opened) return undefined;
    return { sender, counter: counterOf(sealed), payload: opened.payload, token: opened.token, opener };
  }

  /** Calls `settle` once with whether a message is new, at once or when its sender has answered. `settle` must not throw. */
  judge(message: OpenedMessage, settle: (verdict: Verdict) => void): void {
    const { clock, own } = this.#options;
    const { sender, counter } = message;
    const nowMs = clock.nowMs();
    const known = this.#known.get(sender);
    if (!known || (nowMs - known.heardMs >= SILENT_MS && sender !== own)) {
      this.#known.delete(sender);
      this.#hold(message, settle, nowMs);
      return;
    }
    const verdict = known.window.take(counter, nowMs);
    if (verdict === 'fresh') known.heardMs = nowMs;
    settle(verdict);
  }

  /** Takes the answer of a sender to the question with counter `question`: it lives, and has used the counters from `least` on just now. */
  answered(sender: string, question: number, least: number): void {
    const asked = this.#asked.get(sender);
    if (!asked || question < asked.question) return;
    const nowMs = this.#options.clock.nowMs();
    const held = this.#forget(sender, asked);
    const window = new ReplayWindow(least, nowMs);
    this.#makeRoom();
    this.#known.set(sender, { opener: asked.opener, window, heardMs: nowMs });
    for (const { counter, settle } of held) settle(window.take(counter, nowMs));
  }

  #hold(
    { sender, counter, payload, token, opener }: OpenedMessage,
    settle: (verdict: Verdict) => void,
    nowMs: number,
  ): void {
    const { nextCounter, ask } = this.#options;
    let asked = this.#asked.get(sender);
    if (!asked) {
      if (this.#asked.size >= MAX_ASKED) {
        settle('unanswered');
        return;
      }
      asked = { opener, question: nextCounter(), sinceMs: nowMs, askedMs: -Infinity, held: [] };
      this.#asked.set(sender, asked);
      void this.#watch();
    }
    if (asked.held.length < MAX_HELD && this.#heldBytes + payload.length <= MAX_HELD_BYTES) {
      asked.held.push({ counter, bytes: payload.length, settle });
      this.#heldBytes += payload.length;
    } else settle('unanswered');
    if (nowMs - asked.askedMs < ASK_MS) return;
    asked.askedMs = nowMs;
    ask(sender, token);
  }

  /** Drops what waits for the answer of senders that do not answer, for as long as there is any. */
  async #watch(): Promise<void> {
    if (this.#isWatching) return;
    this.#isWatching = true;
    const { clock, signal } = this.#options;
    while (this.#asked.size > 0 && !signal.aborted) {
      await clock.sleep(HOLD_MS / 2, signal);
      const sinceMs = clock.nowMs() - HOLD_MS;
      for (const [sender, asked] of this.#asked)
        if (asked.sinceMs <= sinceMs) for (const { settle } of this.#forget(sender, asked)) settle('unanswered');
    }
    this.#isWatching = false;
  }

  /** Ends the wait for a sender. Returns the messages that wait. */
  #forget(sender: string, { held }: AskedSender): readonly HeldMessage[] {
    this.#asked.delete(sender);
    for (const { bytes } of held) this.#heldBytes -= bytes;
    return held;
  }

  #makeRoom(): void {
    if (this.#known.size < MAX_KNOWN) return;
    let [oldest, oldestMs] = ['', Infinity];
    for (const [sender, { heardMs }] of this.#known)
      if (heardMs < oldestMs && sender !== this.#options.own) [oldest, oldestMs] = [sender, heardMs];
    this.#known.delete(oldest);
  }
}
