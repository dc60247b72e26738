/**
 * Downloads one file of a hub: resumes a partial download, retries when the hub is busy or the connection breaks, and verifies the
 * checksum before the file gets its name.
 */
import { createHash } from 'node:crypto';
import { createReadStream, existsSync, renameSync, rmSync, statSync } from 'node:fs';
import { mkdir, open } from 'node:fs/promises';
import { dirname } from 'node:path';
import { Backoff } from '../base/backoff.ts';
import { every, type Clock } from '../base/clock.ts';
import { messageOf } from '../base/failure.ts';

/** The hub does not have the file, refuses it, or sends bytes other than it lists; the message names the remedy. */
export class HubError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'HubError';
  }
}

/** A file of a hub, with the size and checksum that the hub lists. */
export interface RemoteFile {
  readonly url: string;
  readonly bytes: number;
  /** SHA-256 of the bytes, or git's SHA-1 of a blob. */
  readonly checksum: { readonly kind: 'sha256' | 'git'; readonly hex: string };
}

/** Type of the global `fetch`, so that tests can pass another. */
export type Fetch = typeof globalThis.fetch;

/** Settings and callbacks of one download. An empty `token` sends no authorisation. */
export interface DownloadOptions {
  readonly fetch: Fetch;
  readonly clock: Clock;
  readonly token: string;
  readonly signal?: AbortSignal;
  /** Called with the number of bytes of the file that have arrived. */
  readonly onBytes: (bytes: number) => void;
  readonly onRetry: (reason: string, inMs: number) => void;
}

/** Consecutive attempts without a new byte after which the download fails. */
const MAX_FRUITLESS = 6;
const MIN_PAUSE_MS = 500;
const MAX_PAUSE_MS = 30_000;
/** Milliseconds without a byte after which the connection counts as dead. */
const SILENCE_MS = 30_000;

/**
 * An attempt that ended before the whole file was there, and may be repeated. `afterMs` is the wait that the hub asked for, undefined
 * when it named none.
 */
class Interrupted extends Error {
  readonly afterMs: number | undefined;

  constructor(message: string, afterMs?: number) {
    super(message);
    this.name = 'Interrupted';
    this.afterMs = afterMs;
  }
}

/** Downloads the file to `path`; until it is complete its bytes are in `path`.incomplete. @throws HubError */
export async function download(file: RemoteFile, path: string, options: DownloadOptions): Promise<void> {
  const { clock, onRetry, signal } = options;
  await mkdir(dirname(path), { recursive: true });
  const part = `${path}.incomplete`;
  let isSecond = false;
  const backoff = new Backoff({ clock, firstMs: MIN_PAUSE_MS, mostMs: MAX_PAUSE_MS });
  for (let numFruitless = 0; ;) {
    const before = sizeOf(part);
    try {
      if (before !== file.bytes || file.bytes === 0) await fetchRest(file, part, before, options);
      if (await isWhole(file, part)) break;
      rmSync(part, { force: true });
      if (isSecond) throw new HubError(`${file.url} has other bytes than the hub says, twice: try again later`);
      isSecond = true;
      onRetry('the checksum differs from the one that the hub lists', 0);
    } catch (error) {
      if (!(error instanceof Interrupted)) throw error;
      signal?.throwIfAborted();
      const isNew = sizeOf(part) > before;
      numFruitless = isNew ? 0 : numFruitless + 1;
      if (isNew) backoff.reset();
      if (numFruitless >= MAX_FRUITLESS)
        throw new HubError(`${file.url} does not come: ${error.message}; run it again to go on from there`, {
          cause: error,
        });
      const pauseMs = backoff.lengthen();
      const waitMs = Math.min(error.afterMs ?? pauseMs, MAX_PAUSE_MS);
      onRetry(error.message, waitMs);
      await clock.sleep(waitMs, signal);
    }
  }
  renameSync(part, path);
}

function sizeOf(path: string): number {
  return existsSync(path) ? statSync(path).size : 0;
}

/** Downloads the bytes that are missing in `part`. @throws Interrupted when a retry may bring more, HubError when none will. */
async function fetchRest(
  { url, bytes }: RemoteFile,
  part: string,
  from: number,
  { fetch, clock, token, signal, onBytes }: DownloadOptions,
): Promise<void> {
  // A partial file longer than the whole one is not its beginning: start over.
  let at = from > bytes ? 0 : from;
  const silence = new AbortController();
  const over = new AbortController();
  let heardMs = clock.nowMs();
  every(clock, SILENCE_MS / 10, over.signal, () => {
    if (clock.nowMs() - heardMs > SILENCE_MS) silence.abort(new Error(`nothing came for ${SILENCE_MS / 1_000} s`));
  });
  try {
    const response = await fetch(url, {
      headers: {
        ...(at > 0 ? { range: `bytes=${at}-` } : {}),
        ...(token ? { authorization: `Bearer ${token}` } : {}),
        // Byte ranges count uncompressed bytes.
        'accept-encoding': 'identity',
      },
      signal: signal ? AbortSignal.any([signal, silence.signal]) : silence.signal,
    });
    refuse(response, url);
    if (response.status !== 206) at = 0;
    const file = await open(part, at > 0 ? 'r+' : 'w');
    try {
      await file.truncate(at);
      for await (const chunk of (response.body ?? []) as AsyncIterable<Uint8Array>) {
        heardMs = clock.nowMs();
        if (at + chunk.length > bytes)
          throw new HubError(`${url} is longer than the ${bytes} bytes that the hub lists: try again later`);
        await file.write(chunk, 0, chunk.length, at);
        at += chunk.length;
        onBytes(at);
      }
    } finally {
      await file.close();
    }
  } catch (error) {
    if (error instanceof HubError || error instanceof Interrupted) throw error;
    if (isFull(error)) throw new HubError(`the disk of ${part} is full: make room, and run it again`, { cause: error });
    const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : '';
    throw new Interrupted(`${messageOf(silence.signal.aborted ? silence.signal.reason : error)}${cause}`);
  } finally {
    over.abort();
  }
  if (at < bytes) throw new Interrupted(`the connection ended at ${at} of ${bytes} bytes`);
}

function refuse({ status, ok, headers }: Response, url: string): void {
  if (ok) return;
  if (status === 429 || status >= 500) {
    const seconds = Number(headers.get('retry-after') ?? NaN);
    throw new Interrupted(
      `the hub answered ${status}`,
      Number.isFinite(seconds) ? Math.max(0, seconds) * 1_000 : undefined,
    );
  }
  if (status === 401 || status === 403)
    throw new HubError(`the hub refuses ${url} (${status}): accept the model's terms there, and set HF_TOKEN`);
  throw new HubError(`the hub has no ${url} (${status})`);
}

function isFull(error: unknown): boolean {
  return error instanceof Error && 'code' in error && (error.code === 'ENOSPC' || error.code === 'EDQUOT');
}

async function isWhole({ bytes, checksum }: RemoteFile, path: string): Promise<boolean> {
  const hash = createHash(checksum.kind === 'git' ? 'sha1' : 'sha256');
  if (checksum.kind === 'git') hash.update(`blob ${bytes}\0`);
  for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer);
  return hash.digest('hex') === checksum.hex;
}
