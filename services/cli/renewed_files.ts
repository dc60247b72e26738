/** Files of secrets that are renewed while a process runs: by a new text, another file in their place, or a symbolic link that changes. */
import { readFileSync } from 'node:fs';
import { every, type Clock } from '../../shared/base/clock.ts';
import type { Current } from '../../shared/base/current.ts';
import { messageOf } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';

/** Milliseconds between two looks at files. They are read whole, because not every file system tells of changes. */
export const LOOK_MS = 2_000;
/** Looks at which a changed text must be the same before it counts: files are written one after the other, and piece by piece. */
const STEADY_LOOKS = 2;

/** Files that belong together, and what their texts make. */
export interface Renewal<T> {
  /** Name of what they hold, for the log, such as "certificate of this process". */
  readonly name: string;
  readonly files: readonly string[];
  /** Returns what the texts of the files make, in their order. `old` is used now. @throws Error with what to do, when it cannot replace `old`. */
  readonly read: (texts: readonly string[], old: T) => T;
  /** Returns fields of the log that tell what is used now; no secrets. */
  readonly shown: (value: T) => object;
}

/** Looks at files again and again, and replaces `current` when their texts change. */
export class RenewedFiles<T> {
  readonly #renewal: Renewal<T>;
  readonly #current: Current<T>;
  readonly #log: Log;
  /** Texts of `current`; of the last look; and those that were refused, with why. */
  #used: string;
  #seen: string;
  #refused = '';
  #numLooks = 0;

  constructor(renewal: Renewal<T>, current: Current<T>, log: Log) {
    [this.#renewal, this.#current, this.#log] = [renewal, current, log];
    this.#used = this.#seen = JSON.stringify(textsOf(renewal.files));
  }

  /** Looks every LOOK_MS until `signal` aborts. */
  watch(clock: Clock, signal: AbortSignal): void {
    every(clock, LOOK_MS, signal, () => {
      this.look();
    });
  }

  look(): void {
    const { name, files, read, shown } = this.#renewal;
    const texts = textsOf(files);
    const seen = JSON.stringify(texts);
    this.#numLooks = seen === this.#seen ? this.#numLooks + 1 : 1;
    this.#seen = seen;
    if (seen === this.#used) this.#refused = '';
    if (seen === this.#used || this.#numLooks < STEADY_LOOKS) return;
    try {
      if (texts instanceof Error) throw texts;
      const value = read(texts, this.#current.value);
      [this.#used, this.#refused] = [seen, ''];
      this.#current.replace(value);
      this.#log.info(shown(value), `the ${name} has been renewed: connections that begin now use it`);
    } catch (error) {
      // Each fault is said once. Some pass: a certificate may be valid later.
      const refused = `${seen} ${messageOf(error)}`;
      if (refused === this.#refused) return;
      this.#refused = refused;
      this.#log.warn(
        { files, reason: messageOf(error), ...shown(this.#current.value) },
        `the renewed ${name} cannot be used, and the one of before is kept`,
      );
    }
  }
}

function textsOf(files: readonly string[]): readonly string[] | Error {
  try {
    return files.map((file) => readFileSync(file, 'utf8'));
  } catch (error) {
    return error as Error;
  }
}
