/** The tokenizer thread: templates, tokens, text. A long prompt blocks this thread, never the router's control thread. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { workerData } from 'node:worker_threads';
import { Template } from '@huggingface/jinja';
import { Tokenizer } from '@huggingface/tokenizers';
import { serveCalls } from '../../shared/base/worker_calls.ts';

export interface ChatMessage {
  readonly role: string;
  readonly content: string;
}

const { folder } = workerData as { folder: string };
const read = (file: string): Record<string, unknown> =>
  JSON.parse(readFileSync(join(folder, file), 'utf8')) as Record<string, unknown>;

const config = read('tokenizer_config.json');
/** The package's own declarations do not resolve under NodeNext; this is what is used of them. */
interface TextTokenizer {
  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[] };
  decode(ids: readonly number[], options: { skip_special_tokens: boolean }): string;
}
const tokenizer = new (Tokenizer as unknown as new (json: unknown, config: unknown) => TextTokenizer)(
  read('tokenizer.json'),
  config,
);
const source = config['chat_template'];
const template = typeof source === 'string' ? new Template(source) : undefined;

/** Special tokens are text, or an object that holds it. */
function specialToken(name: string): string | undefined {
  const value = config[name];
  if (typeof value === 'string') return value;
  return typeof value === 'object' && value !== null && 'content' in value ? String(value.content) : undefined;
}

function encode(text: string, addSpecialTokens: boolean): number[] {
  return tokenizer.encode(text, { add_special_tokens: addSpecialTokens }).ids;
}

const methods = {
  encode: ({ text, addSpecialTokens }: { text: string; addSpecialTokens: boolean }): number[] =>
    encode(text, addSpecialTokens),

  /** Renders the chat template, which brings its own special tokens. @throws Error the template raises. */
  encodeChat({
    messages,
    addGenerationPrompt,
  }: {
    messages: readonly ChatMessage[];
    addGenerationPrompt: boolean;
  }): number[] {
    if (!template) throw new Error('this model has no chat template: use /v1/completions');
    const text = template.render({
      messages,
      add_generation_prompt: addGenerationPrompt,
      bos_token: specialToken('bos_token'),
      eos_token: specialToken('eos_token'),
      pad_token: specialToken('pad_token'),
      unk_token: specialToken('unk_token'),
    });
    return encode(text, false);
  },

  /** One text per list of ids; an empty list is the empty text. */
  decode({
    lists,
    skipSpecialTokens,
  }: {
    lists: readonly (readonly number[])[];
    skipSpecialTokens: boolean;
  }): string[] {
    return lists.map((ids) =>
      ids.length === 0 ? '' : tokenizer.decode([...ids], { skip_special_tokens: skipSpecialTokens }),
    );
  },
};

export type TokenizerMethods = typeof methods;

serveCalls(methods);
