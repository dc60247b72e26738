/** Models by name: `penstock model`, and what `--model org/name` brings before anything starts. Nothing of it is on standard output but answers. */
import { ConfigError } from '../../shared/base/options.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Hub, type Progress } from '../../shared/hub/hub.ts';
import { parseRepoName, type RepoName } from '../../shared/model/repo_name.ts';

const MIB = 2 ** 20;
const BAR_WIDTH = 24;
/** On a terminal a line is written over; elsewhere lines add up. */
const REFRESH_MS = { terminal: 200, lines: 5_000 };

/** @returns the folder or the file of `--model`. @throws HubError */
export async function modelFolder(name: string): Promise<string> {
  return openHub().placeOf(name);
}

/** @throws ConfigError for what is no command, HubError. */
export async function runModelCommand([command, name, ...rest]: readonly string[], isJson: boolean): Promise<void> {
  if (rest.length > 0) throw new ConfigError(`penstock model ${command} takes one name, not also ${rest.join(' ')}`);
  switch (command) {
    case 'pull':
      process.stdout.write(`${await openHub().pull(repoOf(command, name))}\n`);
      return;
    case 'remove': {
      const repo = repoOf(command, name);
      const bytes = openHub().remove(repo);
      process.stdout.write(`${repo.repo} removed, ${mebibytes(bytes)}\n`);
      return;
    }
    case 'list': {
      const models = openHub().list();
      if (isJson) process.stdout.write(`${JSON.stringify(models)}\n`);
      else if (models.length === 0) process.stdout.write('no models in the cache\n');
      for (const { repo, commit, revisions, bytes } of isJson ? [] : models)
        process.stdout.write(`${repo}@${revisions.join(',') || commit}  ${mebibytes(bytes)}  ${commit}\n`);
      return;
    }
    case undefined:
    default:
      throw new ConfigError('penstock model pull ORG/NAME[@REVISION][:FILE.gguf] | list [--json] | remove ORG/NAME');
  }
}

function repoOf(command: string, name: string | undefined): RepoName {
  const repo = parseRepoName(name ?? '');
  if (!repo)
    throw new ConfigError(
      `penstock model ${command} takes a name such as org/name, org/name@revision or org/name:file.gguf`,
    );
  return repo;
}

function openHub(): Hub {
  const progress = new ProgressLine(process.stderr, () => systemClock.nowMs());
  return new Hub({
    clock: systemClock,
    environment: process.env,
    fetch: globalThis.fetch,
    onProgress: (at) => {
      progress.show(at);
    },
    onNote: (note) => {
      progress.note(note);
    },
  });
}

function mebibytes(bytes: number): string {
  return `${(bytes / MIB).toFixed(1)} MiB`;
}

/** How far a download is: a bar on a terminal, a line now and then elsewhere. */
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
  }

  note(text: string): void {
    this.#out.write(`${this.#isOpen ? '\n' : ''}${text}\n`);
    this.#isOpen = false;
  }
}
