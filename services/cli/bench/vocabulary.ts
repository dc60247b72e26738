/** Words that prompts are made of, and how the server counts them: measured, so that no tokenizer is needed here. */
import { messageOf } from '../../../shared/base/failure.ts';
import { usageOf } from './answer_events.ts';
import { sendForJson, type HttpClient } from './http_client.ts';

/** Common words: most tokenizers have a token for each, with the blank before it. */
const WORDS = (
  'the of and to in is that for it was on are as with his they at be this from have or by one had not but what all were when we ' +
  'there can an your which their said if do will each about how up out them then she many some so these would other into has more ' +
  'her two like him see time could no make than first been its who now people my made over did down only way find use may water ' +
  'long little very after words called just where most know get through back much before go good new write our used me man too any ' +
  'day same right look think also around another came come work three word must because does part even place well such here take'
).split(' ');

/** A word with the blank before it. */
export interface CountedWord {
  readonly text: string;
  /** Tokens of the word, at least 1; a mean over all words where the server cannot tokenize. */
  readonly numTokens: number;
}

/** Words and token ids of a model. */
export interface Vocabulary {
  readonly words: readonly [CountedWord, ...CountedWord[]];
  /** Ids of ordinary tokens; empty where the server does not tell any. */
  readonly ids: readonly number[];
  /** How the counts were found. */
  readonly source: 'tokenize' | 'usage' | 'guess';
}

/** Tokens of a word where the server says nothing at all. */
const GUESSED_TOKENS = 1.3;
/** Words of the two prompts whose lengths are compared. */
const NUM_COMPARED = [32, 96] as const;
/** Requests to `/tokenize` at a time. */
const AT_A_TIME = 16;

/** A model at a server, and how to ask it. */
export interface VocabularyQuestion {
  readonly client: HttpClient;
  readonly model: string;
  /** Returns a request that generates one token and does not stream. */
  readonly oneToken: (text: string) => { readonly path: string; readonly body: string };
  readonly signal: AbortSignal;
}

/** Measures the words by `/tokenize`, else by the usage of two requests, else guesses. Rejects with a RequestError when requests fail. */
export async function measureVocabulary(question: VocabularyQuestion): Promise<Vocabulary> {
  const ids = await Promise.all([tokenIdsOf(question, ' the'), tokenIdsOf(question, ' of')]);
  return ids.every((some) => some !== undefined) ? byTokenizing(question) : byUsage(question);
}

async function byTokenizing(question: VocabularyQuestion): Promise<Vocabulary> {
  const words: CountedWord[] = [];
  const ids = new Set<number>();
  for (let i = 0; i < WORDS.length; i += AT_A_TIME) {
    const texts = WORDS.slice(i, i + AT_A_TIME).map((word) => ` ${word}`);
    const found = await Promise.all(texts.map((text) => tokenIdsOf(question, text)));
    for (const [j, some = []] of found.entries()) {
      if (some.length === 0) continue;
      words.push({ text: texts[j] ?? '', numTokens: some.length });
      for (const id of some) ids.add(id);
    }
  }
  const [first, ...more] = words;
  return first ? { words: [first, ...more], ids: [...ids], source: 'tokenize' } : byUsage(question);
}

/** Returns the token ids of a text; undefined where the server has no `/tokenize`. */
export async function tokenIdsOf(
  { client, model, signal }: Pick<VocabularyQuestion, 'client' | 'model' | 'signal'>,
  text: string,
): Promise<readonly number[] | undefined> {
  const body = JSON.stringify({ model, prompt: text, add_special_tokens: false });
  const answer = await sendForJson(client, { path: '/tokenize', body }, signal).catch((error: unknown) => {
    if (signal.aborted) throw error;
    return undefined;
  });
  const { tokens } = (answer ?? {}) as { tokens?: unknown };
  const isIds = Array.isArray(tokens) && tokens.every((id) => Number.isSafeInteger(id));
  return isIds ? (tokens as number[]) : undefined;
}

async function byUsage({ client, oneToken, signal }: VocabularyQuestion): Promise<Vocabulary> {
  const counts = await Promise.all(
    NUM_COMPARED.map(async (numWords) => {
      const answer = await sendForJson(client, oneToken(textOf(numWords)), signal);
      const { usage } = (answer ?? {}) as { usage?: Readonly<Record<string, unknown>> | null };
      return usage ? usageOf(usage).promptTokens : undefined;
    }),
  );
  const [few, many] = counts;
  const slope = ((many ?? NaN) - (few ?? NaN)) / (NUM_COMPARED[1] - NUM_COMPARED[0]);
  const isKnown = slope > 0.1 && slope < 20;
  const numTokens = isKnown ? slope : GUESSED_TOKENS;
  const [first = '', ...more] = WORDS.map((word) => ` ${word}`);
  const counted = (text: string): CountedWord => ({ text, numTokens });
  return { words: [counted(first), ...more.map(counted)], ids: [], source: isKnown ? 'usage' : 'guess' };
}

/** Returns a text of so many words, every word about as often. */
function textOf(numWords: number): string {
  return Array.from({ length: numWords }, (_, i) => WORDS[(i * 7) % WORDS.length]).join(' ');
}

/** Whether the completions of the server take a prompt of token ids, and count each as one token. */
export async function takesTokenIds(
  ids: readonly number[],
  request: { readonly path: string; readonly body: string },
  { client, signal }: Pick<VocabularyQuestion, 'client' | 'signal'>,
): Promise<boolean> {
  const answer = await sendForJson(client, request, signal).catch((error: unknown) => {
    if (signal.aborted) throw error;
    return messageOf(error);
  });
  const { usage } = (typeof answer === 'object' ? answer : {}) as { usage?: Readonly<Record<string, unknown>> };
  return usage !== undefined && usageOf(usage).promptTokens === ids.length;
}
