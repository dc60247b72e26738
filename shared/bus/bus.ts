/**
 * Publish/subscribe and request/reply, nothing else. Everything said here is soft state: a message may be lost while a
 * process is disconnected, and whoever needs to know numbers its messages.
 *
 * Two drivers (embedded now, NATS for larger clusters), one conformance suite.
 */
export interface Bus {
  /** Fire and forget. Dropped while disconnected. */
  publish(subject: string, payload: Buffer): void;
  /** @returns a function that unsubscribes. */
  subscribe(subject: string, handler: (payload: Buffer) => void): () => void;
  /** @throws Failure `not_found` when nobody serves the subject, `deadline_exceeded`, `instance_lost` when disconnected, or the server's own. */
  request(subject: string, payload: Buffer, timeoutMs: number): Promise<Buffer>;
  /** One server per subject. @returns a function that stops serving. */
  serve(subject: string, handler: (payload: Buffer) => Buffer | Promise<Buffer>): () => void;
  close(): void;
}
