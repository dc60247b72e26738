/** Formats a child's log lines for people: `name level message key=value`. Any other line is printed as it is, after the child's name. */
const levels: Record<number, string> = { 20: 'debug', 30: 'info', 40: 'warn', 50: 'error' };
const hidden = new Set(['level', 'time', 'pid', 'hostname', 'name', 'msg']);
/** A line longer than this is cut: nobody reads it, and it must not grow without bound (P1). */
const MAX_LINE = 65_536;
/** Dawn's warning, printed for every adapter, about lowered limits that this program does not need. */
const NOISE = /^Warning: maxDynamic\w+ artificially reduced/;

/** Splits the output of a child process into lines and writes each one with the child's name in front. */
export class LogLines {
  readonly #name: string;
  readonly #write: (line: string) => void;
  #rest = '';

  constructor(name: string, write: (line: string) => void) {
    this.#name = name;
    this.#write = write;
  }

  push(text: string): void {
    const lines = (this.#rest + text).split('\n');
    this.#rest = (lines.pop() ?? '').slice(0, MAX_LINE);
    for (const line of lines) if (line !== '' && !NOISE.test(line)) this.#write(this.#format(line));
  }

  #format(line: string): string {
    try {
      const entry = JSON.parse(line) as Record<string, unknown>;
      const details = Object.entries(entry)
        .filter(([key]) => !hidden.has(key))
        .map(([key, value]) => `${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`);
      return [
        this.#name,
        levels[Number(entry['level'])] ?? '',
        typeof entry['msg'] === 'string' ? entry['msg'] : '',
        ...details,
      ].join(' ');
    } catch {
      return `${this.#name} ${line}`;
    }
  }
}
