/** Requests as the log lists them: the facts by which they are found and ordered, and their records when they are asked for. */
import { recordOf, recordText } from './record_text.ts';
import type { RequestRecord } from './request_record.ts';
import type { RequestPhase } from './request_state.ts';

/**
 * Bytes of a closed request besides its text and its id: its object, four times that are no whole numbers, and its places in the lists of the log.
 * Its other texts are those of all requests of an endpoint, a model or a client.
 */
const OBJECT_BYTES = 320;
/** First character that makes a text take two bytes each. */
const WIDE = /[\u0100-\uffff]/;

/** One request of the log. */
export interface LoggedRequest {
  readonly id: string;
  /** Number of the request in the order of their starts at this router, from 1. */
  readonly sequence: number;
  readonly clientId: string | undefined;
  readonly endpoint: string;
  readonly model: string | undefined;
  readonly tenant: string | undefined;
  /** Start in milliseconds since 1970. */
  readonly startedAtMs: number;
  readonly phase: RequestPhase;
  /** Whether an error ended it. */
  readonly hasError: boolean;
  readonly ttftMs: number | undefined;
  /** Undefined until the request has ended. */
  readonly totalMs: number | undefined;
  /** All that is known of it; made anew each time for one that has ended. */
  readonly record: RequestRecord;
  /** Whether its record may quote `text`; always for one in flight. Cheaper than the record. */
  readonly mayQuote: (text: string) => boolean;
}

type Found = Omit<LoggedRequest, 'record' | 'mayQuote'>;

/** Returns a request in flight as the log lists it. */
export function activeRequest(record: RequestRecord): LoggedRequest {
  return { ...foundBy(record), record, mayQuote: () => true };
}

/** A request that has ended: a few facts, and all others as one text. */
export class ClosedRequest implements LoggedRequest {
  readonly id: string;
  readonly sequence: number;
  readonly clientId: string | undefined;
  readonly endpoint: string;
  readonly model: string | undefined;
  readonly tenant: string | undefined;
  readonly startedAtMs: number;
  readonly phase: RequestPhase;
  readonly hasError: boolean;
  readonly ttftMs: number | undefined;
  readonly totalMs: number | undefined;
  /** Router time, in ms, of its end. */
  readonly endMs: number;
  #text: string;
  #numBytes: number;

  constructor(record: RequestRecord, endMs: number) {
    const found = foundBy(record);
    this.id = found.id;
    this.sequence = found.sequence;
    this.clientId = found.clientId;
    this.endpoint = found.endpoint;
    this.model = found.model;
    this.tenant = found.tenant;
    this.startedAtMs = found.startedAtMs;
    this.phase = found.phase;
    this.hasError = found.hasError;
    this.ttftMs = found.ttftMs;
    this.totalMs = found.totalMs;
    this.endMs = endMs;
    this.#text = recordText(record);
    this.#numBytes = bytesOf(this.id, this.clientId ?? '', this.#text);
  }

  /** Bytes that it takes, as estimated from its texts. */
  get numBytes(): number {
    return this.#numBytes;
  }

  get record(): RequestRecord {
    return recordOf(this.#text);
  }

  mayQuote(text: string): boolean {
    return this.#text.includes(JSON.stringify(text).slice(1, -1));
  }

  /** Takes its record anew, which an event after its end has changed. */
  rewrite(record: RequestRecord): void {
    this.#text = recordText(record);
    this.#numBytes = bytesOf(this.id, this.clientId ?? '', this.#text);
  }
}

function foundBy(record: RequestRecord): Found {
  const { id, sequence, endpoint, facts, startedAtMs, phase, failure, ttftMs, totalMs } = record;
  const { clientId, tenant } = facts.names;
  const asked = { id, sequence, clientId, endpoint, model: facts.model, tenant, startedAtMs };
  return { ...asked, phase, hasError: failure !== undefined, ttftMs, totalMs };
}

/** Returns the bytes of a closed request with these texts. */
function bytesOf(...texts: readonly string[]): number {
  return texts.reduce((sum, text) => sum + (WIDE.test(text) ? 2 : 1) * text.length, OBJECT_BYTES);
}
