/**
 * Closed table of the failures that callers are expected to handle, with HTTP status. A broken invariant is no failure: it is an
 * `assert`, and ends the process.
 *
 * `retry` names the remedy: `never` (no retry helps), `later` (wait), `elsewhere` (another instance).
 */
const failures = {
  invalid_request: { status: 400, retry: 'never' },
  context_too_long: { status: 400, retry: 'never' },
  unauthenticated: { status: 401, retry: 'never' },
  invalid_api_key: { status: 401, retry: 'never' },
  permission_denied: { status: 403, retry: 'never' },
  not_found: { status: 404, retry: 'never' },
  model_not_found: { status: 404, retry: 'never' },
  cluster_mismatch: { status: 409, retry: 'never' },
  cancelled: { status: 499, retry: 'never' },
  internal: { status: 500, retry: 'never' },
  instance_lost: { status: 502, retry: 'elsewhere' },
  /** The connection broke although the peer may be alive, so the same peer may be called again. */
  session_broken: { status: 502, retry: 'elsewhere' },
  transfer_failed: { status: 502, retry: 'elsewhere' },
  /** The instance lives but cannot do this work now. */
  unavailable: { status: 503, retry: 'elsewhere' },
  overloaded: { status: 503, retry: 'later' },
  /** The cluster works, and would not meet the targets of the request now. */
  rate_limit_exceeded: { status: 429, retry: 'later' },
  deadline_exceeded: { status: 504, retry: 'later' },
} as const satisfies Record<string, { status: number; retry: 'never' | 'later' | 'elsewhere' }>;

/** Code of an expected failure, from the closed table above. */
export type FailureCode = keyof typeof failures;

/** The cause of a failure, when a retry is expected to succeed, and what clients read of it. */
export interface FailureOptions extends ErrorOptions {
  readonly retryAfterMs?: number | undefined;
  /** The message as clients read it, where the message names a process or its address; undefined: the message itself. */
  readonly told?: string | undefined;
}

/** An error that callers are expected to handle. Its code determines the HTTP status and whether a retry helps. */
export class Failure extends Error {
  readonly code: FailureCode;
  /** Milliseconds after which a retry is expected to succeed; undefined where nothing is known. */
  readonly retryAfterMs: number | undefined;
  /** The message as clients read it: without names and addresses of the processes of the cluster. */
  readonly told: string;

  constructor(code: FailureCode, message: string, options: FailureOptions = {}) {
    super(message, options);
    this.name = 'Failure';
    this.code = code;
    this.retryAfterMs = options.retryAfterMs;
    this.told = options.told ?? message;
  }

  get status(): number {
    return failures[this.code].status;
  }

  get retry(): 'never' | 'later' | 'elsewhere' {
    return failures[this.code].retry;
  }
}

/** Whether `code` is in the table of failures: a code from another process may be any text. */
export function isFailureCode(code: string): code is FailureCode {
  return Object.hasOwn(failures, code);
}

/** Returns the code of a thrown value that has one of the table, whichever copy of this module made it; undefined for any other value. */
export function failureCodeOf(error: unknown): FailureCode | undefined {
  if (!(error instanceof Error) || !('code' in error)) return undefined;
  return typeof error.code === 'string' && isFailureCode(error.code) ? error.code : undefined;
}

/** Returns the message of a thrown value: an Error's own, or the value as text. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Returns the message of a thrown value as clients read it: without names and addresses of the processes of the cluster. */
export function toldOf(error: unknown): string {
  return error instanceof Failure ? error.told : messageOf(error);
}

/** Returns a thrown value as a Failure: unchanged if it is one, else with code `internal` and the value as its cause. */
export function asFailure(error: unknown): Failure {
  return error instanceof Failure ? error : new Failure('internal', messageOf(error), { cause: error });
}

/** Returns the HTTP status of an error: a Failure's own status, a `statusCode` from 400 to 599, else 500. */
export function errorStatus(error: unknown): number {
  if (error instanceof Failure) return error.status;
  const { statusCode } = error as { statusCode?: number };
  return statusCode !== undefined && statusCode >= 400 && statusCode < 600 ? statusCode : 500;
}
