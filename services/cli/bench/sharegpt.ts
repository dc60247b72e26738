/** Conversations of a ShareGPT file: a sample of them by seed, one turn each or several. */
import { Failure } from '../../../shared/base/failure.ts';
import { Random } from '../../../shared/base/random.ts';
import { objectsOfFile } from './json_array.ts';
import type { Turn, Workload } from './workload.ts';

/** Lengths outside of which `vllm bench serve` leaves a conversation out, in tokens. */
const LIMITS = { least: 4, prompt: 1_024, total: 2_048 };
/** Conversations that are kept while the file is read, for each that is wanted: some are left out by their lengths. */
const SPARE = 4;
/** Conversations whose tokens are counted at a time. */
const AT_A_TIME = 16;

/** How a file is read. */
export interface ShareGptOptions {
  readonly path: string;
  readonly seed: number;
  readonly numConversations: number;
  /** Most turns of a conversation. */
  readonly numTurns: number;
  /** Tokens of each answer, in place of the file's; undefined: as many as the file's answers have. */
  readonly outputTokens: number | undefined;
}

/** A question and the answer that the file has for it. */
interface Exchange {
  readonly question: string;
  readonly answer: string;
}

/**
 * Reads the conversations. `countTokens` counts those of a text. Where the file has fewer that fit, they are repeated, and a note says so.
 * Rejects with a Failure when the file cannot be read or none fits.
 */
export async function shareGptWorkload(
  options: ShareGptOptions,
  countTokens: (text: string) => Promise<number>,
): Promise<Workload> {
  const { path, numConversations } = options;
  const { candidates, numRead } = await sampleOf(options);
  const fitting: (readonly Turn[])[] = [];
  for (let i = 0; i < candidates.length && fitting.length < numConversations; i += AT_A_TIME) {
    const some = candidates.slice(i, i + AT_A_TIME);
    const turns = await Promise.all(some.map((exchanges) => turnsOf(exchanges, options.outputTokens, countTokens)));
    fitting.push(...turns.filter((one) => one.length > 0));
  }
  fitting.length = Math.min(fitting.length, numConversations);
  if (fitting.length === 0)
    throw new Failure(
      'invalid_request',
      `${path}: of ${numRead} conversations none has a question and an answer of ${LIMITS.least} tokens or more, and at most ${LIMITS.prompt} and ${LIMITS.total} together`,
    );
  const turnsAt = (index: number): readonly Turn[] => fitting[index % fitting.length] ?? [];
  const notes =
    fitting.length < numConversations
      ? [`${path} has ${fitting.length} conversations that fit: they are repeated, so repeats hit what is cached.`]
      : [];
  let numRequests = 0;
  for (let i = 0; i < numConversations; i++) numRequests += turnsAt(i).length;
  return {
    numConversations,
    numRequests,
    arrivalMs: undefined,
    notes,
    conversation: (index) => {
      const turns = turnsAt(index);
      return { numTurns: turns.length, turn: (at) => turns[at] ?? { prompt: '', promptTokens: 0, outputTokens: 1 } };
    },
  };
}

/** Returns conversations of the file in random order: a sample of SPARE times those that are wanted, whatever the size of the file. */
async function sampleOf({ path, seed, numConversations, numTurns }: ShareGptOptions): Promise<{
  readonly candidates: readonly (readonly Exchange[])[];
  readonly numRead: number;
}> {
  const random = new Random(seed);
  const most = SPARE * numConversations + 100;
  const candidates: (readonly Exchange[])[] = [];
  let numRead = 0;
  for await (const value of objectsOfFile(path)) {
    const exchanges = exchangesOf(value).slice(0, numTurns);
    if (exchanges.length === 0) continue;
    // Reservoir sampling: each conversation read so far is in the sample with the same probability.
    const at = random.below(++numRead);
    if (candidates.length < most) {
      candidates.push(exchanges);
      [candidates[at], candidates[candidates.length - 1]] = [exchanges, candidates[at] ?? exchanges];
    } else if (at < most) candidates[at] = exchanges;
  }
  return { candidates, numRead };
}

/** Returns the questions and answers of a conversation, from its first question on, while they alternate. */
function exchangesOf(value: unknown): Exchange[] {
  const { conversations, conversation, messages } = value as Record<string, unknown>;
  const list = [conversations, conversation, messages].find(Array.isArray) as readonly unknown[] | undefined;
  const texts = (list ?? []).map((message) => {
    const { from, role, value: text, content } = (message ?? {}) as Record<string, unknown>;
    const isQuestion = ['human', 'user'].includes(String(from ?? role));
    return { isQuestion, text: typeof text === 'string' ? text : typeof content === 'string' ? content : '' };
  });
  const exchanges: Exchange[] = [];
  for (let i = texts.findIndex(({ isQuestion }) => isQuestion); i >= 0 && i + 1 < texts.length; i += 2) {
    const [question, answer] = [texts[i], texts[i + 1]];
    if (!question?.isQuestion || !answer || answer.isQuestion) break;
    exchanges.push({ question: question.text, answer: answer.text });
  }
  return exchanges;
}

/** Returns the turns up to the first one that does not fit. */
async function turnsOf(
  exchanges: readonly Exchange[],
  outputTokens: number | undefined,
  countTokens: (text: string) => Promise<number>,
): Promise<readonly Turn[]> {
  const turns: Turn[] = [];
  for (const { question, answer } of exchanges) {
    const promptTokens = await countTokens(question);
    const wanted = outputTokens ?? (await countTokens(answer));
    if (promptTokens < LIMITS.least || (outputTokens === undefined && wanted < LIMITS.least)) break;
    if (promptTokens > LIMITS.prompt || promptTokens + wanted > LIMITS.total) break;
    turns.push({ prompt: question, promptTokens, outputTokens: wanted });
  }
  return turns;
}
