/** The way to the server that is measured: kept connections, as many as there are requests at a time, and answers handed over as they arrive. */
import { Pool, type Dispatcher } from 'undici';
import { messageOf } from '../../../shared/base/failure.ts';
import { certificateTroubleOf, troubleText } from '../router_api.ts';
import { errorText } from './answer_events.ts';

/** Milliseconds that an answer, or its next part, may take: long queues are what a load generator is for. */
const MAX_WAIT_MS = 6 * 3_600_000;
const CONNECT_MS = 30_000;
/** Milliseconds that an idle connection is kept for the next request. */
const KEEP_ALIVE_MS = 60_000;
/** Most bytes that are kept of the body of an unsuccessful answer, and of one that is read whole. */
const MAX_ERROR_BYTES = 2 ** 16;
const MAX_BODY_BYTES = 2 ** 26;

/** The server could not be reached, or said no. `kind` is short and equal for equal causes, so that errors can be counted by it. */
export class RequestError extends Error {
  readonly kind: string;

  constructor(kind: string, message: string) {
    super(message);
    this.name = 'RequestError';
    this.kind = kind;
  }
}

/** A request that is sent. */
export interface HttpRequest {
  readonly path: string;
  /** JSON; undefined: a GET. */
  readonly body?: string | undefined;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Requests to one server. */
export interface HttpClient {
  /**
   * Sends a request, and hands over each part of a successful answer when it arrives. Resolves at the end of the answer. Rejects with a
   * RequestError for a status other than 2xx or a broken connection, with what `onBytes` throws, and with the reason of `signal` when it aborts.
   */
  send(request: HttpRequest, onBytes: (bytes: Uint8Array) => void, signal: AbortSignal): Promise<void>;
  /** Closes all connections. */
  close(): Promise<void>;
}

/** Names of connection errors that users meet, by Node's codes. */
const CAUSES: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'connection refused',
  ECONNRESET: 'connection closed by the server',
  UND_ERR_SOCKET: 'connection closed by the server',
  EPIPE: 'connection closed by the server',
  ENOTFOUND: 'host not found',
  EAI_AGAIN: 'host not found',
  EMFILE: 'too many open files',
  UND_ERR_CONNECT_TIMEOUT: 'connection timed out',
  UND_ERR_HEADERS_TIMEOUT: 'answer timed out',
  UND_ERR_BODY_TIMEOUT: 'answer timed out',
};

/** Kind of the error of a connection to a server whose certificate is not taken. */
export const CERTIFICATE = 'certificate refused';

/** Opens a client of the server at `baseUrl`, whose path is put before that of each request. */
export function openHttpClient(
  baseUrl: URL,
  { apiKey, isInsecure }: { readonly apiKey: string | undefined; readonly isInsecure: boolean },
): HttpClient {
  const pool = new Pool(baseUrl.origin, {
    connections: null,
    pipelining: 1,
    keepAliveTimeout: KEEP_ALIVE_MS,
    keepAliveMaxTimeout: KEEP_ALIVE_MS,
    headersTimeout: MAX_WAIT_MS,
    bodyTimeout: MAX_WAIT_MS,
    connect: { timeout: CONNECT_MS, rejectUnauthorized: !isInsecure, noDelay: true },
  });
  const always = {
    'content-type': 'application/json',
    ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }),
  };
  const prefix = baseUrl.pathname.replace(/\/+$/, '');
  return {
    send: ({ path, body, headers }, onBytes, signal) =>
      new Promise((resolve, reject) => {
        const options: Dispatcher.DispatchOptions = {
          path: `${prefix}${path}`,
          method: body === undefined ? 'GET' : 'POST',
          headers: { ...always, ...headers },
          body: body ?? null,
        };
        pool.dispatch(options, new AnswerHandler(onBytes, signal, resolve, reject));
      }),
    close: () => pool.destroy(),
  };
}

/** Follows one answer of the HTTP library. */
class AnswerHandler implements Dispatcher.DispatchHandler {
  readonly #onBytes: (bytes: Uint8Array) => void;
  readonly #signal: AbortSignal;
  readonly #resolve: () => void;
  readonly #reject: (error: unknown) => void;
  #controller: Dispatcher.DispatchController | undefined;
  #status = 0;
  #errorBody = '';
  /** Error that `onBytes` threw, which ended the request. */
  #thrown: { readonly error: unknown } | undefined;

  constructor(
    onBytes: (bytes: Uint8Array) => void,
    signal: AbortSignal,
    resolve: () => void,
    reject: (error: unknown) => void,
  ) {
    [this.#onBytes, this.#signal, this.#resolve, this.#reject] = [onBytes, signal, resolve, reject];
    signal.addEventListener('abort', this.#abort, { once: true });
  }

  /** Ends the request. One whose connection is not open yet has no controller; nobody waits for it then. */
  readonly #abort = (): void => {
    this.#controller?.abort(this.#signal.reason as Error);
    this.#reject(this.#signal.reason);
  };

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    if (this.#signal.aborted) controller.abort(this.#signal.reason as Error);
  }

  onResponseStart(_: Dispatcher.DispatchController, status: number): void {
    this.#status = status;
  }

  onResponseData(controller: Dispatcher.DispatchController, bytes: Buffer): void {
    if (this.#status >= 300) {
      if (this.#errorBody.length < MAX_ERROR_BYTES) this.#errorBody += bytes.toString();
      return;
    }
    try {
      this.#onBytes(bytes);
    } catch (error) {
      this.#thrown = { error };
      controller.abort(error as Error);
    }
  }

  onResponseEnd(): void {
    this.#unfollow();
    if (this.#status >= 300)
      this.#reject(new RequestError(`HTTP ${this.#status}`, messageOfBody(this.#status, this.#errorBody)));
    else this.#resolve();
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    this.#unfollow();
    if (this.#signal.aborted || this.#thrown) {
      this.#reject(this.#thrown?.error ?? error);
      return;
    }
    const code = codeOf(error);
    const trouble = certificateTroubleOf(code);
    const kind = trouble ? CERTIFICATE : (CAUSES[code] ?? 'connection failed');
    this.#reject(new RequestError(kind, trouble ? troubleText(trouble) : messageOf(error) || kind));
  }

  #unfollow(): void {
    this.#signal.removeEventListener('abort', this.#abort);
  }
}

function codeOf(error: Error): string {
  const { code, errors } = error as { code?: string; errors?: readonly { code?: string }[] };
  return code ?? errors?.[0]?.code ?? '';
}

function messageOfBody(status: number, body: string): string {
  if (body.trim() === '') return `status ${status}`;
  try {
    return errorText(JSON.parse(body));
  } catch {
    return errorText(body);
  }
}

/** Sends a request and returns the JSON of its answer. Rejects as `send` does, and with a RequestError when the answer is not JSON. */
export async function sendForJson(client: HttpClient, request: HttpRequest, signal: AbortSignal): Promise<unknown> {
  const parts: Uint8Array[] = [];
  let size = 0;
  await client.send(
    request,
    (bytes) => {
      size += bytes.length;
      if (size > MAX_BODY_BYTES) throw new RequestError('answer too large', `over ${MAX_BODY_BYTES} bytes`);
      parts.push(Buffer.from(bytes));
    },
    signal,
  );
  try {
    return JSON.parse(Buffer.concat(parts).toString());
  } catch {
    throw new RequestError('answer is not JSON', `${request.path} answers with something that is not JSON`);
  }
}
