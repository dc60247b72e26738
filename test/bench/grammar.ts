/**
 * Outputs that follow a grammar: bytes of a vocabulary, the compile of a schema of eight fields, masks token by token through the
 * threads, each against the library alone; how long a stream waits while another grammar is compiled; and grammars that are refused in a
 * row.
 */
import { openLibrary } from '../../shared/text/encoder/library.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import { workerThreads } from '../../shared/base/worker_threads.ts';
import { MaskService } from '../../shared/grammar/matcher/mask_service.ts';
import type { TokenMask } from '../../shared/grammar/matcher/token_mask.ts';
import { tokenTable, type TokenTable } from '../../shared/grammar/matcher/token_table.ts';
import { TrialCompiler } from '../../shared/grammar/matcher/trial_compiler.ts';
import { XGrammar } from '../../shared/grammar/matcher/xgrammar.ts';
import { readTextFiles, type TextFiles } from '../../shared/model/text_files.ts';
import { percentile, withReference, type Figure } from './figures.ts';

export interface GrammarBenchOptions {
  /** Folder with a tokenizer. */
  readonly folder: string;
  readonly vocabSize: number;
  readonly numDocuments: number;
  /** Grammars that are compiled during a stream, and that are refused in a row. */
  readonly numGrammars: number;
  readonly onFigure: (figure: Figure) => void;
}

const ROWS = 8;
/** A JSON string, in the form that the library has fast masks for: one rule that ends with itself, closing quote included. */
const STRING = `string ::= "\\"" text
text ::= "\\"" | [^"\\\\\\x00-\\x1f] text | "\\\\" ["\\\\/bfnrt] text | "\\\\u" hex hex hex hex text
hex ::= [0-9a-fA-F]`;

/** The grammar of an object of eight fields; each `name` gives another one. */
function eightFields(name: string): string {
  const kinds = ['string', 'integer', 'string', 'string', 'strings', 'number', 'boolean', 'kind'];
  const fields = kinds.map((kind, i) => `"\\"${name}${i}\\":" " "? ${kind}`).join(' "," " "? ');
  return `root ::= "{" ${fields} "}"
strings ::= "[" (string ("," " "? string)*)? "]"
integer ::= "-"? ("0" | [1-9] [0-9]*)
number ::= integer ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
boolean ::= "true" | "false"
kind ::= "\\"small\\"" | "\\"medium\\"" | "\\"large\\""
${STRING}`;
}

const WORDS = ['river', 'harbour', 'Zürich', 'the', 'quiet', '東京', 'of', 'a', 'ledger', 'signal', '42', 'naïve', 'x'];

function document(name: string, random: Random): string {
  const text = (words: number): string =>
    JSON.stringify(Array.from({ length: words }, () => WORDS[random.below(WORDS.length)]).join(' '));
  const values = [text(6), '31', text(3), text(12), `[${text(2)}, ${text(3)}]`, '-1.5e3', 'true', '"medium"'];
  return `{${values.map((value, i) => `"${name}${i}": ${value}`).join(', ')}}`;
}

const nowMs = (): number => performance.now();

async function timed<T>(work: () => Promise<T> | T): Promise<readonly [T, number]> {
  const from = nowMs();
  const result = await work();
  return [result, nowMs() - from];
}

export async function benchGrammar(options: GrammarBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  const note = (figure: Figure): void => {
    figures.push(figure);
    options.onFigure(figure);
  };
  const texts = readTextFiles(options.folder);
  const table = await tableFigures(texts, options, note);
  const library = openLibrary(JSON.parse(texts.tokenizer), JSON.parse(texts.config));
  const random = new Random(1);
  const documents = Array.from(
    { length: options.numDocuments },
    () => library.encode(document('field', random), { add_special_tokens: false }).ids,
  );
  const alone = await aloneTimes(table, documents);
  const service = new MaskService({
    threads: workerThreads,
    clock: systemClock,
    maxThreads: 1,
    vocabulary: { kind: 'texts', texts, vocabSize: options.vocabSize },
  });
  const [, startMs] = await timed(() => open(service, 'root ::= "a"'));
  note({ name: 'grammar/first output', value: startMs, unit: 'ms' });
  note(await compileFigure(service, alone.compileMs));
  for (const rows of [1, ROWS])
    for (const figure of await maskFigures(service, documents, rows, alone.maskMs)) note(figure);
  await service.close();
  for (const figure of await gapFigures(table, documents, options.numGrammars)) note(figure);
  for (const figure of await refusalFigures(table, options.numGrammars)) note(figure);
  return figures;
}

async function tableFigures(
  texts: TextFiles,
  { vocabSize }: GrammarBenchOptions,
  note: (figure: Figure) => void,
): Promise<TokenTable> {
  const [, parseMs] = await timed(() => JSON.parse(texts.tokenizer) as unknown);
  const [table, tableMs] = await timed(() => tokenTable(texts, vocabSize));
  note(withReference('grammar/token table', tableMs, 'ms', 'JSON.parse', parseMs));
  return table;
}

interface Alone {
  readonly compileMs: number[];
  readonly maskMs: number[];
}

/** The library in this thread: compiles of grammars that differ, and a mask after each token. */
async function aloneTimes(table: TokenTable, documents: readonly (readonly number[])[]): Promise<Alone> {
  const library = await XGrammar.load(table);
  const compileMs: number[] = [];
  for (let i = 0; i < ROWS; i++) compileMs.push((await timed(() => library.compile(eightFields(`alone${i}`))))[1]);
  const compiled = await library.compile(eightFields('field'));
  const words = new Uint32Array(Math.ceil(library.vocabSize / 32));
  const maskMs: number[] = [];
  for (const tokens of documents) {
    const matcher = await library.start(compiled);
    for (const token of tokens) {
      const step = async (): Promise<void> => {
        if (!matcher.accept(token)) throw new Error(`token ${token} is not allowed`);
        await matcher.fill(words);
      };
      maskMs.push((await timed(step))[1]);
    }
    matcher.close();
  }
  return { compileMs, maskMs };
}

function open(service: MaskService, ebnf: string): Promise<TokenMask> {
  return service.open({ ebnf, endTokens: [0] }, []);
}

async function compileFigure(service: MaskService, alone: readonly number[]): Promise<Figure> {
  const all: number[] = [];
  for (let i = 0; i < alone.length; i++) {
    const [mask, ms] = await timed(() => open(service, eightFields(`threads${i}`)));
    mask.close();
    all.push(ms);
  }
  const [value, reference] = [percentile(all, 0.5), percentile(alone, 0.5)];
  return withReference('grammar/compile, eight fields', value, 'ms', 'the library alone', reference);
}

/** Times of `accept` for the rows of a step together, against as many masks of the library one after the other. */
async function maskFigures(
  service: MaskService,
  documents: readonly (readonly number[])[],
  rows: number,
  alone: readonly number[],
): Promise<Figure[]> {
  const all: number[] = [];
  for (let at = 0; at + rows <= documents.length; at += rows) {
    const group = documents.slice(at, at + rows);
    const masks = await Promise.all(group.map(() => open(service, eightFields('field'))));
    const numSteps = Math.min(...group.map(({ length }) => length));
    for (let step = 0; step < numSteps; step++) {
      const [, ms] = await timed(() => Promise.all(masks.map((mask, i) => mask.accept(group[i]?.[step] ?? -1))));
      all.push(ms);
    }
    for (const mask of masks) mask.close();
  }
  return [0.5, 0.99].map((share) => {
    const name = `grammar/mask, ${rows} rows, p${100 * share}`;
    return withReference(name, percentile(all, share), 'ms', 'the library alone', rows * percentile(alone, share));
  });
}

/** The longest time between a stream's masks, while new grammars are compiled next to it, with one thread and with two. */
async function gapFigures(
  table: TokenTable,
  documents: readonly (readonly number[])[],
  numGrammars: number,
): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const maxThreads of [1, 2]) {
    const service = new MaskService({
      threads: workerThreads,
      clock: systemClock,
      maxThreads,
      vocabulary: { kind: 'table', table },
    });
    const state = { isOver: false };
    const gaps: number[] = [];
    const stream = async (): Promise<void> => {
      for (let i = 0; !state.isOver; i++) {
        const mask = await open(service, eightFields('field'));
        for (const token of documents[i % documents.length] ?? [])
          gaps.push((await timed(() => mask.accept(token)))[1]);
        mask.close();
      }
    };
    // The stream holds its thread before the first grammar comes.
    const first = await open(service, eightFields('field'));
    const streaming = stream();
    const [, ms] = await timed(async () => {
      for (let i = 0; i < numGrammars; i++) (await open(service, eightFields(`other${i}`))).close();
    });
    state.isOver = true;
    await streaming;
    first.close();
    await service.close();
    const name = `grammar/longest gap with compiles, ${maxThreads} threads`;
    figures.push(withReference(name, Math.max(...gaps), 'ms', 'one compile', ms / numGrammars));
  }
  return figures;
}

async function refusalFigures(table: TokenTable, numGrammars: number): Promise<Figure[]> {
  const trial = new TrialCompiler({ threads: workerThreads, clock: systemClock, vocabulary: { kind: 'table', table } });
  const refuse = async (i: number): Promise<void> => {
    const isUsed = await trial.check(`root ::= missing${i}`).then(
      () => true,
      () => false,
    );
    if (isUsed) throw new Error('a grammar with a missing rule is used');
  };
  await trial.check('root ::= "a"');
  for (let i = 0; i < numGrammars; i++) await refuse(i);
  const before = process.memoryUsage.rss();
  const [, ms] = await timed(async () => {
    for (let i = 0; i < numGrammars; i++) await refuse(numGrammars + i);
  });
  const grownMiB = (process.memoryUsage.rss() - before) / 2 ** 20;
  await trial.close();
  return [
    { name: 'grammar/refusal, thread replaced', value: ms / numGrammars, unit: 'ms' },
    { name: `grammar/memory after ${numGrammars} refusals more`, value: grownMiB, unit: 'MiB' },
  ];
}
