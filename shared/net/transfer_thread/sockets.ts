/**
 * Plain sockets as a transfer thread thread sees them: bytes come into memory that it names before they come, and go out of memory that it lends.
 * Who carries them is a driver: TCP, simulated links in tests.
 */

/** One end. */
export interface ByteSocket {
  /** In order. The memory is the socket's until `onWritten`, or until it has closed. */
  write(parts: readonly Uint8Array[], onWritten?: () => void): void;
  destroy(): void;
}

/** What one end is told. */
export interface SocketListener {
  /** Where the next bytes go, one at least; asked before they come. */
  into(): Uint8Array;
  /** So many came, into what `into` gave last. */
  onBytes(count: number): void;
  /** It is over, by whichever side: no memory that it was given is touched any more. */
  onClosed(reason: string): void;
}

export interface Sockets {
  /** @throws Error naming the address, for instance when it is in use. */
  listen(host: string, port: number, onSocket: (socket: ByteSocket) => SocketListener): Promise<number>;
  /** @throws Error when nobody answers within `timeoutMs`. */
  connect(host: string, port: number, timeoutMs: number, listener: SocketListener): Promise<ByteSocket>;
}
