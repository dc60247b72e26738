/**
 * Publish/subscribe and request/reply, nothing else. Everything said here is soft state: a message may be lost while a
 * process is disconnected, and whoever needs to know numbers its messages.
 *
 * Joining, losing and leaving look the same on every driver: an end connects for as long as it takes, says when it is there and
 * when it is not, and has its subscriptions in place when it says so. Drivers: the embedded hub and its clients, NATS, and the
 * simulation's; one conformance suite.
 */
import type { Failure } from '../base/failure.ts';

/** A process's end of the cluster's message bus. Messages are addressed by subject and not stored. */
export interface Bus {
  /** Address of the bus, for logs and messages to people. */
  readonly name: string;
  /** Whether messages are sent and received now. */
  readonly isConnected: boolean;
  /** Fire and forget. Dropped while disconnected. */
  publish(subject: string, payload: Buffer): void;
  /** @returns a function that unsubscribes. */
  subscribe(subject: string, handler: (payload: Buffer) => void): () => void;
  /** @throws Failure `not_found` when nobody serves the subject, `deadline_exceeded`, `instance_lost` when disconnected, or the server's own. */
  request(subject: string, payload: Buffer, timeoutMs: number): Promise<Buffer>;
  /** One server per subject. @returns a function that stops serving. */
  serve(subject: string, handler: (payload: Buffer) => Buffer | Promise<Buffer>): () => void;
  /** Ends the connection after the messages that were published before, for instance a goodbye. */
  close(): void;
}

/** Callbacks for changes of a bus connection. */
export interface BusListener {
  /** After every (re)connection, when subscriptions are in place. */
  readonly onConnected: () => void;
  readonly onDisconnected: (reason: string) => void;
  /** The bus does not want this process: trying again would not help. */
  readonly onRefused: (failure: Failure) => void;
}

/** A process's end of a bus; it connects for as long as it takes. */
export type OpenBus = (listener: BusListener) => Bus;
