/**
 * TLS in front of the router's HTTP server, for clients. Certificate and key are replaced while the server runs: connections that begin then are shown
 * the new certificate, open ones go on.
 *
 *   connection ──first byte──► TLS handshake ──► HTTP, as without TLS
 *                    └───────► plain HTTP: an answer that says to use https://
 */
import type { Server } from 'node:http';
import type { Server as SecureServer, ServerOptions } from 'node:https';
import type { Socket } from 'node:net';
import type { FastifyInstance } from 'fastify';
import type { Clock } from '../../../shared/base/clock.ts';
import type { Current } from '../../../shared/base/current.ts';
import type { Log } from '../../../shared/base/log.ts';
import type { ServerTexts } from '../../../shared/net/tls_texts.ts';
import type { ErrorForm } from '../api/errors.ts';
import type { HttpApp } from '../router.ts';

/** First byte of a TLS connection: the type of a record with a handshake. */
const HANDSHAKE = 0x16;
/** Milliseconds without a further byte after which a connection that was answered in plain HTTP is closed, and bytes of it that are discarded (P1). */
const LINGER_MS = 1_000;
const MAX_DISCARDED = 1 << 20;
/** Least milliseconds between two lines of the log about connections of one kind that came to nothing. */
const REPORT_MS = 60_000;
const PLAIN = 'this port speaks HTTPS: write https:// in place of http:// in the URL';
/** Reasons of failed handshakes for which the client alone decides. */
const DISTRUST = /UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_UNKNOWN|CERTIFICATE_EXPIRED/;

/** Returns the TLS side of a router's HTTP server; undefined where it serves plain HTTP. */
export function secureSide({ https, log, config, context, surfaces }: HttpApp): SecureSide | undefined {
  if (!https) return undefined;
  const errors = surfaces.usualErrors;
  return new SecureSide({ texts: https, log, clock: context.clock, errors, patienceMs: config.body_timeout_ms });
}

/** Dependencies of {@link SecureSide}. `errors`: form of the answer to plain HTTP; `patienceMs`: time in which a handshake has to be over. */
interface SecureContext {
  readonly texts: Current<ServerTexts>;
  readonly log: Log;
  readonly clock: Clock;
  readonly errors: ErrorForm;
  readonly patienceMs: number;
}

/** The TLS side of one HTTP server. */
class SecureSide {
  readonly #context: SecureContext;
  /** Connections that are not HTTP yet, by the client's address, of which the HTTP server knows nothing; bounded by its `maxConnections` (P1). */
  readonly #opening = new Map<string, Socket>();
  /** When a kind of failed connections was logged last, and how many there were since. */
  readonly #reports = new Map<string, { atMs: number; numSince: number }>();
  #isClosing = false;

  constructor(context: SecureContext) {
    this.#context = context;
  }

  /** Returns fastify's option of an HTTPS server; `http` has those that a plain server gets. */
  optionsWith(http: ServerOptions): { readonly https: ServerOptions } {
    const { texts, patienceMs } = this.#context;
    const https: ServerOptions = {
      cert: texts.value.cert,
      key: texts.value.key,
      ALPNProtocols: ['http/1.1'],
      handshakeTimeout: patienceMs,
      // An HTTP server always has this, an HTTPS server when it is told so: a client that closes its side still reads the answer.
      allowHalfOpen: true,
    };
    return { https: Object.assign(https, http) };
  }

  /** Takes charge of the connections of an app with {@link optionsWith}, until it closes. */
  guard(app: FastifyInstance): void {
    const server = app.server as Server & Pick<SecureServer, 'setSecureContext'>;
    const unfollow = this.#context.texts.onReplace(({ cert, key }) => {
      server.setSecureContext({ cert, key });
    });
    const handshakes = server.listeners('connection') as ((socket: Socket) => void)[];
    server.removeAllListeners('connection');
    server.on('connection', (socket: Socket) => {
      this.#look(socket, () => {
        for (const begin of handshakes) begin.call(server, socket);
      });
    });
    server.on('secureConnection', (socket: Socket) => {
      this.#opening.delete(clientOf(socket));
    });
    app.addHook('preClose', (done) => {
      unfollow();
      this.#isClosing = true;
      for (const socket of this.#opening.values()) socket.destroy();
      done();
    });
  }

  /** Whether an error of a client's connection is one of TLS, which cannot be answered: it is logged and the connection closed. */
  hasEnded(error: Error & { readonly code?: string }, socket: Socket): boolean {
    const { code = '' } = error;
    const isTls = /^ERR_(SSL|TLS)_/.test(code);
    if (!isTls) return false;
    const hint = DISTRUST.test(code)
      ? 'a client does not trust the certificate of --https-cert: give the client the authority that has signed it'
      : 'a TLS handshake failed';
    // Only the connection under TLS still knows where a client was that has left.
    const { _parent: under = socket } = socket as Socket & { readonly _parent?: Socket };
    this.#report(hint, under.remoteAddress, code);
    socket.destroy();
    return true;
  }

  /** Waits for the first byte of a connection, and calls `begin` where it is one of TLS. */
  #look(socket: Socket, begin: () => void): void {
    if (this.#isClosing) {
      socket.destroy();
      return;
    }
    const client = clientOf(socket);
    this.#opening.set(client, socket);
    socket.once('close', () => this.#opening.delete(client));
    const end = (): void => {
      socket.destroy();
    };
    const look = (): void => {
      const first = (socket.read(1) as Buffer | null)?.[0];
      if (first === undefined) return;
      socket.off('readable', look).off('end', end).off('timeout', end).setTimeout(0);
      socket.unshift(Buffer.of(first));
      if (first === HANDSHAKE) {
        socket.off('error', end);
        begin();
      } else this.#answerPlain(socket, end);
    };
    socket.on('readable', look).on('end', end).on('timeout', end).on('error', end);
    socket.setTimeout(this.#context.patienceMs);
  }

  /** A client of plain HTTP is told where it is. The bytes that it still sends are read, since a connection that is closed before would lose the answer. */
  #answerPlain(socket: Socket, end: () => void): void {
    this.#report('plain HTTP on the port of HTTPS', socket.remoteAddress, PLAIN);
    const { errors } = this.#context;
    const failure = Object.assign(new Error(PLAIN), { statusCode: 400 });
    const body = JSON.stringify(errors.body(failure, null));
    let numDiscarded = 0;
    socket.on('data', ({ length }: Buffer) => {
      numDiscarded += length;
      if (numDiscarded > MAX_DISCARDED) end();
    });
    socket.on('end', end).on('timeout', end).setTimeout(LINGER_MS);
    socket.end(
      `HTTP/1.1 400 Bad Request\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
    );
  }

  /** Logs connections of one kind that came to nothing, at most every REPORT_MS. */
  #report(what: string, from: string | undefined, reason: string): void {
    const { clock, log } = this.#context;
    const nowMs = clock.nowMs();
    const last = this.#reports.get(what);
    if (last !== undefined && nowMs - last.atMs < REPORT_MS) {
      last.numSince++;
      return;
    }
    log.warn({ from, reason, ...(last && last.numSince > 0 ? { others: last.numSince } : {}) }, what);
    this.#reports.set(what, { atMs: nowMs, numSince: 0 });
  }
}

/** Returns the address and port of a client, which a connection and TLS over it have in common. */
function clientOf({ remoteAddress = '', remotePort = 0 }: Socket): string {
  return `${remoteAddress} ${remotePort}`;
}
