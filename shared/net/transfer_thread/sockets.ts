/**
 * Plain sockets as a transfer thread sees them: bytes come into memory that it names before they come, and go out of memory that it lends.
 * Who carries them is a driver: TCP, simulated links in tests.
 */

/** One end. */
export interface ByteSocket {
  /** In order. The memory is the socket's until `onWritten`, or until it has closed. */
  write(parts: readonly Uint8Array[], onWritten?: () => void): void;
  destroy(): void;
}

/** Callbacks of one end of a socket. */
export interface SocketListener {
  /** Returns the memory for the next bytes, at least one byte; called before they are read. */
  into(): Uint8Array;
  /** Reports that `count` bytes were written into the memory that `into` returned last. */
  onBytes(count: number): void;
  /** Reports that either side has closed the socket; memory passed to the socket is not touched any more. */
  onClosed(reason: string): void;
}

/** Plain byte sockets: TCP in production, simulated links in tests. */
export interface Sockets {
  /** @throws Error naming the address, for instance when it is in use. */
  listen(host: string, port: number, onSocket: (socket: ByteSocket) => SocketListener): Promise<number>;
  /** @throws Error when nobody answers within `timeoutMs`. */
  connect(host: string, port: number, timeoutMs: number, listener: SocketListener): Promise<ByteSocket>;
}
