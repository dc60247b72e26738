/**
 * One cluster's part of a bus that others may use too: its subjects begin with its name, and every payload carries a MAC under the
 * cluster token. Messages with a wrong MAC or none are dropped.
 *
 *   subject   penstock.CLUSTER.subject
 *   payload   [HMAC-SHA256(token, subject ‖ 0 ‖ payload), the first 16 bytes][payload]
 *
 * The MAC authenticates the sender but gives no protection against replay: a process that can read the bus can send an old message
 * again. Only the cluster should have access to the bus.
 */
import { createHmac } from 'node:crypto';
import { isSameSecret, sentToken, takenTokens } from '../base/cluster_tokens.ts';
import type { Clock } from '../base/clock.ts';
import { Current } from '../base/current.ts';
import { Failure } from '../base/failure.ts';
import type { Log } from '../base/log.ts';
import type { Bus } from './bus.ts';

const MAC_BYTES = 16;
/** Least milliseconds between two warnings about unverified messages. */
const REPORT_MS = 5_000;

/** Settings of a ClusterBus. `token` is the secret of the MACs; of several (cluster_tokens.ts) the first is sent and all are taken. */
export interface ClusterBusOptions {
  readonly cluster: string;
  readonly token: string | Current<string>;
  readonly clock: Clock;
  readonly log: Log;
  /** Called when a message on this subject has no valid MAC: its sender has another cluster token. */
  readonly onUnverified?: (subject: string) => void;
}

/** A bus restricted to one cluster: adds the cluster's name to subjects and a MAC to payloads, and drops messages without a valid MAC. */
export class ClusterBus implements Bus {
  readonly #bus: Bus;
  readonly #options: ClusterBusOptions;
  readonly #tokens: Current<string>;
  #reportedMs = -Infinity;
  /** Messages that carried no MAC of this cluster's token. */
  numUnverified = 0;

  constructor(bus: Bus, options: ClusterBusOptions) {
    this.#bus = bus;
    this.#options = options;
    this.#tokens = Current.of(options.token);
  }

  get name(): string {
    return this.#bus.name;
  }

  get isConnected(): boolean {
    return this.#bus.isConnected;
  }

  publish(subject: string, payload: Buffer): void {
    if (!this.#bus.isConnected) return;
    const full = this.#full(subject);
    this.#bus.publish(full, this.#seal(full, payload));
  }

  subscribe(subject: string, handler: (payload: Buffer) => void): () => void {
    const full = this.#full(subject);
    return this.#bus.subscribe(full, (sealed) => {
      const payload = this.#open(full, sealed);
      if (payload) handler(payload);
      else this.#unverified(subject);
    });
  }

  async request(subject: string, payload: Buffer, timeoutMs: number): Promise<Buffer> {
    const full = this.#full(subject);
    const sealed = await this.#bus.request(full, this.#seal(full, payload), timeoutMs);
    const answer = this.#open(answerTo(full), sealed);
    if (answer) return answer;
    this.#unverified(subject);
    throw new Failure('unauthenticated', `${subject} was answered under another cluster token`);
  }

  serve(subject: string, handler: (payload: Buffer) => Buffer | Promise<Buffer>): () => void {
    const full = this.#full(subject);
    return this.#bus.serve(full, async (sealed) => {
      const payload = this.#open(full, sealed);
      if (payload) return this.#seal(answerTo(full), await handler(payload));
      this.#unverified(subject);
      throw new Failure('unauthenticated', 'the cluster has another --cluster-token');
    });
  }

  close(): void {
    this.#bus.close();
  }

  #full(subject: string): string {
    return `penstock.${this.#options.cluster}.${subject}`;
  }

  #macOf(token: string, subject: string, payload: Buffer): Buffer {
    const mac = createHmac('sha256', token).update(`${subject}\0`).update(payload);
    return mac.digest().subarray(0, MAC_BYTES);
  }

  #seal(subject: string, payload: Buffer): Buffer {
    return Buffer.concat([this.#macOf(sentToken(this.#tokens.value), subject, payload), payload]);
  }

  #open(subject: string, sealed: Buffer): Buffer | undefined {
    if (sealed.length < MAC_BYTES) return undefined;
    const payload = sealed.subarray(MAC_BYTES);
    const mac = sealed.subarray(0, MAC_BYTES);
    const isOurs = takenTokens(this.#tokens.value).some((token) =>
      isSameSecret(mac, this.#macOf(token, subject, payload)),
    );
    return isOurs ? payload : undefined;
  }

  #unverified(subject: string): void {
    const { clock, log, onUnverified } = this.#options;
    this.numUnverified++;
    if (clock.nowMs() - this.#reportedMs >= REPORT_MS) {
      this.#reportedMs = clock.nowMs();
      log.warn(
        { subject, count: this.numUnverified },
        'dropped bus messages that were sent under another --cluster-token',
      );
    }
    onUnverified?.(subject);
  }
}

function answerTo(subject: string): string {
  return `${subject} answer`;
}
