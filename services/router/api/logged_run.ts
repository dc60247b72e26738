/** The run of a prompt, with its texts in the log of prompts; used only with `--log-prompts`. */
import { MAX_TEXT_BYTES, type LoggedText, type PromptLog } from '../observe/prompt_log.ts';
import type { Generation } from '../relay/generation.ts';
import type { ApiContext } from './api_context.ts';
import type { TakeOutput } from './prompt_run.ts';

/** Tokens of a prompt that are decoded: one more than the log may have room for, so that it sees that the rest is missing. */
const MAX_DECODED = MAX_TEXT_BYTES + 1;

/** Runs the request `id`, whose deltas `run` gives to their taker, and keeps prompt and answer in `log` when it has ended, however it ends. */
export async function logged(
  codec: Pick<ApiContext['codec'], 'hasTokenizer' | 'decode'>,
  log: PromptLog,
  { id, generation }: { readonly id: string; readonly generation: Pick<Generation, 'promptTokens' | 'isFromIds'> },
  run: (take: TakeOutput) => Promise<void>,
  take: TakeOutput,
): Promise<void> {
  const prompt = promptOf(codec, generation);
  let text = '';
  const ids: number[] = [];
  try {
    await run((delta) => {
      if (codec.hasTokenizer && text.length <= MAX_TEXT_BYTES) text += delta.text;
      else if (ids.length <= MAX_TEXT_BYTES) ids.push(...delta.tokens.map(({ token }) => token));
      return take(delta);
    });
  } finally {
    log.add(id, await prompt, codec.hasTokenizer ? text : ids);
  }
}

/** Returns the start of a prompt: its text, or token ids where the client sent ids or the model has no tokenizer. */
async function promptOf(
  codec: Pick<ApiContext['codec'], 'hasTokenizer' | 'decode'>,
  { promptTokens, isFromIds = false }: Pick<Generation, 'promptTokens' | 'isFromIds'>,
): Promise<LoggedText> {
  const ids = Array.from(promptTokens.subarray(0, MAX_DECODED));
  if (isFromIds || !codec.hasTokenizer) return ids;
  // A rejection means that the tokenizer's thread has died, which ends the router by itself.
  const [text = ''] = await codec.decode([ids], false).catch(() => ['']);
  return text;
}
