/**
 * Publish/subscribe and request/reply. All content is soft state: a message may be lost while a process is disconnected, so
 * senders whose receivers must notice a loss number their messages.
 *
 * Every driver behaves alike: an end connects for as long as it takes, reports when it is connected and when it is not, and has
 * its subscriptions in place when it reports a connection. Drivers: the embedded hub and its clients, NATS, and the simulation's;
 * all pass one conformance suite.
 */
import type { Failure } from '../base/failure.ts';

/** A process's end of the cluster's message bus. Messages are addressed by subject and not stored. */
export interface Bus {
  /** Address of the bus, for logs and messages to people. */
  readonly name: string;
  /** Whether messages are sent and received now. */
  readonly isConnected: boolean;
  /** Sends a message to all subscribers of the subject, without acknowledgement; drops it while disconnected. */
  publish(subject: string, payload: Buffer): void;
  /** @returns a function that unsubscribes. */
  subscribe(subject: string, handler: (payload: Buffer) => void): () => void;
  /** @throws Failure `not_found` when no process serves the subject, `deadline_exceeded`, `instance_lost` when disconnected, or the server's own. */
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
  /** The bus refuses this process (for instance a wrong token); a retry would not help. */
  readonly onRefused: (failure: Failure) => void;
}

/** A process's end of a bus; it connects for as long as it takes. */
export type OpenBus = (listener: BusListener) => Bus;
