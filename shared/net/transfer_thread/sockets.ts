/**
 * Byte sockets of a transfer thread: received bytes go into memory that the listener names beforehand, and sent bytes come out of
 * memory that the caller keeps unchanged meanwhile. Drivers are TCP, and simulated links in tests.
 */

/** One end of a socket. */
export interface ByteSocket {
  /** Sends bytes in order. The memory must not change until `onWritten` is called or the socket has closed. */
  write(parts: readonly Uint8Array[], onWritten?: () => void): void;
  /** Closes the socket at once; bytes that were not sent are lost. */
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
