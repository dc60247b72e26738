/**
 * Publish/subscribe and request/reply, nothing else. Everything said here is soft state: a message may be lost while a
 * process is disconnected, and whoever needs to know numbers its messages.
 *
 * Joining, losing and leaving look the same on every driver: an end connects for as long as it takes, says when it is there and
 * when it is not, and has its subscriptions in place when it says so. Drivers: the embedded hub and its clients, NATS, and the
 * simulation's; one conformance suite.
 */
import type { Failure } from '../base/failure.ts';

export interface Bus {
  /** Where it is, for people. */
  readonly name: string;
  /** What is said goes out, and what others say comes in. */
  readonly isConnected: boolean;
  /** Fire and forget. Dropped while disconnected. */
  publish(subject: string, payload: Buffer): void;
  /** @returns a function that unsubscribes. */
  subscribe(subject: string, handler: (payload: Buffer) => void): () => void;
  /** @throws Failure `not_found` when nobody serves the subject, `deadline_exceeded`, `instance_lost` when disconnected, or the server's own. */
  request(subject: string, payload: Buffer, timeoutMs: number): Promise<Buffer>;
  /** One server per subject. @returns a function that stops serving. */
  serve(subject: string, handler: (payload: Buffer) => Buffer | Promise<Buffer>): () => void;
  /** What was published goes out first, a goodbye for instance. */
  close(): void;
}

/** What an end of a bus says of itself. */
export interface BusListener {
  /** After every (re)connection, when subscriptions are in place. */
  readonly onConnected: () => void;
  readonly onDisconnected: (reason: string) => void;
  /** The bus does not want this process: trying again would not help. */
  readonly onRefused: (failure: Failure) => void;
}

/** A process's end of a bus; it connects for as long as it takes. */
export type OpenBus = (listener: BusListener) => Bus;
