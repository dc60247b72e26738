/** Files of secrets that are renewed while a process runs: by a new text, another file in their place, or a symbolic link that changes. */
import { readFile, stat } from 'node:fs/promises';
import type { Clock } from '../../shared/base/clock.ts';
import type { Current } from '../../shared/base/current.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import type { WatchedFiles } from '../../shared/node/role.ts';

/** Milliseconds between two looks at files. They are read whole, because not every file system tells of changes. */
export const LOOK_MS = 2_000;
/** Looks at which a changed text must be the same before it counts: files are written one after the other, and piece by piece. */
const STEADY_LOOKS = 2;
/** Bytes of a file that states no other bound (P1). */
const MAX_BYTES = 1 << 20;

/** Returns the text of a file. Rejects where it cannot be read, is no file of a secret, or has more than `maxBytes`. */
export type ReadText = (file: string, maxBytes?: number) => Promise<string>;

/** The {@link ReadText} of the machine. A pipe, which has its text once, has none. */
export async function regularText(file: string, maxBytes = MAX_BYTES): Promise<string> {
  const found = await stat(file);
  if (!found.isFile()) throw new Error(`${file} is no regular file`);
  if (found.size > maxBytes) throw new Error(`${file} has ${found.size} bytes, more than ${maxBytes}`);
  return readFile(file, 'utf8');
}

/** Looks at files again and again, and replaces `current` when their texts change. */
export class RenewedFiles<T> {
  readonly #renewal: WatchedFiles<T>;
  readonly #current: Current<T>;
  readonly #log: Log;
  readonly #readText: ReadText;
  /** Texts of `current`, once they are known; those of the last look; those that were judged last; and those that were refused, with why. */
  #used: string | undefined;
  #seen = '';
  #judgedTexts = '';
  #refused = '';
  #numLooks = 0;

  /** `used`: texts that `current` was made of, where they are known: they are not judged again. */
  constructor(renewal: WatchedFiles<T>, current: Current<T>, log: Log, readText: ReadText, used?: readonly string[]) {
    [this.#renewal, this.#current, this.#log, this.#readText] = [renewal, current, log, readText];
    this.#used = used && joined(used);
  }

  /** Looks every `lookMs` until `signal` aborts. */
  async watch(clock: Clock, signal: AbortSignal, lookMs = LOOK_MS): Promise<void> {
    for (;;) {
      await this.look();
      await clock.sleep(lookMs, signal);
      if (signal.aborted) return;
    }
  }

  /** Reads the files. @throws what a listener of `current` throws */
  async look(): Promise<void> {
    const texts = await this.#texts();
    const seen = texts instanceof Error ? texts.message : joined(texts);
    this.#numLooks = seen === this.#seen ? this.#numLooks + 1 : 1;
    this.#seen = seen;
    if (seen === this.#used) [this.#judgedTexts, this.#refused] = ['', ''];
    if (seen === this.#used || this.#numLooks < STEADY_LOOKS) return;
    // A long text takes long to judge: it is judged again only where time can change what comes of it.
    if (seen === this.#judgedTexts && this.#renewal.dependsOnTime !== true) return;
    this.#judgedTexts = seen;
    const value = this.#judged(texts);
    if (value === undefined) return;
    [this.#used, this.#judgedTexts, this.#refused] = [seen, '', ''];
    // At the first looks the texts are those that the process has read at its start.
    if (JSON.stringify(value) === JSON.stringify(this.#current.value)) return;
    this.#current.replace(value);
    const { name, shown, effect = 'connections that begin now use it' } = this.#renewal;
    this.#log.info(shown(value), `the ${name} has been renewed: ${effect}`);
  }

  /** Returns what the texts make; undefined where that cannot be used. Each fault is said once; some pass: a certificate may be valid later. */
  #judged(texts: readonly string[] | Error): T | undefined {
    const { name, files, read, shown } = this.#renewal;
    try {
      if (texts instanceof Error) throw texts;
      return read(texts, this.#current.value);
    } catch (error) {
      const refused = `${this.#seen} ${messageOf(error)}`;
      if (refused === this.#refused) return undefined;
      this.#refused = refused;
      this.#log.warn(
        { files, reason: messageOf(error), ...shown(this.#current.value) },
        `the renewed ${name} cannot be used, and the one of before is kept`,
      );
      return undefined;
    }
  }

  async #texts(): Promise<readonly string[] | Error> {
    try {
      return await Promise.all(this.#renewal.files.map((file) => this.#readText(file, this.#renewal.maxBytes)));
    } catch (error) {
      return error as Error;
    }
  }
}

/** Returns one text for several: equal for equal ones only. */
function joined(texts: readonly string[]): string {
  return texts.map((text) => `${text.length}:${text}`).join('');
}
