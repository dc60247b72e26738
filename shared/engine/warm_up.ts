/**
 * Runs steps at the start, so that no request pays for pipelines and memory that are created at first use. Where there is a clock,
 * also measures the step times with which the step budget starts.
 */
import type { Executable, Segment, SegmentState } from '../../kernels/device.ts';
import { pairsOf } from '../protocol/instance_work.ts';
import { neutralSampling } from '../protocol/request.ts';
import { SequenceSampling } from './sampler.ts';
import type { StepTimes } from './step_budget.ts';

/** Sizes and clock of the warm-up. */
export interface WarmUpOptions {
  /** Most tokens of a prompt in one step; `maxModelLen` is the most tokens of a sequence. */
  readonly chunkTokens: number;
  readonly maxModelLen: number;
  readonly blockSize: number;
  readonly numBlocks: number;
  /** Steady clock in milliseconds; without one, steps run and are not measured. */
  readonly nowMs?: (() => number) | undefined;
}

/** Milliseconds of the whole warm-up, unless the least steps take longer. */
const BENCHMARK_MS = 200;
const MAX_STEPS = 50;
/** Least steps of each kind; the first one includes the cost of lazy creation. */
const LEAST_STEPS = 2;
/** Prompt rows of a step: FEW_ROWS at first, then MANY_ROWS if one such step is expected to take less than half of BENCHMARK_MS. */
const FEW_ROWS = 8;
const MANY_ROWS = 64;
/**
 * Tokens before the rows of the last steps, which show what a long context costs: LONG_CONTEXT or what there is room for. With less
 * than LEAST_CONTEXT the difference would be lost in the other costs, so nothing is measured.
 */
const LONG_CONTEXT = 2_048;
const LEAST_CONTEXT = 256;

/**
 * Runs prompts and single tokens through block 0 and on, which nobody uses yet; what they write is overwritten.
 * @returns the fastest of either kind, and of either kind after a long context where there is room for one; without a clock nothing
 */
export async function warmUp(
  executable: Pick<Executable, 'run'> & Partial<Pick<Executable, 'numStateSlots'>>,
  { chunkTokens, maxModelLen, blockSize, numBlocks, nowMs: steadyMs }: WarmUpOptions,
): Promise<StepTimes[]> {
  const mostTokens = Math.min(maxModelLen, numBlocks * blockSize) - 1;
  const most = Math.min(MANY_ROWS, chunkTokens, mostTokens);
  if (most < 1) return [];
  const context = Math.min(LONG_CONTEXT, mostTokens - most);
  const numTokens = Math.max(most, context >= LEAST_CONTEXT ? context + most : 0) + 1;
  const blockTable = Array.from({ length: Math.ceil(numTokens / blockSize) }, (_, i) => i);
  const sample = { ...new SequenceSampling(neutralSampling).at(most), slot: 0 };
  const samples = [{ row: 0, numCandidates: 1, askedTokens: [], isFullRowWanted: false, sample }];
  const nowMs = steadyMs ?? (() => 0);
  const hasStates = (executable.numStateSlots ?? 0) > 0;
  const timed = async (segment: Segment): Promise<number> => {
    const startMs = nowMs();
    await executable.run([hasStates ? { ...segment, state: stateOf(segment) } : segment]);
    return nowMs() - startMs;
  };
  const promptMs = (start: number): Promise<number> =>
    timed({ tokens: new Array<number>(rows).fill(0), start, blockTable });
  const tokenMs = (start: number): Promise<number> => timed({ tokens: [0], start, blockTable, samples });
  let rows = Math.min(FEW_ROWS, most);
  const best = { prompt: Infinity, token: Infinity };
  const startMs = nowMs();
  for (let [step, done] = [0, 0]; step < MAX_STEPS; step++) {
    if (done >= LEAST_STEPS) {
      // With few rows, most of the time is the fixed cost of a step.
      const rowMs = rows > 1 ? Math.max(0, best.prompt - best.token) / (rows - 1) : best.prompt;
      if (rows < most && best.prompt + (most - rows) * rowMs < BENCHMARK_MS / 2)
        [rows, done, best.prompt] = [most, 0, Infinity];
      else if (!steadyMs || nowMs() - startMs > BENCHMARK_MS) break;
    }
    const [prompt, token] = [await promptMs(0), await tokenMs(rows)];
    [best.prompt, best.token] = [Math.min(best.prompt, prompt), Math.min(best.token, token)];
    done++;
  }
  if (!steadyMs) return [];
  const short = [tokenTimes(rows, best.token), promptTimes(0, rows, best.prompt)];
  if (context < LEAST_CONTEXT) return short;
  const longToken = await fastest(() => tokenMs(context));
  const long = [...short, tokenTimes(context, longToken)];
  // Each row reads the context at most as slowly as the single one.
  const mostMs = best.prompt + rows * Math.max(0, longToken - best.token);
  if (mostMs > BENCHMARK_MS / 2) return long;
  return [...long, promptTimes(context, rows, await fastest(() => promptMs(context)))];
}

/** The state of a segment lies in slot 0 and on, which nobody uses yet either. */
function stateOf({ start, tokens }: Segment): SegmentState {
  return { ...(start > 0 ? { from: 0 } : {}), saves: [{ rows: tokens.length, slot: 0 }] };
}

async function fastest(step: () => Promise<number>): Promise<number> {
  let best = Infinity;
  for (let i = 0; i < LEAST_STEPS; i++) best = Math.min(best, await step());
  return best;
}

function tokenTimes(start: number, ms: number): StepTimes {
  return { tokenRows: 1, promptRows: 0, pairs: 0, contextTokens: start + 1, sequences: 1, ms };
}

function promptTimes(start: number, rows: number, ms: number): StepTimes {
  return { tokenRows: 0, promptRows: rows, pairs: pairsOf(start, rows), contextTokens: 0, sequences: 1, ms };
}
