/**
 * `penstock bench serve`: checks its arguments and the server, sends the load, prints the table and writes the files that were asked for.
 *
 *   arguments ─► outputs writable? ─► server? model? tokens? ─► warm-up ─► run ─► JSON, page, table
 */
import { mkdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { ProgressText, type ProgressOutput } from '../../../shared/base/progress_text.ts';
import { Random } from '../../../shared/base/random.ts';
import { checkWritable, writeWhole } from '../../../shared/report/whole_file.ts';
import { arrivalTimes } from './arrivals.ts';
import { ClientLoad } from './client_load.ts';
import { figuresOf } from './figures.ts';
import type { HttpClient } from './http_client.ts';
import { runLoad, type RunProgress } from './load_run.ts';
import { seedOf } from './prompts.ts';
import { reportHtml } from './report_html.ts';
import { resultJson } from './result_json.ts';
import { resultTable } from './result_table.ts';
import { runsOfFile } from './run_file.ts';
import type { RunResult } from './run_result.ts';
import { readServeLine, type ServeOptions } from './serve_arguments.ts';
import { serveHelp } from './serve_flags.ts';
import { setUp, type Setup } from './serve_setup.ts';
import type { Workload } from './workload.ts';

/** Exit codes: all requests failed; the run was interrupted. */
const EXIT = { failed: 1, interrupted: 130 };

/** The process around the command. */
export interface BenchHost {
  readonly clock: Clock;
  readonly out: { write(text: string): unknown };
  readonly errors: ProgressOutput;
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** Aborts when the user wants the run to end. */
  readonly signal: AbortSignal;
  /** Returns the CPU time of this process in milliseconds. */
  readonly cpuMs: () => number;
  readonly openClient: (options: Pick<ServeOptions, 'baseUrl' | 'apiKey' | 'isInsecure'>) => HttpClient;
}

/**
 * Runs the command with its arguments and returns its exit code. Rejects with a ConfigError for arguments that are not allowed, and with a Failure
 * when there is no server, or a file cannot be read or written; then nothing was written.
 */
export async function serveCommand(args: readonly string[], host: BenchHost): Promise<number> {
  const options = readServeLine(args, host.environment);
  if (!options) {
    host.out.write(serveHelp());
    return 0;
  }
  if (options.saveTo && options.saveTo.folder !== '') await makeFolder(options.saveTo.folder);
  for (const path of [options.saveTo && fileOf(options.saveTo, 'result.json'), options.html])
    if (path !== undefined) await checkWritable(path);
  const client = host.openClient(options);
  try {
    const result = await measure(options, { ...host, client });
    await writeFiles(result, host);
    host.out.write(resultTable(result));
    if (result.load.isInterrupted) return EXIT.interrupted;
    return result.figures.numDone === 0 ? EXIT.failed : 0;
  } catch (error) {
    if (!host.signal.aborted) throw error;
    host.errors.write('penstock: interrupted before the first request of the run: nothing was measured\n');
    return EXIT.interrupted;
  } finally {
    await client.close();
  }
}

async function makeFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true }).catch((error: unknown) => {
    throw new Failure('invalid_request', `--result-dir: ${folder} cannot be made: ${messageOf(error)}`);
  });
}

type RunningHost = BenchHost & { readonly client: HttpClient };

async function measure(options: ServeOptions, host: RunningHost): Promise<RunResult> {
  const dateMs = host.clock.wallMs();
  const setup = await setUp(options, host);
  const { workload, model, maker } = setup;
  if (options.numWarmups > 0) await warmUp(options, setup, host);
  const random = new Random(seedOf(options.seed, 4));
  const arrivalMs = workload.arrivalMs ?? arrivalTimes(workload.numConversations, options.rate, random);
  const progress = new RunProgressText(options, host, workload.numRequests);
  const load = new ClientLoad(host.clock, host.cpuMs);
  const run = await runLoad(workload, runOptions(options, setup, arrivalMs, `${dateMs.toString(36)}-`), {
    client: host.client,
    clock: host.clock,
    signal: host.signal,
    onProgress: (at) => {
      progress.show(at);
    },
  });
  const client = load.stop();
  progress.end();
  return {
    options,
    model,
    dateMs,
    load: run,
    client,
    numRequests: workload.numRequests,
    areIds: maker.areIds,
    figures: figuresOf(run, options.goodput),
    notes: setup.notes,
  };
}

function runOptions(
  { endpoint, maxConcurrency, requestIdPrefix }: ServeOptions,
  { body }: Setup,
  arrivalMs: Float64Array,
  idOfRun: string,
): Parameters<typeof runLoad>[1] {
  return { endpoint, maxConcurrency, body, arrivalMs, requestIdPrefix: requestIdPrefix ?? `bench-${idOfRun}` };
}

/** Sends prompts as long as the first one of the workload, and of other words, so that none of the workload's is cached. */
async function warmUp(options: ServeOptions, setup: Setup, host: RunningHost): Promise<void> {
  const { numWarmups, seed } = options;
  const { promptTokens, outputTokens } = setup.workload.conversation(0).turn(0);
  const turn = (index: number): ReturnType<ReturnType<Workload['conversation']>['turn']> => ({
    prompt: setup.maker.make([{ seed: seedOf(seed, 5, index), numTokens: promptTokens }]),
    promptTokens,
    outputTokens,
  });
  const workload: Workload = {
    numConversations: numWarmups,
    numRequests: numWarmups,
    arrivalMs: undefined,
    notes: [],
    conversation: (index) => ({ numTurns: 1, turn: () => turn(index) }),
  };
  const progress = new RunProgressText(options, host, numWarmups, 'warm-up, ');
  const onProgress = (at: RunProgress): void => {
    progress.show(at);
  };
  await runLoad(workload, runOptions(options, setup, new Float64Array(numWarmups), 'warm-up-'), {
    ...host,
    onProgress,
  });
  progress.end();
}

/** Progress of a run as one line. */
class RunProgressText {
  readonly #text: ProgressText;
  readonly #isShown: boolean;
  readonly #numRequests: number;
  readonly #before: string;

  constructor({ progress }: ServeOptions, { errors, clock }: BenchHost, numRequests: number, before = '') {
    this.#text = new ProgressText(errors, () => clock.nowMs());
    this.#isShown = progress === 'on' || (progress === 'auto' && errors.isTTY === true);
    [this.#numRequests, this.#before] = [numRequests, before];
  }

  show({ numEnded, numFailed, numInFlight }: RunProgress): void {
    if (!this.#isShown) return;
    const failed = numFailed > 0 ? `, ${numFailed} failed` : '';
    const text = `${this.#before}${numEnded} of ${this.#numRequests} requests, ${numInFlight} in flight${failed}`;
    this.#text.show({ text, share: numEnded / this.#numRequests });
  }

  end(): void {
    this.#text.end();
  }
}

/** Writes the JSON and the page, before the table: a reader of the table that goes away ends this process. */
async function writeFiles(result: RunResult, host: BenchHost): Promise<void> {
  const { options } = result;
  const json = resultJson(result);
  if (options.saveTo) {
    const path = fileOf(options.saveTo, defaultName(result));
    await writeWhole(path, [json]);
    host.errors.write(`the result is in ${path}\n`);
  }
  if (options.html !== undefined) await writeWhole(options.html, [reportHtml(runsOfFile('this run', json))]);
}

function fileOf({ name, folder }: NonNullable<ServeOptions['saveTo']>, fallback: string): string {
  return join(folder, name === '' ? fallback : name);
}

/** Returns the name that vLLM gives such a file. */
function defaultName({ options, model, dateMs }: RunResult): string {
  const { rate, maxConcurrency, label, backend } = options;
  const { rampUp } = rate;
  const ofRate = rampUp
    ? `ramp-up-${rampUp.kind}-${rampUp.startPerSecond}qps-${rampUp.endPerSecond}qps`
    : `${Number.isFinite(rate.ratePerSecond) ? rate.ratePerSecond : 'inf'}qps`;
  const concurrency = Number.isFinite(maxConcurrency) ? `-concurrency${maxConcurrency}` : '';
  const date = new Date(dateMs).toISOString().slice(0, 19).replaceAll(/[-:]/g, '').replace('T', '-');
  return `${label ?? backend}-${ofRate}${concurrency}-${basename(model)}-${date}.json`.replaceAll(/[^\w.-]/g, '_');
}
