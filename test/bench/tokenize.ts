/**
 * Text to token ids: English and code of this repository by every tokenizer that tests have, by a thread that begins, by one that
 * has met such text, where the text but its end is known, and where two threads share one that is not; against the library and, when asked
 * for, the Rust package on one thread.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { openLibrary } from '../../shared/text/encoder/library.ts';
import { TokenizerTools } from '../../shared/text/tokenizer_tools.ts';
import type { start } from '../../shared/text/tokenizer_worker.ts';
import { linkEnds } from '../../shared/base/thread_link.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { readTextFiles, type TextFiles } from '../../shared/model/text_files.ts';
import { vocabulariesFolder } from '../support/downloads.ts';
import { projectPath } from '../support/project.ts';
import { withReference, type Figure } from './figures.ts';
import { pythonWith } from './python_peer.ts';

export interface TokenizeBenchOptions {
  readonly kinds: readonly string[];
  readonly hasPeer: boolean;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

export const tokenizersPeer = { name: 'tokenizers', version: '0.22.1' };

/** Real vocabularies, where the tests have fetched them, and the small ones of the tests. */
export const tokenizerKinds = [
  ...(existsSync(vocabulariesFolder) ? readdirSync(vocabulariesFolder) : []),
  ...['llama3', 'qwen2', 'gpt2', 'digits', 'llama2', 'phi3', 'gemma', 'unigram'],
];

/** The library takes a second for so much. */
const LIBRARY_CHARACTERS = 200_000;
const KNOWN_CHARACTERS = 400_000;
const TURNS = 5;
/** The helper is done with all then. */
const PAUSE_MS = 20;

export async function benchTokenize({ kinds, hasPeer, print, onFigure }: TokenizeBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  const note = (figure: Figure): void => {
    figures.push(figure);
    onFigure(figure);
  };
  const text = corpus();
  const peer = hasPeer ? rustRates(kinds, text, print) : undefined;
  for (const kind of kinds) {
    const files = readTextFiles(folderOf(kind));
    const library = libraryRate(files, text.slice(0, LIBRARY_CHARACTERS));
    const best = { begins: 0, met: 0, known: Infinity };
    for (let turn = 0; turn < TURNS; turn++) {
      const tools = new TokenizerTools(files);
      const encode = (what: string): number =>
        timed(() => tools.encode({ text: what, addSpecialTokens: true, maxCharacters: Infinity }));
      // The encoder builds its tables at its first call.
      encode('a');
      best.begins = Math.max(best.begins, rate(text, encode(text)));
      // Everything from the first character on is another chunk.
      best.met = Math.max(best.met, rate(text, encode(`#${turn} ${text}`)));
      const long = text.slice(0, KNOWN_CHARACTERS);
      encode(long);
      best.known = Math.min(best.known, encode(`${long}\nWhat of the turn ${turn}?`));
    }
    note(withReference(`tokenize/${kind}/begins`, best.begins, 'MB/s', 'the library', library));
    note(withReference(`tokenize/${kind}/has met such text`, best.met, 'MB/s', 'the library', library));
    const rust = peer?.get(kind);
    if (rust !== undefined)
      note(withReference(`tokenize/${kind}/begins, peer`, best.begins, 'MB/s', 'Rust tokenizers', rust));
    note({ name: `tokenize/${kind}/400,000 known characters and a few`, value: best.known, unit: 'ms' });
    const { one, two } = await unknownMs(files, text);
    note(withReference(`tokenize/${kind}/400,000 unknown characters, two threads`, two, 'ms', 'one', one));
  }
  return figures;
}

/** Texts of words that were met and in an order that was not: medians. */
async function unknownMs(files: TextFiles, text: string): Promise<{ readonly one: number; readonly two: number }> {
  const module = { url: new URL('../../shared/text/tokenizer_worker.js', import.meta.url) };
  const helper = workerThreads.spawn<typeof start>(module, files, {
    onDeath: (error) => {
      throw error;
    },
  });
  await helper.call('delimiters', undefined);
  const [lent, taken] = linkEnds();
  helper.notify('helpEncoding', lent, [lent]);
  const [alone, helped] = [new TokenizerTools(files), new TokenizerTools(files)];
  helped.acceptHelp(taken);
  const times = { one: [] as number[], two: [] as number[] };
  for (let turn = 0; turn < 3 * TURNS; turn++) {
    const from = (turn * 90_001) % (text.length - KNOWN_CHARACTERS);
    const some = text.slice(from, from + KNOWN_CHARACTERS).replaceAll('e', String.fromCharCode(97 + turn));
    for (const [name, tools] of [
      ['one', alone],
      ['two', helped],
    ] as const) {
      const ms = timed(() => tools.encode({ text: some, addSpecialTokens: true, maxCharacters: Infinity }));
      if (turn >= TURNS) times[name].push(ms);
      await setTimeout(PAUSE_MS);
    }
  }
  taken.close();
  await helper.close();
  const median = (values: number[]): number => values.sort((a, b) => a - b)[values.length >> 1] ?? NaN;
  return { one: median(times.one), two: median(times.two) };
}

function folderOf(kind: string): string {
  const real = join(vocabulariesFolder, kind);
  return existsSync(real) ? real : projectPath(`test/golden/tokenizers/${kind}`);
}

/** Prose and code, about a megabyte. */
function corpus(): string {
  const files = ['shared', 'services', 'kernels', 'test/router'].flatMap((folder) =>
    readdirSync(projectPath(folder), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile() && /\.(ts|md|wgsl)$/.test(entry.name))
      .map((entry) => join(entry.parentPath, entry.name))
      .sort(),
  );
  return ['README.md', 'test/bench/RESULTS.md']
    .map(projectPath)
    .concat(files)
    .map((path) => readFileSync(path, 'utf8'))
    .join('\n');
}

function timed(run: () => unknown): number {
  const start = performance.now();
  run();
  return performance.now() - start;
}

function rate(text: string, ms: number): number {
  return Buffer.byteLength(text) / 1e3 / ms;
}

function libraryRate({ tokenizer, config }: ReturnType<typeof readTextFiles>, text: string): number {
  const library = openLibrary(JSON.parse(tokenizer), JSON.parse(config));
  // The library pushes all tokens of a text onto the stack at once, so the text is encoded in parts.
  const parts = text.match(/[^]{1,20000}/g) ?? [];
  return rate(
    text,
    timed(() => parts.forEach((part) => library.encode(part, { add_special_tokens: true }))),
  );
}

/** MB/s by kind, on one thread. */
function rustRates(kinds: readonly string[], text: string, print: (line: string) => void): Map<string, number> {
  const python = pythonWith(tokenizersPeer.name, tokenizersPeer.version, print);
  const folder = mkdtempSync(join(tmpdir(), 'tokenize-'));
  try {
    writeFileSync(join(folder, 'text'), text);
    const script = `
import sys, time
from tokenizers import Tokenizer
text = open(sys.argv[1], encoding='utf8').read()
for path in sys.argv[2:]:
    best = 1e9
    for turn in range(3):
        tokenizer = Tokenizer.from_file(path + '/tokenizer.json')
        start = time.perf_counter()
        tokenizer.encode(text)
        best = min(best, time.perf_counter() - start)
    print(best)
`;
    const output = execFileSync(python, ['-c', script, join(folder, 'text'), ...kinds.map(folderOf)], {
      env: { ...process.env, TOKENIZERS_PARALLELISM: 'false', RAYON_NUM_THREADS: '1' },
      encoding: 'utf8',
    });
    const seconds = output.trim().split('\n').map(Number);
    return new Map(kinds.map((kind, i) => [kind, rate(text, (seconds[i] ?? NaN) * 1_000)]));
  } finally {
    rmSync(folder, { recursive: true });
  }
}
