/** A terminal in raw mode with its alternate screen: draws lines in place, and reports key presses. */
import type { EventEmitter } from 'node:events';
import type { ScreenLine } from './top_screen.ts';

const ESCAPE = '\x1b[';
const OPEN = `${ESCAPE}?1049h${ESCAPE}?25l${ESCAPE}?7l`;
const CLOSE = `${ESCAPE}?7h${ESCAPE}?25h${ESCAPE}?1049l`;
const STYLES: Readonly<Record<ScreenLine['style'], string>> = { plain: '', head: '7', alarm: '1;31', dim: '2' };

/** Names of the keys that send several characters. */
const NAMED: Readonly<Record<string, string>> = { '\x1b[A': 'up', '\x1bOA': 'up', '\x1b[B': 'down', '\x1bOB': 'down' };

const USUAL_WIDTH = 80;
const USUAL_HEIGHT = 24;

/** Returns what a terminal is sent to show the lines in place of what it shows. */
export function drawn(lines: readonly ScreenLine[]): string {
  const rows = lines.map(({ text, style }) => {
    const code = STYLES[style];
    return `${code === '' ? text : `${ESCAPE}${code}m${text}${ESCAPE}0m`}${ESCAPE}K`;
  });
  return `${ESCAPE}H${rows.join('\r\n')}${ESCAPE}J`;
}

/** Returns the keys of what a terminal has sent: letters and names; other sequences are left out. */
export function keysOf(text: string): string[] {
  // eslint-disable-next-line no-control-regex -- keys are control characters
  return [...text.matchAll(/\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|[^\x1b]/gu)].flatMap(([key]) =>
    key.startsWith('\x1b') ? (NAMED[key] ?? []) : key,
  );
}

/** Part of a terminal's input that is used. */
interface TerminalInput extends Pick<EventEmitter, 'on' | 'off'> {
  setRawMode(isRaw: boolean): unknown;
  resume(): unknown;
  pause(): unknown;
}

/** Part of a terminal's output that is used. */
interface TerminalOutput extends Pick<EventEmitter, 'on' | 'off'> {
  readonly columns: number;
  readonly rows: number;
  write(text: string): unknown;
}

/** A terminal that is used by one view, from `open` to `close`. */
export class Terminal {
  readonly #in: TerminalInput;
  readonly #out: TerminalOutput;
  readonly #onData: (bytes: Buffer) => void;
  #onResize: () => void = () => undefined;

  constructor(input: TerminalInput, output: TerminalOutput, onKey: (key: string) => void) {
    this.#in = input;
    this.#out = output;
    this.#onData = (bytes) => {
      for (const key of keysOf(bytes.toString('utf8'))) onKey(key);
    };
  }

  /** Columns of the terminal. */
  get width(): number {
    return this.#out.columns || USUAL_WIDTH;
  }

  /** Lines of the terminal. */
  get height(): number {
    return this.#out.rows || USUAL_HEIGHT;
  }

  /** Takes the terminal over; `onResize` is called when its size has changed. */
  open(onResize: () => void): void {
    this.#onResize = onResize;
    this.#out.write(OPEN);
    this.#out.on('resize', this.#onResize);
    this.#in.setRawMode(true);
    this.#in.on('data', this.#onData);
    this.#in.resume();
  }

  draw(lines: readonly ScreenLine[]): void {
    this.#out.write(drawn(lines));
  }

  /** Gives the terminal back as it was. */
  close(): void {
    this.#in.off('data', this.#onData);
    this.#in.setRawMode(false);
    this.#in.pause();
    this.#out.off('resize', this.#onResize);
    this.#out.write(CLOSE);
  }
}
