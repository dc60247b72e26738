/** Requests of simulated clients: draws them, computes what the API must answer, and checks what it did. The one oracle. */
import { projectPath } from '../support/project.ts';
import type { Random } from '../../shared/base/random.ts';
import { greedy } from '../support/request.ts';
import type { Path } from '../../services/router/api/surface.ts';
import { REPLACEMENT } from '../../shared/model/token_bytes.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { PromptTools } from '../../services/router/api/prompt_tools.ts';
import { bodyKinds } from '../../services/router/surfaces/registry.ts';
import type { TokenConstraintMessage } from '../../shared/protocol/messages.ts';
import { plainRun, SIM_VOCAB, type PlainRun } from './simulated_device.ts';
import { drawEmbedding, faultOfEmbeddings, type ExpectedEmbedding } from './embedding_wish.ts';
import type { Answer } from './simulated_http.ts';

export const simModel = projectPath('test/sim/model');
const EOS = 1;
/** The longest prompt and output together that simulated models have. */
export const MAX_LENGTH = 100;
/** Tokenizers hold nothing of a request: one serves every process of every seed. */
const simTokenizer = new PromptTools(readTextFiles(simModel), bodyKinds);

/**
 * Tokenizer of a process's thread. Its list of added ids is empty, since answers would otherwise be remembered from one seed to
 * another.
 */
export const simTokenizerThread = new Proxy(simTokenizer, {
  get: (tokenizer, name: keyof PromptTools) => {
    if (name === 'delimiters') return () => [];
    const found: unknown = Reflect.get(tokenizer, name, tokenizer);
    return typeof found === 'function' ? (found.bind(tokenizer) as unknown) : found;
  },
});

/** Expected result of one prompt. */
interface Expected {
  readonly prompt: readonly number[];
  readonly plain: PlainRun;
  /** Token ids that the client receives; a stop string may end them before the plain run. */
  readonly ids: readonly number[];
  readonly text: string;
  readonly finish: 'stop' | 'length';
  readonly stopReason: string | number | null;
}

export interface Wish {
  readonly path: Path;
  readonly body: Record<string, unknown>;
  readonly salt: string;
  readonly expected: readonly Expected[];
  /** Embeddings that the request wants, by prompt. */
  readonly embeddings?: readonly ExpectedEmbedding[];
  /** Status that an invalid request must be refused with; undefined for a valid one. */
  readonly refusedWith: number | undefined;
}

function tokensOf(r: Random, count: number): number[] {
  return Array.from({ length: count }, () => 2 + r.below(SIM_VOCAB - 2));
}

/** Prefixes that requests of a seed share. */
type Prefixes = readonly [readonly number[], ...(readonly number[])[]];

export function drawPrefixes(r: Random): Prefixes {
  const draw = (): number[] => tokensOf(r, 12 + r.below(40));
  return [draw(), draw(), draw()];
}

const WORDS: [string, ...string[]] = ['the heron', 'in an inner', 'café', 'then', 'a 42', "it's on", 'why?'];

/** `said`: what came of earlier requests; crowded ones share little and grow much. */
export function drawWish(
  r: Random,
  {
    prefixes,
    said,
    isCrowded,
    isMeanPooled,
  }: {
    readonly prefixes: Prefixes;
    readonly said: readonly (readonly number[])[];
    readonly isCrowded: boolean;
    readonly isMeanPooled: boolean;
  },
): Wish {
  if (r.chance(1, 16)) return drawRubbish(r);
  const isChat = r.chance(1, 6);
  const numPrompts = isChat || r.chance(4, 5) ? 1 : 2 + r.below(2);
  const words = (): string => Array.from({ length: 1 + r.below(4) }, () => r.pick(WORDS)).join(' ');
  const texts = isChat || r.chance(1, 8) ? Array.from({ length: numPrompts }, words) : undefined;
  const drawn = (): number[] => {
    const earlier = said[r.below(said.length)];
    if (earlier && r.chance(1, isCrowded ? 8 : 3)) {
      // Repeats an earlier prompt, cut at a block or anywhere, or goes on with its next turn.
      const kept = earlier.slice(0, 4 + r.below(Math.min(60, earlier.length)));
      const cut = r.chance(1, 2) ? kept.slice(0, 4 * Math.floor(kept.length / 4)) : kept;
      if (cut.at(-1)! >= 2 && cut.at(-1)! < 28) return cut;
    }
    if (isCrowded) return [...tokensOf(r, 16 + r.below(24)), 2 + r.below(26)];
    const prefix = r.chance(3, 4) ? r.pick(prefixes) : [];
    // The last one is whole: half a character would take the output's beginning for its other half.
    return [...prefix.slice(0, prefix.length - r.below(4)), ...tokensOf(r, r.below(16)), 2 + r.below(26)];
  };
  if (!texts && r.chance(1, 6)) {
    const embedding = drawEmbedding(r, drawn, MAX_LENGTH, isMeanPooled);
    return { path: '/v1/embeddings', expected: [], refusedWith: undefined, ...embedding };
  }
  const rendered = texts?.map((text) => (isChat ? `user: ${text}\na: ` : text));
  const prompts = rendered
    ? rendered.map((text) => [...simTokenizer.encode({ text, addSpecialTokens: true, maxCharacters: 1e6 })])
    : Array.from({ length: numPrompts }, drawn);
  const wanted = isCrowded ? 12 + r.below(30) : 2 + r.below(24);
  // A prompt that goes on with an earlier one may leave less room.
  const maxTokens = Math.min(wanted, MAX_LENGTH - Math.max(...prompts.map(({ length }) => length)));
  const isIgnoringEos = r.chance(1, 3);
  const ownStops = r.chance(1, 3) ? [7] : [];
  const hasStops = r.chance(1, 4);
  const minTokens = !hasStops && r.chance(1, 6) ? 1 + r.below(2) : 0;
  const numLogprobs = r.chance(1, 5) ? r.below(4) : -1;
  const isStream = r.chance(3, 4);
  const isReading = !isStream && !isChat && r.chance(1, 2);
  const salt = r.pick(['', '', '', 'tenant', `own ${r.u32()}`]);
  const seed = r.u32();
  const sampling = {
    ...greedy,
    seed,
    temperature: r.pick([0, 0.8, 1.2]),
    topK: r.pick([0, 5]),
    topP: r.pick([1, 0.9]),
    presencePenalty: r.pick([0, 0, 0.7]),
    numLogprobs,
    minTokens,
    frequencyPenalty: r.pick([0, 0, 0, 0.4]),
    repetitionPenalty: r.pick([1, 1, 1, 1.3]),

    minP: r.pick([0, 0, 0.1]),
    logitBias: r.chance(1, 6) ? [[7, 2.5] as const, [2 + r.below(26), -100] as const] : [],
  };
  const stopTokenIds = [...(isIgnoringEos ? [] : [EOS]), ...ownStops];
  const numChoices = r.chance(1, 6) ? 2 + r.below(3) : 1;
  const constraint = r.chance(1, 5) ? drawConstraint(r) : undefined;
  const run = { stopTokenIds, constraint: constraint?.message };
  // Choice i of a prompt is the single request with the seed plus i.
  const runs = prompts.flatMap((prompt) =>
    Array.from({ length: numChoices }, (_, i) => {
      const own = { ...sampling, seed: sampling.seed + i };
      const maxLength = prompt.length + maxTokens;
      return { prompt, plain: plainRun({ ...run, tokens: prompt, maxLength, sampling: own }) };
    }),
  );
  // One that comes, over a token's end or within it, and one that does not.
  const text = textOf(runs[0]?.plain.sampled.map(({ token }) => token) ?? []);
  const at = r.below(text.length);
  const stop = text.slice(at, at + 1 + r.below(4));
  const stops = hasStops && stop !== '' && !stop.includes(REPLACEMENT) ? [stop, 'zz'] : [];
  const expected = runs.map(({ prompt, plain }): Expected => ({
    prompt,
    plain,
    // Its grammar's end ends an output that ignores it elsewhere.
    ...cut(plain, constraint?.message.grammar ? [...stopTokenIds, EOS] : stopTokenIds, ownStops, stops),
  }));
  const logprobs =
    numLogprobs < 0 ? {} : isChat ? { logprobs: true, top_logprobs: numLogprobs } : { logprobs: numLogprobs };
  return {
    path: isChat ? '/v1/chat/completions' : '/v1/completions',
    salt,
    expected,
    refusedWith: undefined,
    body: {
      ...(isChat ? { messages: [{ role: 'user', content: texts?.[0] }] } : { prompt: texts ?? prompts }),
      max_tokens: maxTokens,
      temperature: sampling.temperature,
      top_k: sampling.topK,
      top_p: sampling.topP,
      seed: sampling.seed,
      presence_penalty: sampling.presencePenalty,
      min_tokens: minTokens,
      frequency_penalty: sampling.frequencyPenalty,
      repetition_penalty: sampling.repetitionPenalty,
      min_p: sampling.minP,
      logit_bias: Object.fromEntries(sampling.logitBias),
      stop: stops,
      stop_token_ids: ownStops,
      ignore_eos: isIgnoringEos,
      ...logprobs,
      ...(isReading ? { prompt_logprobs: 0 } : {}),
      ...(numChoices > 1 ? { n: numChoices } : {}),
      ...constraint?.body,
      return_token_ids: true,
      stream: isStream,
      ...(salt === '' ? {} : { cache_salt: salt }),
    },
  };
}

interface DrawnConstraint {
  readonly body: Record<string, unknown>;
  /** The constraint as an engine must see it. */
  readonly message: TokenConstraintMessage;
}

/** Draws a constraint that leaves some tokens whatever comes. */
function drawConstraint(r: Random): DrawnConstraint {
  const kind = r.below(3);
  const grammar = kind === 1 ? '' : `g${r.below(1_000)}`;
  const allowed = kind === 1 ? [...new Set(tokensOf(r, 24))] : [];
  const words = kind === 0 ? [] : [r.pick(['he', 'in', 'er'])];
  const allowedTokens = Buffer.alloc(allowed.length === 0 ? 0 : Math.ceil(SIM_VOCAB / 8));
  for (const token of allowed) allowedTokens[token >> 3]! |= 1 << (token & 7);
  const encode = (text: string): number[] => [
    ...simTokenizer.encode({ text, addSpecialTokens: false, maxCharacters: 1e6 }),
  ];
  const forbidden = words.flatMap((word) => {
    const [plain, spaced] = [encode(word), encode(` ${word}`)];
    return [plain, ...(plain.join() === spaced.join() ? [] : [spaced])].map((tokens) => ({ tokens }));
  });
  return {
    body: {
      ...(grammar === '' ? {} : { structured_outputs: { grammar } }),
      ...(allowed.length === 0 ? {} : { allowed_token_ids: allowed }),
      ...(words.length === 0 ? {} : { bad_words: words }),
    },
    message: { grammar, endTokens: [EOS], allowedTokens, forbidden },
  };
}

/** Draws an invalid request; its answer must name the error, whatever fails besides. */
function drawRubbish(r: Random): Wish {
  const body = r.pick<Record<string, unknown>>([
    { prompt: [SIM_VOCAB + 5] },
    { prompt: Array.from({ length: 200 }, () => 5) },
    { prompt: 'a', temperature: -1 },
    { max_tokens: 5 },
  ]);
  return { path: '/v1/completions', body, salt: '', expected: [], refusedWith: 400 };
}

/** Returns the output as the client sees it: stop tokens have no text, and a stop string ends it. */
function cut(
  { sampled }: PlainRun,
  stopTokenIds: readonly number[],
  ownStops: readonly number[],
  stops: readonly string[],
): Pick<Expected, 'ids' | 'text' | 'finish' | 'stopReason'> {
  const all = sampled.map(({ token }) => token);
  const last = all.at(-1) ?? -1;
  const isStopped = stopTokenIds.includes(last);
  const spoken = isStopped ? all.slice(0, -1) : all;
  for (let count = 1; count <= spoken.length; count++) {
    const text = textOf(spoken.slice(0, count));
    const found = stops.map((stop) => ({ stop, at: text.indexOf(stop) })).filter(({ at }) => at >= 0);
    const [first] = found.sort((a, b) => a.at - b.at);
    if (!first) continue;
    return { ids: all.slice(0, count), text: text.slice(0, first.at), finish: 'stop', stopReason: first.stop };
  }
  const stopReason = isStopped && ownStops.includes(last) ? last : null;
  return { ids: all, text: textOf(spoken), finish: isStopped ? 'stop' : 'length', stopReason };
}

function textOf(ids: readonly number[]): string {
  return simTokenizer.decode({ lists: [ids], skipSpecialTokens: true })[0] ?? '';
}

/** Result received for one prompt. */
interface Got {
  promptLogprobs: readonly (Record<string, { readonly logprob: number }> | null)[];
  readonly ids: number[];
  readonly logprobs: number[];
  text: string;
  finish: unknown;
  stopReason: unknown;
  numFinishes: number;
}

interface Choice {
  readonly index: number;
  readonly text?: string;
  readonly delta?: { readonly content?: string };
  readonly message?: { readonly content: string };
  readonly token_ids?: number[];
  readonly finish_reason: string | null;
  readonly prompt_logprobs?: Got['promptLogprobs'];
  readonly stop_reason?: string | number | null;
  readonly logprobs?: {
    readonly token_logprobs?: number[];
    readonly content?: { readonly logprob: number }[];
  } | null;
}

interface Message {
  readonly choices?: Choice[];
  readonly usage?: { readonly prompt_tokens: number; readonly completion_tokens: number } | null;
  readonly error?: { readonly message: string };
}

/** Returns what is wrong with an answer, as far as it came; undefined when nothing is (R1). */
export function faultOf({ expected, embeddings, body, refusedWith }: Wish, answer: Answer): string | undefined {
  if (refusedWith !== undefined) {
    if (answer.end !== 'complete') return undefined;
    const hasError = answer.text.startsWith('{"error":{');
    return answer.status === refusedWith && hasError ? undefined : `rubbish got ${answer.status} ${answer.text}`;
  }
  if (answer.status !== 0 && answer.status !== 200) return `status ${answer.status}: ${answer.text}`;
  if (embeddings) return answer.status === 0 ? undefined : faultOfEmbeddings(embeddings, answer);
  const isStream = body['stream'] === true;
  const isWhole = answer.end === 'complete';
  if (!isStream && !isWhole) return undefined;
  const events = isStream ? answer.text.split('\n\n').map((line) => line.replace(/^data: /, '')) : [answer.text];
  if (isStream && isWhole && events.splice(-2).join() !== '[DONE],') return `the stream does not end with [DONE]`;
  const got = expected.map((): Got => ({
    promptLogprobs: [],
    ids: [],
    logprobs: [],
    text: '',
    finish: null,
    stopReason: null,
    numFinishes: 0,
  }));
  let usage: Message['usage'];
  for (const event of events) {
    if (event === '') continue;
    const message = JSON.parse(event) as Message;
    if (message.error) return `an error in the stream: ${message.error.message}`;
    usage = message.usage ?? usage;
    for (const choice of message.choices ?? []) {
      const one = got[choice.index];
      if (!one) return `choice ${choice.index} was not asked for`;
      take(one, choice);
    }
  }
  const faults = expected.flatMap((want, i) => faultOfOne(want, got[i]!, isWhole, body) ?? []);
  if (isWhole && !isStream) {
    const sum = (values: readonly (readonly unknown[])[]): number =>
      values.reduce((all, { length }) => all + length, 0);
    // The prompt of several choices counts once.
    const numChoices = Number(body['n'] ?? 1);
    const prompts = expected.filter((_, i) => i % numChoices === 0).map((one) => one.prompt);
    const [prompt, output] = [sum(prompts), sum(expected.map(({ ids }) => ids))];
    if (usage?.prompt_tokens !== prompt || usage.completion_tokens !== output) {
      faults.push(`usage ${JSON.stringify(usage)} is not ${prompt} and ${output}`);
    }
  }
  return faults[0];
}

function take(got: Got, { text, delta, message, token_ids: ids, finish_reason: finish, ...rest }: Choice): void {
  if (got.numFinishes > 0) got.numFinishes++;
  got.text += text ?? delta?.content ?? message?.content ?? '';
  got.ids.push(...(ids ?? []));
  const { token_logprobs: flat, content } = rest.logprobs ?? {};
  got.logprobs.push(...(flat ?? content?.map(({ logprob }) => logprob) ?? []));
  got.promptLogprobs = rest.prompt_logprobs ?? [];
  if (finish === null) return;
  got.numFinishes = Math.max(1, got.numFinishes);
  got.finish = finish;
  got.stopReason = rest.stop_reason ?? null;
}

function faultOfOne(want: Expected, got: Got, isWhole: boolean, body: Wish['body']): string | undefined {
  const isPrefix = got.ids.every((id, i) => id === want.ids[i]) && want.text.startsWith(got.text);
  if (!isPrefix) return `R1: ${got.ids.join()} ${JSON.stringify(got.text)} is not ${want.ids.join()} ${want.text}`;
  const { sampled } = want.plain;
  if (got.logprobs.some((value, i) => value !== sampled[i]?.logprob[0])) return 'its log-probabilities are others';
  if (!isWhole) return undefined;
  if (body['prompt_logprobs'] !== undefined && !isPromptTold(want, got))
    return `the prompt's log-probabilities are others`;
  const asked = body['logprobs'] === undefined ? 0 : want.ids.length;
  const isAll = got.ids.length === want.ids.length && got.text === want.text && got.logprobs.length === asked;
  if (!isAll)
    return `it ended after ${got.ids.join()} ${JSON.stringify(got.text)}, want ${want.ids.join()} ${want.text}`;
  const isSame = got.finish === want.finish && got.stopReason === want.stopReason && got.numFinishes === 1;
  return isSame ? undefined : `it ends ${got.numFinishes} times, with ${String(got.finish)}, ${String(got.stopReason)}`;
}

/** Whether the answer has the right log-probability of every prompt token but the first, whatever failed on the way. */
function isPromptTold({ prompt, plain }: Expected, { promptLogprobs }: Got): boolean {
  return (
    promptLogprobs.length === prompt.length &&
    prompt.every((token, i) => promptLogprobs[i]?.[String(token)]?.logprob === plain.promptLogprobs.get(i))
  );
}
