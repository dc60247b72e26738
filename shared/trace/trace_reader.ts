/**
 * Reads traces in Mooncake's format, one request a line, and refuses what is not in it, by line and key:
 *
 *   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}
 *
 * `timestamp` is in milliseconds, ascending. `hash_ids` has an id for each block of `input_length` tokens, the last block may be
 * partial. Equal ids are equal blocks after equal prefixes.
 */
import { Failure, messageOf } from '../base/failure.ts';
import { lineBatches } from './text_lines.ts';
import { MAX_HASH_IDS, MAX_REQUESTS, TraceBuilder, type NewRequest, type Trace } from './trace.ts';

/** Longest prompt and longest answer that a trace may have, in tokens. */
const MAX_TOKENS = 2 ** 24;
/**
 * Longest pause between two requests, in milliseconds. Rates are means over the whole trace, which say nothing about two traces in one
 * file; a longer pause is most often a timestamp in another unit.
 */
const MAX_PAUSE_MS = 3_600_000;

const REQUIRED = ['timestamp', 'input_length', 'output_length', 'hash_ids'];
/** Keys that other tools add. A replay does not use the labels among them; `tenant` and `priority` go with the request. */
const OPTIONAL = ['tenant', 'priority', 'session_id', 'chat_id', 'parent_chat_id', 'turn', 'type'];
const KNOWN = new Set([...REQUIRED, ...OPTIONAL]);

/** How a trace is read. */
export interface ReadTraceOptions {
  /** Tokens per block id. */
  readonly blockTokens: number;
  /** Only the first requests are read, this many at most; undefined: all. */
  readonly maxRequests?: number | undefined;
  /** Called after each chunk of the file. */
  readonly onProgress?: ((doneBytes: number, totalBytes: number) => void) | undefined;
}

/**
 * Reads the trace in the file `path`. @throws Failure that names line and key, when a line is not a request or out of order, or the trace
 * is larger than MAX_REQUESTS or MAX_HASH_IDS.
 */
export async function readTrace(path: string, options: ReadTraceOptions): Promise<Trace> {
  const { blockTokens, maxRequests = Infinity, onProgress } = options;
  const builder = new TraceBuilder(blockTokens);
  let beforeMs: number | undefined;
  reading: for await (const { lines, isCut, doneBytes, totalBytes } of lineBatches(path)) {
    for (const [i, text] of lines.entries()) {
      const at = `${path}:${builder.numRequests + 1}`;
      if (builder.numRequests >= maxRequests) break reading;
      const request = atLine(at, () => requestOf(text, isCut && i === lines.length - 1, blockTokens));
      atLine(at, () => {
        checkOrder(request.timestampMs, beforeMs);
        addTo(builder, request);
      });
      beforeMs = request.timestampMs;
    }
    onProgress?.(doneBytes, totalBytes);
  }
  if (builder.numRequests === 0) throw new Failure('invalid_request', `${path} has no requests`);
  const trace = builder.build();
  checkChains(trace, path);
  return trace;
}

/** A value of a line is refused. */
class Refusal extends Error {}

function refuse(key: string, message: string): never {
  throw new Refusal(`${key}: ${message}`);
}

/** Returns the result of `read`. @throws Failure with the place for a refusal. */
function atLine<T>(at: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof Refusal) throw new Failure('invalid_request', `${at}: ${error.message}`);
    throw error;
  }
}

function addTo(builder: TraceBuilder, request: NewRequest): void {
  try {
    builder.add(request);
  } catch (error) {
    throw new Refusal(`${messageOf(error)}, or read only its first requests (--requests ${builder.numRequests})`);
  }
}

function requestOf(text: string, isCut: boolean, blockTokens: number): NewRequest {
  if (text.trim() === '') throw new Refusal('the line is empty: a trace has one request in every line');
  const fields = objectOf(text, isCut);
  for (const key of Object.keys(fields))
    if (!KNOWN.has(key))
      refuse(key, `unknown key; a request has ${REQUIRED.join(', ')}, and may have ${OPTIONAL.join(', ')}`);
  for (const key of REQUIRED) if (!Object.hasOwn(fields, key)) refuse(key, 'the key is missing');
  const timestampMs = fields['timestamp'];
  if (typeof timestampMs !== 'number' || !(timestampMs >= 0) || !Number.isFinite(timestampMs))
    refuse('timestamp', `${shown(timestampMs)} is no time: a finite number of milliseconds, not negative`);
  const inputTokens = tokensOf(fields, 'input_length', 'a prompt');
  const outputTokens = tokensOf(fields, 'output_length', 'an answer');
  const hashIds = hashIdsOf(fields['hash_ids'], inputTokens, blockTokens);
  return { timestampMs, inputTokens, outputTokens, hashIds, ...labelsOf(fields) };
}

function objectOf(text: string, isCut: boolean): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch (error) {
    const why = isCut ? 'the file ends within this line' : messageOf(error);
    throw new Refusal(`the line is not JSON: ${why}`);
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed))
    throw new Refusal(`the line is ${shown(parsed)}, not an object with ${REQUIRED.join(', ')}`);
  return parsed as Record<string, unknown>;
}

function tokensOf(fields: Record<string, unknown>, key: string, what: string): number {
  const value = fields[key];
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 1 || value > MAX_TOKENS)
    refuse(key, `${shown(value)} is not allowed: ${what} has 1 to ${MAX_TOKENS} tokens`);
  return value;
}

function hashIdsOf(value: unknown, inputTokens: number, blockTokens: number): readonly number[] {
  if (!Array.isArray(value)) refuse('hash_ids', `${shown(value)} is not a list of block ids`);
  const ids = value as readonly unknown[];
  const wanted = Math.ceil(inputTokens / blockTokens);
  if (ids.length !== wanted)
    refuse(
      'hash_ids',
      `${ids.length} ids, not ${wanted}: one for every ${blockTokens} of ${inputTokens} tokens; if the trace has blocks of another size, name it (--trace-block)`,
    );
  for (const [i, id] of ids.entries())
    if (typeof id !== 'number' || !Number.isSafeInteger(id) || id < 0)
      refuse(`hash_ids[${i}]`, `${shown(id)} is no block id: an integer, not negative and below 2^53`);
  return ids as readonly number[];
}

function labelsOf({ tenant, priority }: Record<string, unknown>): Pick<NewRequest, 'tenant' | 'priority'> {
  if (tenant !== undefined && (typeof tenant !== 'string' || tenant.length > 256))
    refuse('tenant', `${shown(tenant)} is no name of at most 256 characters`);
  if (
    priority !== undefined &&
    (typeof priority !== 'number' || !Number.isInteger(priority) || Math.abs(priority) > 1e9)
  )
    refuse('priority', `${shown(priority)} is no integer from -1000000000 to 1000000000`);
  return { tenant, priority };
}

function checkOrder(timestampMs: number, beforeMs: number | undefined): void {
  if (beforeMs === undefined) return;
  if (timestampMs < beforeMs)
    refuse('timestamp', `${timestampMs} is before ${beforeMs} of the line above: sort the trace by timestamp`);
  if (timestampMs - beforeMs > MAX_PAUSE_MS)
    refuse(
      'timestamp',
      `nothing arrived for ${Math.round((timestampMs - beforeMs) / 1_000)} s: a pause is at most ${MAX_PAUSE_MS / 1_000} s; ` +
        'timestamps are in milliseconds, and two traces are two files',
    );
}

/** Checks that an id always follows the same id: it names a block with its prefix. @throws Failure */
function checkChains(trace: Trace, path: string): void {
  const NONE = -2;
  // The id before each id, -1 where the id is a first one, and the request that showed it.
  const parents = new Int32Array(trace.numBlocks).fill(NONE);
  const seenIn = new Int32Array(trace.numBlocks);
  for (let index = 0; index < trace.numRequests; index++) {
    const ids = trace.hashIdsOf(index);
    for (let i = 0; i < ids.length; i++) {
      const id = ids[i]!;
      const parent = i === 0 ? -1 : ids[i - 1]!;
      if (parents[id] === NONE) [parents[id], seenIn[id]] = [parent, index];
      else if (parents[id] !== parent)
        throw new Failure(
          'invalid_request',
          `${path}:${index + 1}: hash_ids[${i}]: this id has another id before it on line ${seenIn[id]! + 1}: ` +
            'an id names a block together with all blocks before it',
        );
    }
  }
}

/** A value as JSON, shortened for a message. */
function shown(value: unknown): string {
  const text = typeof value === 'number' ? String(value) : JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 60)}…` : text;
}

/** Limits of a trace as text, for the help. */
export const TRACE_LIMITS = `${MAX_REQUESTS.toLocaleString('en')} requests, ${MAX_HASH_IDS.toLocaleString('en')} block ids`;
