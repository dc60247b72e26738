/** The steps before a run: is there a server, which model, how does it count tokens, does it answer; then the prompts. */
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { readTrace } from '../../../shared/trace/trace_reader.ts';
import { API_KEY_VARIABLE } from '../router_api.ts';
import { CERTIFICATE, RequestError, sendForJson, type HttpClient } from './http_client.ts';
import { PromptMaker } from './prompts.ts';
import { requestBody, type BodyOptions } from './request_body.ts';
import { runRequest } from './request_run.ts';
import type { ServeOptions } from './serve_arguments.ts';
import { shareGptWorkload } from './sharegpt.ts';
import { measureVocabulary, takesTokenIds, tokenIdsOf, type Vocabulary } from './vocabulary.ts';
import { fitted, randomWorkload, traceWorkload, type Workload } from './workload.ts';

/** Milliseconds between two attempts to reach a server that is not ready. */
const RETRY_MS = 1_000;
/** Token ids of the question whether a server takes any. */
const NUM_TRIED_IDS = 8;

/** The process around the steps. */
export interface SetupHost {
  readonly client: HttpClient;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

/** A server that answers, and what it will be sent. */
export interface Setup {
  readonly model: string;
  readonly body: BodyOptions;
  readonly maker: PromptMaker;
  readonly workload: Workload;
  readonly notes: readonly string[];
}

/** Finds out all that a run needs. Rejects with a Failure that says what to do when there is no server, or it refuses. */
export async function setUp(options: ServeOptions, host: SetupHost): Promise<Setup> {
  const { id: model, maxTokens } = await modelOf(options, host);
  const { api, ignoreEos, temperature, extraBody, endpoint } = options;
  const body: BodyOptions = { api, model, ignoreEos, temperature, extraBody };
  await checkAnswers(options, body, host);
  const oneToken = (prompt: string | readonly number[]): { path: string; body: string } => ({
    path: endpoint,
    body: requestBody(body, { prompt, outputTokens: 1 }, false),
  });
  const vocabulary = await measureVocabulary({ ...host, model, oneToken });
  const areIds = await decideIds(options, vocabulary, oneToken, host);
  const maker = new PromptMaker(vocabulary, areIds);
  const fitting = fittedTo(options, maxTokens);
  const workload = await workloadOf(fitting.options, maker, vocabulary, { ...host, model });
  return { model, body, maker, workload, notes: [...noteOf(options, vocabulary), ...fitting.notes, ...workload.notes] };
}

/** Shortens default lengths to what the model's context holds, and says so. `maxTokens`: as the server's list of models has it. */
function fittedTo(
  options: ServeOptions,
  maxTokens: number | undefined,
): { readonly options: ServeOptions; readonly notes: readonly string[] } {
  const { dataset, numTurns } = options;
  if (maxTokens === undefined || !('lengths' in dataset)) return { options, notes: [] };
  const lengths = fitted(dataset.lengths, dataset.free, { maxTokens, numTurns });
  const { inputTokens, outputTokens } = lengths;
  if (inputTokens === dataset.lengths.inputTokens && outputTokens === dataset.lengths.outputTokens)
    return { options, notes: [] };
  const turns = numTurns > 1 ? ` of ${numTurns} turns` : '';
  const note = `prompts of ${inputTokens} and answers of ${outputTokens} tokens, so that conversations${turns} fit the model's context of ${maxTokens}: --random-input-len and --random-output-len set others`;
  return { options: { ...options, dataset: { ...dataset, lengths } }, notes: [note] };
}

/** A model of the server, and the tokens of its context where the server says. */
interface ServedModel {
  readonly id: string;
  readonly maxTokens: number | undefined;
}

/** Returns the model that was named, else the first one of the server, for which it waits as long as the options allow. */
async function modelOf({ model, baseUrl, readyTimeoutMs }: ServeOptions, host: SetupHost): Promise<ServedModel> {
  const untilMs = host.clock.nowMs() + readyTimeoutMs;
  for (;;) {
    try {
      const answer = await sendForJson(host.client, { path: '/v1/models' }, host.signal);
      const { data } = (answer ?? {}) as { data?: readonly { id?: unknown; max_model_len?: unknown }[] };
      const all = Array.isArray(data) ? (data as readonly { id?: unknown; max_model_len?: unknown }[]) : [];
      const found = model === undefined ? all[0] : all.find((one) => one.id === model);
      const maxTokens = typeof found?.max_model_len === 'number' ? found.max_model_len : undefined;
      const id = model ?? found?.id;
      if (typeof id === 'string') return { id, maxTokens };
      throw new RequestError('no model', 'its /v1/models names no model');
    } catch (error) {
      // A server without the list has the model all the same.
      if (model !== undefined && error instanceof RequestError && error.kind.startsWith('HTTP'))
        return { id: model, maxTokens: undefined };
      if (host.signal.aborted) throw error;
      if (host.clock.nowMs() >= untilMs) throw noServer(error, baseUrl, model !== undefined);
      await host.clock.sleep(RETRY_MS, host.signal);
    }
  }
}

/** Returns what to do about a server that refuses a key, or wants one; undefined for any other error. */
function keyCure(kind: string): string | undefined {
  return kind === 'HTTP 401' || kind === 'HTTP 403'
    ? `give a key that it takes by --api-key or the variable ${API_KEY_VARIABLE} (or OPENAI_API_KEY)`
    : undefined;
}

function noServer(error: unknown, url: URL, isModelNamed: boolean): Failure {
  const kind = error instanceof RequestError ? error.kind : messageOf(error);
  const what = `${url.href}: ${kind}${messageOf(error) === kind ? '' : ` (${messageOf(error)})`}`;
  const cure =
    keyCure(kind) ??
    (kind === CERTIFICATE
      ? '--insecure measures all the same'
      : kind.startsWith('HTTP') || kind === 'no model' || kind === 'answer is not JSON'
        ? `look whether --base-url leads to the server${isModelNamed ? '' : ', and name the model by --model'}`
        : 'start a server (`penstock up`), name its address by --base-url URL, or wait for it by --ready-check-timeout-sec');
  return new Failure('unavailable', `no server to measure at ${what}: ${cure}`);
}

/** Sends one short request as the run will send them. Rejects with a Failure that has the server's words. */
async function checkAnswers({ endpoint, baseUrl }: ServeOptions, body: BodyOptions, host: SetupHost): Promise<void> {
  const request = { path: endpoint, body: requestBody(body, { prompt: 'Is this a test?', outputTokens: 2 }) };
  const asked = { request, promptTokens: 1, queueMs: 0, isTextKept: false };
  const { measured } = await runRequest(asked, host, host.clock.nowMs());
  if (measured.end.kind !== 'failed') return;
  const { error, message } = measured.end;
  throw new Failure(
    'unavailable',
    `${new URL(endpoint, baseUrl).href} does not answer a request of this run: ${error}: ${message}; ` +
      (keyCure(error) ??
        'other keys of the body can be set, and keys that it does not know taken away, by --extra-body'),
  );
}

async function decideIds(
  { api, promptFormat, dataset, endpoint }: ServeOptions,
  { ids }: Vocabulary,
  oneToken: (ids: readonly number[]) => { path: string; body: string },
  host: SetupHost,
): Promise<boolean> {
  if (api === 'chat' || dataset.kind === 'sharegpt' || promptFormat === 'text') {
    if (promptFormat === 'ids')
      throw new Failure(
        'invalid_request',
        '--prompt-format ids is for generated prompts of /v1/completions: leave it out',
      );
    return false;
  }
  const some = Array.from({ length: NUM_TRIED_IDS }, (_, i) => ids[(7 * i) % Math.max(1, ids.length)] ?? 0);
  const takes = ids.length > 0 && (await takesTokenIds(some, oneToken(some), host));
  if (!takes && promptFormat === 'ids')
    throw new Failure(
      'invalid_request',
      `the server has no /tokenize, or its ${endpoint} does not take token ids as they are: use --prompt-format text`,
    );
  return takes;
}

async function workloadOf(
  options: ServeOptions,
  maker: PromptMaker,
  vocabulary: Vocabulary,
  host: SetupHost & { readonly model: string },
): Promise<Workload> {
  const { dataset, seed, numConversations, numTurns } = options;
  if (dataset.kind === 'mooncake') {
    const { path, blockTokens, speed } = dataset;
    const trace = await readTrace(path, { blockTokens, maxRequests: numConversations });
    return traceWorkload(maker, trace, { seed, speed });
  }
  if (dataset.kind !== 'sharegpt') return randomWorkload(maker, dataset.lengths, { seed, numConversations, numTurns });
  const mean = vocabulary.words.reduce((sum, { numTokens }) => sum + numTokens, 0) / vocabulary.words.length;
  const estimate = (text: string): number => Math.ceil(text.split(/\s+/).filter((word) => word !== '').length * mean);
  const count = async (text: string): Promise<number> =>
    vocabulary.source === 'tokenize' ? ((await tokenIdsOf(host, text))?.length ?? estimate(text)) : estimate(text);
  return shareGptWorkload({ ...dataset, seed, numConversations, numTurns }, count);
}

function noteOf({ dataset }: ServeOptions, { source }: Vocabulary): string[] {
  if (source === 'tokenize') return [];
  const how = source === 'usage' ? 'the mean of two measured prompts' : 'a guess of 1.3 tokens a word';
  const what = dataset.kind === 'sharegpt' ? 'lengths of the file’s texts' : 'wanted lengths of prompts';
  return [
    `The server has no /tokenize: ${what} are by ${how}; the input tokens shown are those that the server counted.`,
  ];
}
