/**
 * Patches the models of `@huggingface/tokenizers` 0.2.0 in this thread so that they match the Rust package (`tokenizers` 0.23.3): byte
 * tokens for characters that Unigram has no token for, unknown tokens that are fused within a pretoken only, and prefixes of a word's
 * later parts.
 */
import * as tokenizers from '@huggingface/tokenizers';
import { createBytePairs, type BytePairs } from './byte_pairs.ts';
import { byteTokensOf } from './characters.ts';

interface Model {
  readonly config: Readonly<Record<string, unknown>>;
  readonly tokens_to_ids: ReadonlyMap<string, number>;
  readonly vocab: readonly string[];
  readonly unk_token_id?: number | null;
  encode(pretokens: readonly string[]): string[];
}

/** A BPE model of the library. `merges` is in the order of rank, lowest first. */
export interface PairModel extends Model {
  readonly merges: readonly (readonly [string, string])[];
}

interface TrieNode {
  readonly is_leaf: boolean;
  readonly children: ReadonlyMap<string, TrieNode>;
}

interface UnigramModel extends Model {
  readonly trie: { readonly root: TrieNode };
  /** The score of a character that has no token. */
  readonly unk_score: number;
}

/** The library's classes, which it exports and does not declare. */
const library = tokenizers as unknown as Readonly<Record<'BPE' | 'Model' | 'Unigram', unknown>>;

let isDone = false;

/** Replaces methods of the library's models so that they match the Rust package. Only the first call in a thread has an effect. */
export function mendModels(): void {
  if (isDone) return;
  isDone = true;
  const of = (kind: unknown): Model & { _call?: unknown } => (kind as { readonly prototype: Model }).prototype;
  // Unknown tokens are fused while a pretoken is encoded, so those of two pretokens stay two.
  of(library.Model)._call = function (this: Model, pretokens: readonly string[]): string[] {
    return this.encode(pretokens);
  };
  const { encode: encodeByLibrary } = of(library.BPE) as unknown as {
    encode: (this: Model, pretokens: readonly string[]) => string[];
  };
  of(library.BPE).encode = function (this: PairModel, pretokens): string[] {
    const pairs = bytePairsOf(this);
    if (!pairs) return encodeByLibrary.call(this, pretokens);
    const tokens: string[] = [];
    for (const pretoken of pretokens) addPretoken(this, pairs, pretoken, tokens);
    return tokens;
  };
  of(library.Unigram).encode = function (this: UnigramModel, pretokens): string[] {
    const tokens: string[] = [];
    for (const pretoken of pretokens) addBestPath(this, pretoken, tokens);
    return tokens;
  };
}

const known = new WeakMap<PairModel, { readonly pairs: BytePairs | undefined }>();

/** Returns a model's merges, which are built at the first call; undefined when a merge makes no token. */
export function bytePairsOf(model: PairModel): BytePairs | undefined {
  let made = known.get(model);
  if (!made) {
    made = { pairs: createBytePairs(model.tokens_to_ids, model.merges, textIn(model, 'continuing_subword_prefix')) };
    known.set(model, made);
  }
  return made.pairs;
}

function textIn({ config }: Model, key: string): string {
  const value = config[key];
  return typeof value === 'string' ? value : '';
}

function addPretoken(model: PairModel, pairs: BytePairs, pretoken: string, tokens: string[]): void {
  if (pretoken === '') return;
  if (model.config['ignore_merges'] && model.tokens_to_ids.has(pretoken)) {
    tokens.push(pretoken);
    return;
  }
  const symbols = Int32Array.from(symbolsOf(model, pretoken));
  for (const id of symbols.subarray(0, pairs.merge(symbols, symbols.length))) tokens.push(model.vocab[id] ?? '');
}

/** Ids of a pretoken's characters. */
function symbolsOf(model: PairModel, pretoken: string): number[] {
  const [prefix, suffix] = [textIn(model, 'continuing_subword_prefix'), textIn(model, 'end_of_word_suffix')];
  const { config, tokens_to_ids: ids } = model;
  const symbols: number[] = [];
  const unknown = typeof config['unk_token'] === 'string' ? ids.get(config['unk_token']) : undefined;
  // An unknown token is added before the next known one, so byte tokens in between come first, as in the Rust package.
  let isPending = false;
  const flush = (): void => {
    if (isPending && unknown !== undefined) symbols.push(unknown);
    isPending = false;
  };
  const characters = Array.from(pretoken);
  characters.forEach((character, i) => {
    const symbol = (i > 0 ? prefix : '') + character + (i === characters.length - 1 ? suffix : '');
    const id = ids.get(symbol);
    const bytes = id === undefined && config['byte_fallback'] ? idsOf(byteTokensOf(symbol), ids) : undefined;
    if (id !== undefined) {
      flush();
      symbols.push(id);
    } else if (bytes) symbols.push(...bytes);
    else {
      if (!config['fuse_unk']) flush();
      isPending = true;
    }
  });
  flush();
  return symbols;
}

/** Returns the ids of the tokens, or undefined when one of them has no id. */
function idsOf(tokens: readonly string[], ids: ReadonlyMap<string, number>): number[] | undefined {
  const found = tokens.flatMap((token) => ids.get(token) ?? []);
  return found.length === tokens.length ? found : undefined;
}

/** Returns, for each end position, where the last token of the best-scored path begins (Viterbi, 1967). */
function bestStarts(model: UnigramModel, characters: readonly string[]): Int32Array {
  const size = characters.length;
  const scores = new Float64Array(size + 1).fill(-Infinity);
  const starts = new Int32Array(size + 1).fill(-1);
  scores[0] = 0;
  const consider = (start: number, end: number, score: number): void => {
    const whole = scores[start]! + score;
    if (starts[end]! >= 0 && whole <= scores[end]!) return;
    scores[end] = whole;
    starts[end] = start;
  };
  const vocabulary = model.config['vocab'] as readonly (readonly [string, number])[];
  for (let start = 0; start < size; start++) {
    let node: TrieNode | undefined = model.trie.root;
    let [token, isKnown] = ['', false];
    for (let end = start; end < size; end++) {
      token += characters[end]!;
      node = node.children.get(characters[end]!);
      if (!node) break;
      if (!node.is_leaf) continue;
      consider(start, end + 1, vocabulary[model.tokens_to_ids.get(token) ?? 0]?.[1] ?? 0);
      isKnown ||= end === start;
    }
    if (!isKnown) consider(start, start + 1, model.unk_score);
  }
  return starts;
}

function addBestPath(model: UnigramModel, pretoken: string, tokens: string[]): void {
  const characters = Array.from(pretoken);
  const starts = bestStarts(model, characters);
  const path: string[] = [];
  for (let end = characters.length; end > 0; end = starts[end]!) {
    path.push(characters.slice(starts[end], end).join(''));
  }
  let unknown = '';
  for (const part of path.reverse()) {
    if (!isUnknown(model, part)) {
      addUnknown(model, unknown, tokens);
      unknown = '';
      tokens.push(part);
    } else unknown += part;
  }
  addUnknown(model, unknown, tokens);
}

/** Whether a part has no token of its own. The text of the unknown token counts as unknown too. */
function isUnknown({ tokens_to_ids: ids, unk_token_id: unknown }: UnigramModel, part: string): boolean {
  const id = ids.get(part);
  return id === undefined || id === unknown;
}

/** Adds adjacent unknown characters as one token, or as byte tokens when all their bytes have one. */
function addUnknown(model: UnigramModel, text: string, tokens: string[]): void {
  if (text === '') return;
  const ids = model.tokens_to_ids;
  const bytes = model.config['byte_fallback'] && !ids.has(text) ? byteTokensOf(text) : [];
  if (bytes.length > 0 && idsOf(bytes, ids)) for (const token of bytes) tokens.push(token);
  else tokens.push(text);
}
