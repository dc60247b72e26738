/**
 * The audit log: one line of JSON for each request that asked for more than a route open to everybody. A line has names and counts only, none of
 * which a client can choose freely: no key, no text, no path as it was sent.
 *
 *   add ─► lines, at most MAX_LINES ─► batches ─► file        the disk takes a batch: the next one
 *                    ╰► full: dropped, counted                it does not: the same again, RETRY_MS later
 *
 * No request waits for the disk. When lines were dropped, a line in their place says how many.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { messageOf } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import type { Appender } from '../../../shared/node/role.ts';

/** Lines that wait for the disk (P1), about 6 MB: further ones are dropped. */
const MAX_LINES = 16_384;
/** Lines of a batch, and milliseconds in which they come together. */
const MAX_BATCH = 1_024;
const BATCH_MS = 50;
const RETRY_MS = 1_000;
/** Milliseconds for which the end of the router waits for the disk. */
const CLOSE_MS = 2_000;

/** A request, as its line has it. */
export interface AuditEntry {
  /** Start of the request, as ISO 8601. */
  readonly time: string;
  /** Names of the key and its tenant; empty where no key was known. */
  readonly key: string;
  readonly tenant: string;
  /** Address of the client; null where it is not known. */
  readonly address: string | null;
  readonly method: string;
  /** Path with the names of its parameters in braces; `none` for one that the server does not have. */
  readonly route: string;
  /** Served model; null where none was found. */
  readonly model: string | null;
  /** 499: the client left first. */
  readonly status: number;
  /** Code of the error; null without one. */
  readonly error: string | null;
  readonly prompt_tokens: number;
  readonly cached_tokens: number;
  readonly output_tokens: number;
  /** Id in `/api/requests`, of the first prompt; null where there is none. */
  readonly request_id: string | null;
  readonly duration_ms: number;
}

/** Dependencies of {@link AuditLog}. */
export interface AuditLogOptions {
  /** Name of the file, for the log. */
  readonly file: string;
  readonly appender: Appender;
  readonly clock: Clock;
  readonly log: Log;
}

/** Writes lines to the file of `--audit-log`. */
export class AuditLog {
  readonly #options: AuditLogOptions;
  readonly #lines: string[] = [];
  readonly #closing = new AbortController();
  /** Lines that were dropped since the last one that was taken. */
  #numMissing = 0;
  #numDropped = 0;
  /** Whether the log has been told that lines cannot be written. */
  #isFaulty = false;
  #writing: Promise<void> | undefined;

  constructor(options: AuditLogOptions) {
    this.#options = options;
  }

  /** Lines that were dropped because the file could not be written. */
  get numDropped(): number {
    return this.#numDropped;
  }

  /** Adds the line of a request, which has ended. */
  add(entry: AuditEntry): void {
    if (this.#lines.length >= MAX_LINES) {
      this.#numMissing++;
      this.#numDropped++;
      this.#fault('the disk takes too long');
      return;
    }
    this.#sayMissing();
    this.#lines.push(lineOf(entry));
    this.#writing ??= this.#write();
  }

  /** Writes what waits, and closes the file; waits for a disk that does not answer for two seconds at most. */
  async close(): Promise<void> {
    const { clock, appender, log, file } = this.#options;
    this.#closing.abort();
    const isOver = await Promise.race([
      Promise.resolve(this.#writing).then(() => true),
      clock.sleep(CLOSE_MS).then(() => false),
    ]);
    const numLost = this.#lines.length + this.#numMissing;
    if (numLost > 0)
      log.warn({ file, lines: numLost }, 'the audit log lacks its last lines: the file cannot be written');
    if (isOver) await appender.close();
  }

  async #write(): Promise<void> {
    const { appender, clock } = this.#options;
    const { signal } = this.#closing;
    while (this.#lines.length > 0) {
      await clock.sleep(BATCH_MS, signal);
      const batch = this.#lines.slice(0, MAX_BATCH);
      try {
        await appender.append(batch.join(''));
      } catch (error) {
        this.#fault(messageOf(error));
        if (signal.aborted) break;
        await clock.sleep(RETRY_MS, signal);
        continue;
      }
      this.#lines.splice(0, batch.length);
      this.#sayMissing();
      this.#recovered();
    }
    this.#writing = undefined;
  }

  /** Puts a line in the place of those that were dropped; from there on others are taken again. */
  #sayMissing(): void {
    if (this.#numMissing === 0) return;
    const time = new Date(this.#options.clock.wallMs()).toISOString();
    this.#lines.push(lineOf({ time, missing: this.#numMissing }));
    this.#numMissing = 0;
  }

  /** The log is told once that the file cannot be written. */
  #fault(reason: string): void {
    if (this.#isFaulty) return;
    this.#isFaulty = true;
    const { log, file } = this.#options;
    log.warn(
      { file, reason },
      `the audit log cannot be written: ${MAX_LINES} lines are kept, further ones are dropped`,
    );
  }

  #recovered(): void {
    if (!this.#isFaulty) return;
    this.#isFaulty = false;
    const { log, file } = this.#options;
    log.info({ file, dropped: this.#numDropped }, 'the audit log is written again');
  }
}

function lineOf(entry: object): string {
  return `${JSON.stringify(entry)}\n`;
}
