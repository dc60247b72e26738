/**
 * 110 made tokenizers (normalizer × pre-tokenizer × model × decoder, and added tokens of every kind) over some 50 texts each, against what
 * the Rust package has of them: `test/golden/rust_tokenizers/record.py` records that. Budget: 15 s.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { test } from 'vitest';
import { openLibrary } from '../../shared/text/encoder/library.ts';
import { TokenizerTools } from '../../shared/text/tokenizer_tools.ts';
import { goldenFolder } from '../support/golden.ts';
import { projectPath } from '../support/project.ts';

/** One recorded tokenizer, in the format of `record.py`: 0 and null stand for values that follow from the rest. */
interface Recorded {
  readonly name: string;
  readonly json: { readonly model: number; readonly decoder: object | null };
  readonly texts: readonly number[];
  readonly ids: readonly (readonly number[] | null)[];
  readonly whole: readonly (readonly number[] | null)[];
  readonly around: readonly [readonly number[], readonly number[]];
  readonly plain: readonly (string | 0 | null)[];
  readonly skipped: readonly (string | 0 | null)[];
  readonly singles: readonly (string | null)[];
  readonly lists: readonly (readonly number[])[];
  readonly lists_text: readonly (string | null)[];
  readonly lists_skipped: readonly (string | null)[];
  readonly long: readonly [count: number, sha1: string] | null;
}

const { version, texts, models, tokenizers } = JSON.parse(
  gunzipSync(readFileSync(join(goldenFolder('rust_tokenizers'), 'recordings.json.gz'))).toString('utf8'),
) as {
  readonly version: string;
  readonly texts: readonly string[];
  readonly models: readonly object[];
  readonly tokenizers: readonly Recorded[];
};

const ENOUGH = 1e9;
const LONG_CHARACTERS = 24_000;

/** The ids and texts of a tokenizer here, in the ways that requests go. */
class Own {
  readonly #tools: TokenizerTools;

  constructor(json: object) {
    this.#tools = new TokenizerTools({ tokenizer: JSON.stringify(json), config: '{}' });
  }

  encode(text: string, addSpecialTokens: boolean): number[] {
    return [...this.#tools.encode({ text, addSpecialTokens, maxCharacters: ENOUGH })];
  }

  tokenize(text: string, hasSpecialTokens: boolean): number[] {
    const asked = { text, template: undefined, hasSpecialTokens, hasStrings: false, maxCharacters: ENOUGH };
    return JSON.parse(this.#tools.tokenize(asked).tokens) as number[];
  }

  decode(ids: readonly number[], skipSpecialTokens: boolean): string {
    return this.#tools.decode({ lists: [ids], skipSpecialTokens })[0] ?? '';
  }
}

/**
 * Compares texts, allowing for one difference: in a run of byte tokens that is partly no character, the Rust package replaces the
 * whole run; here only the bytes of no character are replaced, because a stream has emitted the complete characters by then.
 */
function isSameText(own: string, theirs: string, hasBytes: boolean): boolean {
  return own === theirs || (hasBytes && own.includes('\uFFFD') && theirs.includes('\uFFFD'));
}

/** Returns the differences from the recording, in words. All texts together form one long text, which is encoded in parts. */
function differences(recorded: Recorded): string[] {
  const own = new Own({ ...recorded.json, model: models[recorded.json.model] });
  const hasBytes = JSON.stringify(recorded.json.decoder).includes('ByteFallback');
  const found: string[] = [];
  const ids = (what: string, theirs: readonly number[], mine: readonly number[]): void => {
    if (theirs.join() !== mine.join()) found.push(`${what}: ${mine.join()} is not ${theirs.join()}`);
  };
  const text = (what: string, theirs: string | null | undefined, mine: () => string): void => {
    if (typeof theirs !== 'string') return;
    const made = mine();
    if (!isSameText(made, theirs, hasBytes))
      found.push(`${what}: ${JSON.stringify(made)} is not ${JSON.stringify(theirs)}`);
  };
  recorded.texts.forEach((index, i) => {
    const source = texts[index] ?? '';
    const plainIds = recorded.ids[i];
    // The Rust package fails there.
    if (!plainIds) return;
    const [before, after] = recorded.around;
    const whole = recorded.whole[i] ?? [...before, ...plainIds, ...after];
    // A model is always given a token to go on from.
    if (plainIds.length > 0) ids(`encode ${JSON.stringify(source)}`, plainIds, own.encode(source, false));
    if (whole.length > 0) ids(`encode whole ${JSON.stringify(source)}`, whole, own.encode(source, true));
    ids(`tokenize ${JSON.stringify(source)}`, plainIds, own.tokenize(source, false));
    ids(`tokenize whole ${JSON.stringify(source)}`, whole, own.tokenize(source, true));
    const plain = recorded.plain[i] === 0 ? source : recorded.plain[i];
    const skipped = recorded.skipped[i] === 0 ? plain : recorded.skipped[i];
    if (plainIds.length > 0) text(`decode ${plainIds.join()}`, plain, () => own.decode(plainIds, false));
    if (whole.length > 0) text(`decode and skip ${whole.join()}`, skipped, () => own.decode(whole, true));
  });
  recorded.singles.forEach((theirs, id) => {
    text(`decode ${id}`, theirs, () => own.decode([id], false));
  });
  recorded.lists.forEach((list, i) => {
    text(`decode ${list.join()}`, recorded.lists_text[i], () => own.decode(list, false));
    text(`decode and skip ${list.join()}`, recorded.lists_skipped[i], () => own.decode(list, true));
  });
  if (recorded.long) {
    const once = Array.from(recorded.texts.map((index) => texts[index]).join(' '));
    const all = Array.from({ length: Math.ceil(LONG_CHARACTERS / once.length) }, () => once).flat();
    const long = all.slice(0, LONG_CHARACTERS).join('');
    // The second time it is known.
    for (const turn of ['first', 'second']) {
      const made = own.encode(long, false);
      const sum = createHash('sha1').update(made.join(',')).digest('hex');
      if (made.length !== recorded.long[0] || sum !== recorded.long[1]) found.push(`encode long, the ${turn} time`);
    }
  }
  return found;
}

test.each(tokenizers.map((recorded) => [recorded.name, recorded] as const))('%s', (_name, recorded) => {
  assert.deepEqual(differences(recorded).slice(0, 5), []);
});

test('a Metaspace that marks words with nothing is refused, alone and in a sequence: a text would be cut without end', () => {
  const metaspace = { type: 'Metaspace', replacement: '', prepend_scheme: 'always', split: true };
  const model = { type: 'BPE', vocab: { a: 0 }, merges: [], unk_token: null };
  const none = { added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, model };
  for (const part of [
    { pre_tokenizer: metaspace },
    { pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'Whitespace' }, metaspace] } },
    { decoder: metaspace },
    { decoder: { type: 'Sequence', decoders: [metaspace] } },
  ])
    assert.throws(() => openLibrary({ ...none, ...part }, {}), /a Metaspace with an empty replacement/);
});

test('the recording is of the Rust package that the mends name, and the library is the one that they are for', () => {
  assert.equal(version, '0.23.3');
  const file = projectPath('node_modules/@huggingface/tokenizers/package.json');
  const { version: installed } = JSON.parse(readFileSync(file, 'utf8')) as { readonly version: string };
  assert.equal(installed, '0.2.0', 'look whether pipeline_stages.ts and rust_models.ts are needed, and as they are');
  assert(tokenizers.length >= 30);
});
