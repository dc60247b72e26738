/** Progress of a long command as text: one line that is written anew on a terminal, elsewhere a further line every few seconds. */

/** How far a replay is. */
export interface ReplayProgress {
  /** The work of this moment, for instance the policy, its rate and the seed. */
  readonly text: string;
  /** Share of the whole work that is done, from 0 to 1. */
  readonly share: number;
}

/** Milliseconds between two updates. */
const REFRESH_MS = { terminal: 200, lines: 5_000 };
/** Characters of a line on a terminal: one that wraps would not be written over. */
const MAX_WIDTH = 100;

/** Where progress is shown. */
export interface ProgressOutput {
  /** Writes text; the result is not used. */
  write(text: string): unknown;
  readonly isTTY?: boolean | undefined;
}

/** Shows progress on an output. */
export class ProgressText {
  readonly #out: ProgressOutput;
  readonly #nowMs: () => number;
  readonly #begunMs: number;
  #shownMs = -Infinity;
  #isOpen = false;

  constructor(out: ProgressOutput, nowMs: () => number) {
    this.#out = out;
    this.#nowMs = nowMs;
    this.#begunMs = nowMs();
  }

  /** Shows how far the work is, unless that was done a moment ago. */
  show({ text, share }: ReplayProgress): void {
    const nowMs = this.#nowMs();
    const isTerminal = this.#out.isTTY === true;
    if (nowMs - this.#shownMs < (isTerminal ? REFRESH_MS.terminal : REFRESH_MS.lines)) return;
    this.#shownMs = nowMs;
    const seconds = Math.round((nowMs - this.#begunMs) / 1_000);
    const line = `${Math.floor(100 * Math.min(1, Math.max(0, share)))} %, ${seconds} s: ${text}`;
    this.#out.write(isTerminal ? `\r\x1b[K${line.slice(0, MAX_WIDTH)}` : `${line}\n`);
    this.#isOpen = isTerminal;
  }

  /** Clears the line on a terminal, so that what follows begins on an empty one. */
  end(): void {
    if (this.#isOpen) this.#out.write('\r\x1b[K');
    this.#isOpen = false;
  }
}
