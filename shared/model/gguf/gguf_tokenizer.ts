/**
 * The tokenizer and the chat template of a GGUF file, as the files of a Hugging Face model would have them.
 *
 * Kinds are llama.cpp's (src/llama-vocab.cpp): byte-level BPE, whose pre-tokenizers the file names and does not hold; SentencePiece's BPE,
 * whose merges are found in its scores as transformers' converter finds them, or stand in the file (Gemma 4); and Unigram.
 */
import { type NamedTemplate, namedTemplates, type TextFiles } from '../text_files.ts';
import { typesOf } from './gguf_markers.ts';
import { preTokenizers } from './gguf_pretokenizers.ts';

/** `tokenizer.ggml.token_type` */
const Kind = { unknown: 2, control: 3, userDefined: 4 } as const;

/** Two tokens whose concatenation is a token. */
type Merge = readonly [left: string, right: string];

interface Vocabulary {
  readonly tokens: readonly string[];
  readonly types: readonly number[];
}

/** Ids of special tokens in a SentencePiece file that does not name them. */
const SENTENCE_PIECE_IDS: Readonly<Record<string, number>> = { unknown: 0, bos: 1, eos: 2 };

/** Returns tokenizer and chat template of a GGUF file; undefined when the file has no tokenizer. @throws Error for an unsupported kind. */
export function textFilesOf(metadata: Readonly<Record<string, unknown>>): TextFiles | undefined {
  const kind = metadata['tokenizer.ggml.model'];
  if (kind === undefined || kind === 'none' || kind === 'no_vocab') return undefined;
  const tokens = listOf(metadata, 'tokenizer.ggml.tokens').map(String);
  const types = typesOf(tokens, listOf(metadata, 'tokenizer.ggml.token_type', []).map(Number));
  const vocabulary = { tokens, types };
  const idOf = (name: string): number | undefined => {
    const id = metadata[`tokenizer.ggml.${name}_token_id`] ?? (kind === 'llama' ? SENTENCE_PIECE_IDS[name] : undefined);
    return typeof id === 'number' && id >= 0 && id < tokens.length ? id : undefined;
  };
  const made = tokenizerOf(kind, metadata, vocabulary, idOf('unknown'));
  const added = metadata['tokenizer.ggml.add_bos_token'];
  const flags = {
    // The first published files of Gemma 4 say false, with which base models repeat themselves.
    bos: kind === 'gemma4' || (typeof added === 'boolean' ? added : made.addsBos),
    eos: metadata['tokenizer.ggml.add_eos_token'] === true,
  };
  const [bos, eos, pad, unknown] = ['bos', 'eos', 'padding', 'unknown'].map((name) => idOf(name));
  const textOf = (id: number | undefined): string | undefined => (id === undefined ? undefined : tokens[id]);
  const template = chatTemplatesOf(metadata);
  return {
    tokenizer: JSON.stringify({
      version: '1.0',
      truncation: null,
      padding: null,
      added_tokens: addedTokens(vocabulary, kind === 'llama' && metadata['general.architecture'] === 'phi3'),
      ...made.parts,
      post_processor: postProcessor(made.parts, flags.bos ? bos : undefined, flags.eos ? eos : undefined, tokens),
    }),
    config: JSON.stringify({
      bos_token: textOf(bos),
      eos_token: textOf(eos),
      pad_token: textOf(pad),
      unk_token: textOf(unknown),
      clean_up_tokenization_spaces: false,
      ...(template === undefined ? {} : { chat_template: template }),
    }),
    template: undefined,
  };
}

/** Returns the chat template; the list of all where the file has others by name, under keys of their own. */
function chatTemplatesOf(metadata: Readonly<Record<string, unknown>>): string | NamedTemplate[] | undefined {
  const usual = metadata['tokenizer.chat_template'];
  const template = typeof usual === 'string' ? usual : undefined;
  const named = listOf(metadata, 'tokenizer.chat_templates', []).flatMap((name): NamedTemplate[] => {
    const text = metadata[`tokenizer.chat_template.${String(name)}`];
    return typeof text === 'string' ? [{ name: String(name), template: text }] : [];
  });
  return named.length === 0 ? template : namedTemplates(template, named);
}

interface Made {
  readonly addsBos: boolean;
  readonly parts: {
    readonly normalizer: object | null;
    readonly pre_tokenizer: object | null;
    readonly decoder: object;
    readonly model: object;
  };
}

function tokenizerOf(
  kind: unknown,
  metadata: Readonly<Record<string, unknown>>,
  vocabulary: Vocabulary,
  unknown: number | undefined,
): Made {
  const spacePrefix = metadata['tokenizer.ggml.add_space_prefix'] !== false;
  switch (kind) {
    case 'gpt2':
      return byteLevel(metadata, vocabulary);
    case 'llama': {
      const scores = listOf(metadata, 'tokenizer.ggml.scores').map(Number);
      return characters(mergesOf(vocabulary, scores), vocabulary, unknown, spacePrefix);
    }
    case 'gemma4':
      return characters(writtenMerges(metadata), vocabulary, unknown, spacePrefix);
    case 't5':
      return unigram(listOf(metadata, 'tokenizer.ggml.scores').map(Number), vocabulary, unknown, spacePrefix);
    default:
      throw new Error(
        `tokenizer.ggml.model ${JSON.stringify(kind)} is not supported; there are gpt2, llama, gemma4 and t5`,
      );
  }
}

function byteLevel(metadata: Readonly<Record<string, unknown>>, { tokens }: Vocabulary): Made {
  const given = metadata['tokenizer.ggml.pre'];
  const name = typeof given === 'string' ? given : 'none';
  const pre = preTokenizers.get(name);
  if (!pre) {
    throw new Error(
      `tokenizer.ggml.pre ${JSON.stringify(name)} is not supported (there are ${[...preTokenizers.keys()].join(', ')}): put the model's tokenizer.json and tokenizer_config.json next to the file`,
    );
  }
  const split = (pattern: object): object => ({ type: 'Split', pattern, behavior: 'Isolated', invert: false });
  const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true };
  return {
    addsBos: pre.addsBos ?? false,
    parts: {
      normalizer: pre.isNfc ? { type: 'NFC' } : null,
      pre_tokenizer: {
        type: 'Sequence',
        pretokenizers: [
          ...(pre.hasSingleDigits ? [{ type: 'Digits', individual_digits: true }] : []),
          ...(pre.patterns ?? []).map((pattern) => split({ Regex: pattern })),
          { ...bytes, use_regex: pre.patterns === undefined },
        ],
      },
      decoder: { ...bytes, use_regex: true },
      model: {
        type: 'BPE',
        dropout: null,
        unk_token: null,
        continuing_subword_prefix: null,
        end_of_word_suffix: null,
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: pre.ignoresMerges ?? false,
        vocab: idsOf(tokens),
        merges: writtenMerges(metadata),
      },
    },
  };
}

/**
 * Returns the merges that the file has, each split into its two parts at the space. The search starts at 1 because a part may itself
 * begin with a space in files that are not byte-level.
 */
function writtenMerges(metadata: Readonly<Record<string, unknown>>): Merge[] {
  return listOf(metadata, 'tokenizer.ggml.merges').map((merge) => {
    const text = String(merge);
    const at = text.indexOf(' ', 1);
    return [text.slice(0, at), text.slice(at + 1)];
  });
}

const SPACE = '▁';

/** BPE over characters, of which those without a token become bytes: SentencePiece's, and Gemma 4's, whose file has the merges. */
function characters(
  merges: readonly Merge[],
  { tokens }: Vocabulary,
  unknown: number | undefined,
  hasSpacePrefix: boolean,
): Made {
  const replaced = { type: 'Replace', pattern: { String: ' ' }, content: SPACE };
  return {
    addsBos: true,
    parts: {
      normalizer: hasSpacePrefix
        ? { type: 'Sequence', normalizers: [{ type: 'Prepend', prepend: SPACE }, replaced] }
        : replaced,
      pre_tokenizer: null,
      decoder: {
        type: 'Sequence',
        decoders: [
          { type: 'Replace', pattern: { String: SPACE }, content: ' ' },
          { type: 'ByteFallback' },
          { type: 'Fuse' },
          ...(hasSpacePrefix ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []),
        ],
      },
      model: {
        type: 'BPE',
        dropout: null,
        continuing_subword_prefix: null,
        end_of_word_suffix: null,
        unk_token: unknown === undefined ? null : tokens[unknown],
        fuse_unk: true,
        byte_fallback: true,
        ignore_merges: false,
        vocab: idsOf(tokens),
        merges,
      },
    },
  };
}

/** Returns every pair of tokens whose concatenation is a token, best score first; ties go by the ids of the parts. */
function mergesOf({ tokens, types }: Vocabulary, scores: readonly number[]): Merge[] {
  const ids = new Map(tokens.map((token, id) => [token, id]));
  const merges: { readonly left: string; readonly right: string; readonly score: number }[] = [];
  tokens.forEach((token, id) => {
    const type = types[id] ?? 1;
    if (type === Kind.control || type === Kind.unknown || type === Kind.userDefined) return;
    const own: { left: string; right: string; score: number; first: number; second: number }[] = [];
    for (let at = 1; at < token.length; at++) {
      const [left, right] = [token.slice(0, at), token.slice(at)];
      const [first, second] = [ids.get(left), ids.get(right)];
      if (first !== undefined && second !== undefined) own.push({ left, right, score: scores[id] ?? 0, first, second });
    }
    own.sort((a, b) => a.first - b.first || a.second - b.second);
    merges.push(...own);
  });
  merges.sort((a, b) => b.score - a.score || b.left.length - a.left.length || b.right.length - a.right.length);
  return merges.map(({ left, right }) => [left, right]);
}

function unigram(
  scores: readonly number[],
  { tokens }: Vocabulary,
  unknown: number | undefined,
  hasSpacePrefix: boolean,
): Made {
  const metaspace = {
    type: 'Metaspace',
    replacement: SPACE,
    split: true,
    prepend_scheme: hasSpacePrefix ? 'always' : 'never',
  };
  const hasBytes = tokens.includes('<0x00>');
  return {
    addsBos: false,
    parts: {
      normalizer: null,
      pre_tokenizer: metaspace,
      // Bytes become characters before the spaces are put in.
      decoder: hasBytes
        ? { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, metaspace, { type: 'Fuse' }] }
        : metaspace,
      model: {
        type: 'Unigram',
        unk_id: unknown ?? null,
        vocab: tokens.map((token, id) => [token, scores[id] ?? 0]),
        byte_fallback: hasBytes,
      },
    },
  };
}

/** Special tokens of Phi-3 that leave the white space after them in place; its other special tokens remove it. */
const KEEPS_SPACE = new Set(['<unk>', '<s>', '<|endoftext|>']);

/** Returns the added tokens, which are matched in text before pretokenisation: control, unknown and user-defined tokens. */
function addedTokens({ tokens, types }: Vocabulary, takesSpace: boolean): object[] {
  return tokens.flatMap((content, id) => {
    const type = types[id];
    const isSpecial = type === Kind.control || type === Kind.unknown;
    if (!isSpecial && type !== Kind.userDefined) return [];
    const rstrip = takesSpace && isSpecial && !KEEPS_SPACE.has(content);
    return [{ id, content, single_word: false, lstrip: false, rstrip, normalized: false, special: isSpecial }];
  });
}

/** Returns a post-processor that puts `bos` before and `eos` after every text, where defined. */
function postProcessor(
  { decoder }: Made['parts'],
  bos: number | undefined,
  eos: number | undefined,
  tokens: readonly string[],
): object {
  const special = (id: number | undefined): object[] =>
    id === undefined ? [] : [{ SpecialToken: { id: tokens[id], type_id: 0 } }];
  const text = (id: string): object => ({ Sequence: { id, type_id: 0 } });
  if (bos === undefined && eos === undefined) {
    return 'use_regex' in decoder
      ? { type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true }
      : { type: 'TemplateProcessing', single: [text('A')], pair: [text('A'), text('B')], special_tokens: {} };
  }
  const used = new Map([bos, eos].flatMap((id) => (id === undefined ? [] : [[tokens[id] ?? '', id] as const])));
  return {
    type: 'TemplateProcessing',
    single: [...special(bos), text('A'), ...special(eos)],
    pair: [...special(bos), text('A'), ...special(bos), text('B'), ...special(eos)],
    special_tokens: Object.fromEntries(
      [...used].map(([token, id]) => [token, { id: token, ids: [id], tokens: [token] }]),
    ),
  };
}

function idsOf(tokens: readonly string[]): Record<string, number> {
  return Object.fromEntries(tokens.map((token, id) => [token, id]));
}

/** Returns the list at a metadata key, or `absent`. @throws Error when there is neither. */
function listOf(
  metadata: Readonly<Record<string, unknown>>,
  key: string,
  absent?: readonly unknown[],
): readonly unknown[] {
  const value = metadata[key] ?? absent;
  if (Array.isArray(value)) return value;
  throw new Error(`${key} is missing`);
}
