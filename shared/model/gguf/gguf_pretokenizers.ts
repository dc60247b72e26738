/** Pre-tokenizers that GGUF files name: how text is split before the byte level, as llama.cpp (src/llama-vocab.cpp) splits it. */

const CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const WORD = '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+';
const SPACES = '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';
const REST = ` ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${SPACES}`;
const MARKED_REST = ` ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|${SPACES}`;
const CASED_REST = ` ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${SPACES}`;
const UPPER = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';
const LOWER = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]';
const HAN = '\\p{Script=Han}';
const cased = (after: string, upper = UPPER, lower = LOWER): string =>
  `[^\\r\\n\\p{L}\\p{N}]?${upper}*${lower}+${after}|[^\\r\\n\\p{L}\\p{N}]?${upper}+${lower}*${after}`;

interface PreTokenizer {
  /** Regular expressions that split text, one after the other, into pretokens before the byte level; undefined: GPT-2's. */
  readonly patterns?: readonly string[];
  readonly hasSingleDigits?: boolean;
  readonly isNfc?: boolean;
  /** Whether a pretoken that is a token itself is taken as it is, without merges. */
  readonly ignoresMerges?: boolean;
  /** Whether text begins with the BOS token when the file does not specify. */
  readonly addsBos?: boolean;
}

const gpt2: PreTokenizer = {};
const digits: PreTokenizer = { hasSingleDigits: true };
const llama3: PreTokenizer = {
  patterns: [`${CONTRACTIONS}|${WORD}|\\p{N}{1,3}|${REST}`],
  ignoresMerges: true,
  addsBos: true,
};
const dbrx: PreTokenizer = { patterns: [`${CONTRACTIONS}|${WORD}|\\p{N}{1,3}|${REST}`] };
const qwen2: PreTokenizer = { patterns: [`${CONTRACTIONS}|${WORD}|\\p{N}|${REST}`], isNfc: true };
const tekken: PreTokenizer = { patterns: [`${cased('')}|\\p{N}|${CASED_REST}`], ignoresMerges: true, addsBos: true };
const gpt4o: PreTokenizer = { patterns: [`${cased(`${CONTRACTIONS}?`)}|\\p{N}{1,3}|${CASED_REST}`] };
const qwen35: PreTokenizer = {
  patterns: [`${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|${MARKED_REST}`],
  isNfc: true,
};
/** Chinese characters and Japanese syllables stand apart from other letters. */
const deepseek3: PreTokenizer = {
  patterns: [
    '\\p{N}{1,3}',
    '[一-龥\u3040-\u309f\u30a0-\u30ff]+',
    `[!"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_\`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|${SPACES}`,
  ],
};
/** Like gpt-4o's, with runs of Chinese characters apart from other letters. */
const kimi2: PreTokenizer = {
  patterns: [
    `${HAN}+|${cased(`${CONTRACTIONS}?`, `(?:(?!${HAN})${UPPER})`, `(?:(?!${HAN})${LOWER})`)}|\\p{N}{1,3}|${REST}`,
  ],
};

/** Pre-tokenizers by the value of `tokenizer.ggml.pre`. */
export const preTokenizers: ReadonlyMap<string, PreTokenizer> = new Map([
  ...['gpt-2', 'phi-2', 'olmo', 'mpt', 'jina-en', 'jina-es', 'jina-de', 'roberta-bpe'].map(
    (name) => [name, gpt2] as const,
  ),
  ...['smollm', 'starcoder', 'refact', 'command-r', 'codeshell', 'exaone', 'minerva-7b'].map(
    (name) => [name, digits] as const,
  ),
  ...['llama-bpe', 'llama3', 'llama-v3', 'falcon3', 'pixtral'].map((name) => [name, llama3] as const),
  ...['dbrx', 'smaug-bpe', 'chatglm-bpe'].map((name) => [name, dbrx] as const),
  ['glm4', { ...dbrx, ignoresMerges: true }],
  ...['qwen2', 'deepseek-r1-qwen', 'megrez', 'stablelm2'].map((name) => [name, qwen2] as const),
  ['tekken', tekken],
  ...['gpt-4o', 'minimax-m2'].map((name) => [name, gpt4o] as const),
  ['qwen35', qwen35],
  ['deepseek-v3', deepseek3],
  ['kimi-k2', kimi2],
]);
