/** Progress of a long transfer, shown to people. */
import type { Progress } from '../../shared/hub/hub.ts';

const MIB = 2 ** 20;
const BAR_WIDTH = 24;
/** Milliseconds between two updates. A terminal's line is overwritten; elsewhere each update adds a line. */
const REFRESH_MS = { terminal: 200, lines: 5_000 };

/** Returns a number of bytes in MiB, with one decimal. */
export function mebibytes(bytes: number): string {
  return `${(bytes / MIB).toFixed(1)} MiB`;
}

/** Shows progress as one bar that is redrawn on a terminal, elsewhere as a new line every few seconds. */
export class ProgressLine {
  readonly #out: { write(text: string): unknown; readonly isTTY?: boolean };
  readonly #nowMs: () => number;
  #begunMs: number | undefined;
  #begunBytes = 0;
  #shownMs = -Infinity;
  #isOpen = false;

  constructor(out: { write(text: string): unknown; readonly isTTY?: boolean }, nowMs: () => number) {
    this.#out = out;
    this.#nowMs = nowMs;
  }

  show({ file, doneBytes, totalBytes }: Progress): void {
    const nowMs = this.#nowMs();
    const isTerminal = this.#out.isTTY === true;
    const isLast = doneBytes >= totalBytes;
    if (this.#begunMs === undefined) [this.#begunMs, this.#begunBytes] = [nowMs, doneBytes];
    const pauseMs = isTerminal ? REFRESH_MS.terminal : REFRESH_MS.lines;
    if (nowMs - this.#shownMs < pauseMs && !(isLast && this.#isOpen)) return;
    this.#shownMs = nowMs;
    const rate = (doneBytes - this.#begunBytes) / Math.max(1, nowMs - this.#begunMs);
    const leftS = rate > 0 ? Math.ceil((totalBytes - doneBytes) / rate / 1_000) : undefined;
    const percent = totalBytes > 0 ? Math.floor((100 * doneBytes) / totalBytes) : 100;
    const text =
      `${percent} % of ${mebibytes(totalBytes)}, ${((rate * 1_000) / MIB).toFixed(1)} MiB/s` +
      `${leftS === undefined ? '' : `, ${leftS} s left`}: ${file}`;
    if (!isTerminal) {
      this.#out.write(`${text}\n`);
      return;
    }
    const filled = Math.round((BAR_WIDTH * percent) / 100);
    this.#out.write(`\r\x1b[K[${'#'.repeat(filled)}${'.'.repeat(BAR_WIDTH - filled)}] ${text}${isLast ? '\n' : ''}`);
    this.#isOpen = !isLast;
    // The next call starts another transfer, whose rate is measured anew.
    if (isLast) this.#begunMs = undefined;
  }

  note(text: string): void {
    this.#out.write(`${this.#isOpen ? '\n' : ''}${text}\n`);
    this.#isOpen = false;
  }
}
