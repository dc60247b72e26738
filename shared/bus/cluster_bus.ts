/**
 * One cluster's part of a bus that others may use too: its subjects begin with its name, and every message is sealed under the cluster token, so
 * that who has no token can neither read a message nor send one (sealed/seal.ts). Others are dropped and counted.
 *
 *   subject    penstock.CLUSTER.subject
 *   message    sealed for its subject
 *   answer     sealed for `penstock.CLUSTER.subject answer` and the head of its request: it is the answer to no other
 *
 * A message that is sent again is dropped too, by each receiver, and so is one of a process that has ended (sealed/senders.ts). Each end of
 * the bus hears `bus.alive.EPOCH`: an empty message there asks whether it lives. The answer has the counter of the question, and the least counter
 * that the end has used just now, both u64.
 *
 * Who carries the messages can still: drop and delay them; deliver, once, a message that a receiver has not had, a few seconds late (LATE_MS,
 * SILENT_MS) or, to one that has just started, of the last second (RECENT_MS); see subjects, lengths and times of messages; and make requests fail,
 * for the reasons of failures are the driver's, unsealed.
 */
import { Current } from '../base/current.ts';
import type { Clock } from '../base/clock.ts';
import { Failure, messageOf } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import { subjects } from '../protocol/membership.ts';
import type { Bus } from './bus.ts';
import { RecentCounters } from './sealed/counters.ts';
import { HEAD_BYTES, readCounter, Sealer, writeCounter } from './sealed/seal.ts';
import { Senders, type Verdict } from './sealed/senders.ts';

/** Least milliseconds between two warnings about messages of a kind that were dropped. */
const REPORT_MS = 5_000;
const EMPTY = Buffer.alloc(0);
const ANSWER_BYTES = 16;

type Handler = (payload: Buffer) => void;

/** Settings of a ClusterBus. */
export interface ClusterBusOptions {
  readonly cluster: string;
  /** Secret of the cluster; of several (cluster_tokens.ts) the first seals and all open. */
  readonly token: string | Current<string>;
  /** 128 random bits, made for this object: a second one with the same bits would give the token away (sealed/seal.ts). */
  readonly epoch: Buffer;
  readonly clock: Clock;
  readonly log: Log;
  /** Called when a message on this subject cannot be opened: its sender has another cluster token, or another version. */
  readonly onUnverified?: ((subject: string) => void) | undefined;
}

/** A bus restricted to one cluster: adds the cluster's name to subjects, seals messages, and drops those that are not sealed or not new. */
export class ClusterBus implements Bus {
  readonly #bus: Bus;
  readonly #options: ClusterBusOptions;
  readonly #sealer: Sealer;
  readonly #recent = new RecentCounters();
  readonly #senders: Senders;
  readonly #subscriptions = new Map<string, { readonly handlers: Set<Handler>; readonly stop: () => void }>();
  readonly #closed = new AbortController();
  readonly #reports: Record<'unverified' | 'replayed', Report>;
  /** Messages that could not be opened: they are not sealed under a token of this cluster. */
  numUnverified = 0;
  /** Messages that were not new, by why. */
  readonly #numOld: Record<Exclude<Verdict, 'fresh'>, number> = { seen: 0, late: 0, unanswered: 0 };

  constructor(bus: Bus, options: ClusterBusOptions) {
    this.#bus = bus;
    this.#options = options;
    const { cluster, token, epoch, clock, log } = options;
    this.#reports = { unverified: new Report(clock, log), replayed: new Report(clock, log) };
    const secret = { tokens: Current.of(token), cluster };
    this.#sealer = new Sealer(secret, epoch);
    const own = epoch.toString('hex');
    this.#senders = new Senders({
      secret,
      clock,
      own,
      nextCounter: () => this.#sealer.next,
      ask: (sender, token) => {
        this.#publish(subjects.alive(sender), EMPTY, token);
      },
      signal: this.#closed.signal,
    });
    const alive = subjects.alive(own);
    bus.subscribe(this.#full(alive), (sealed) => {
      this.#hearAlive(alive, sealed);
    });
  }

  get name(): string {
    return this.#bus.name;
  }

  get isConnected(): boolean {
    return this.#bus.isConnected;
  }

  /** Messages that were dropped because they had come before, came too late, or their sender did not answer. */
  get numReplayed(): number {
    const { seen, late, unanswered } = this.#numOld;
    return seen + late + unanswered;
  }

  publish(subject: string, payload: Buffer): void {
    this.#publish(subject, payload);
  }

  subscribe(subject: string, handler: Handler): () => void {
    const one: Handler = (payload) => {
      handler(payload);
    };
    const others = this.#subscriptions.get(subject);
    others?.handlers.add(one);
    // One subscription for all handlers of a subject: each message is opened, and taken as new, once.
    const subscription = others ?? { handlers: new Set([one]), stop: this.#listen(subject) };
    this.#subscriptions.set(subject, subscription);
    return () => {
      const { handlers, stop } = subscription;
      handlers.delete(one);
      if (handlers.size > 0 || this.#subscriptions.get(subject) !== subscription) return;
      this.#subscriptions.delete(subject);
      stop();
    };
  }

  async request(subject: string, payload: Buffer, timeoutMs: number): Promise<Buffer> {
    const full = this.#full(subject);
    const request = this.#seal(Buffer.from(full), payload);
    const sealed = await this.#bus.request(full, request, timeoutMs);
    const answer = this.#senders.open(answerTo(full, request), sealed);
    if (answer) return answer.payload;
    this.#unverified(subject);
    throw new Failure('unauthenticated', `${subject} was answered under another cluster token`);
  }

  serve(subject: string, handler: (payload: Buffer) => Buffer | Promise<Buffer>): () => void {
    const full = this.#full(subject);
    return this.#bus.serve(full, async (sealed) => {
      const message = this.#senders.open(Buffer.from(full), sealed);
      if (!message) {
        this.#unverified(subject);
        throw new Failure('unauthenticated', 'the cluster has another --cluster-token, or runs another version');
      }
      const verdict = await new Promise<Verdict>((settle) => {
        this.#senders.judge(message, settle);
      });
      if (verdict !== 'fresh') {
        this.#old(subject, verdict);
        throw new Failure('unauthenticated', `this request is not new (${verdict})`);
      }
      return this.#seal(answerTo(full, sealed), await handler(message.payload), message.token);
    });
  }

  close(): void {
    this.#closed.abort();
    this.#bus.close();
  }

  #full(subject: string): string {
    return `penstock.${this.#options.cluster}.${subject}`;
  }

  #publish(subject: string, payload: Buffer, token?: string): void {
    if (!this.#bus.isConnected) return;
    const full = this.#full(subject);
    this.#bus.publish(full, this.#seal(Buffer.from(full), payload, token));
  }

  #seal(subject: Uint8Array, payload: Buffer, token?: string): Buffer {
    this.#recent.note(this.#sealer.next, this.#options.clock.nowMs());
    return this.#sealer.seal(subject, payload, token);
  }

  #listen(subject: string): () => void {
    const full = this.#full(subject);
    const sealedFor = Buffer.from(full);
    return this.#bus.subscribe(full, (sealed) => {
      const message = this.#senders.open(sealedFor, sealed);
      if (!message) {
        this.#unverified(subject);
        return;
      }
      this.#senders.judge(message, (verdict) => {
        if (verdict === 'fresh') this.#deliver(subject, message.payload);
        else this.#old(subject, verdict);
      });
    });
  }

  #deliver(subject: string, payload: Buffer): void {
    for (const handler of this.#subscriptions.get(subject)?.handlers ?? []) {
      try {
        handler(payload);
      } catch (error) {
        this.#options.log.warn({ subject, error: messageOf(error) }, 'a bus message could not be read');
      }
    }
  }

  /** Answers a question whether this end lives, or takes the answer of another one. Either may come again: it changes nothing then. */
  #hearAlive(subject: string, sealed: Buffer): void {
    const message = this.#senders.open(Buffer.from(this.#full(subject)), sealed);
    if (!message) {
      this.#unverified(subject);
      return;
    }
    const { sender, counter, payload, token } = message;
    if (payload.length === ANSWER_BYTES) {
      this.#senders.answered(sender, readCounter(payload, 0), readCounter(payload, ANSWER_BYTES / 2));
      return;
    }
    const answer = Buffer.alloc(ANSWER_BYTES);
    writeCounter(answer, 0, counter);
    writeCounter(answer, ANSWER_BYTES / 2, this.#recent.least(this.#sealer.next, this.#options.clock.nowMs()));
    this.#publish(subjects.alive(sender), answer, token);
  }

  #unverified(subject: string): void {
    this.numUnverified++;
    this.#reports.unverified.warn(
      { subject, count: this.numUnverified },
      'dropped bus messages that were sealed under another --cluster-token, or sent by another version of Penstock',
    );
    this.#options.onUnverified?.(subject);
  }

  #old(subject: string, verdict: Exclude<Verdict, 'fresh'>): void {
    this.#numOld[verdict]++;
    this.#reports.replayed.warn(
      { subject, ...this.#numOld },
      'dropped bus messages that had come before (seen), came too late, or whose sender does not answer: a process that has just ended leaves a few; of many somebody sends recorded ones again',
    );
  }
}

/** Returns the additional data of the answer to a request, which was sent as `request`. */
function answerTo(subject: string, request: Buffer): Buffer {
  return Buffer.concat([Buffer.from(`${subject} answer`), request.subarray(0, HEAD_BYTES)]);
}

/** Warnings about dropped messages, one in REPORT_MS. */
class Report {
  readonly #clock: Clock;
  readonly #log: Log;
  #reportedMs = -Infinity;

  constructor(clock: Clock, log: Log) {
    this.#clock = clock;
    this.#log = log;
  }

  warn(fields: object, message: string): void {
    const nowMs = this.#clock.nowMs();
    if (nowMs - this.#reportedMs < REPORT_MS) return;
    this.#reportedMs = nowMs;
    this.#log.warn(fields, message);
  }
}
