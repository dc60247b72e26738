/**
 * Runs steps at the start, so that no request pays for pipelines and memory that are created at first use. Where there is a clock,
 * also measures the step times with which the step budget starts.
 */
import type { Executable, Segment } from '../../kernels/device.ts';
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
 * Runs prompts and single tokens through block 0 and on, which nobody uses yet; what they write is overwritten.
 * @returns the fastest of either kind; without a clock nothing
 */
export async function warmUp(
  executable: Pick<Executable, 'run'>,
  { chunkTokens, maxModelLen, blockSize, numBlocks, nowMs: steadyMs }: WarmUpOptions,
): Promise<StepTimes[]> {
  const most = Math.min(MANY_ROWS, chunkTokens, maxModelLen - 1, numBlocks * blockSize - 1);
  if (most < 1) return [];
  const blockTable = Array.from({ length: Math.ceil((most + 1) / blockSize) }, (_, i) => i);
  const sample = { ...new SequenceSampling(neutralSampling).at(most), slot: 0 };
  const samples = [{ row: 0, numCandidates: 1, askedTokens: [], isFullRowWanted: false, sample }];
  const nowMs = steadyMs ?? (() => 0);
  const timed = async (segment: Segment): Promise<number> => {
    const startMs = nowMs();
    await executable.run([segment]);
    return nowMs() - startMs;
  };
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
    const prompt = await timed({ tokens: new Array<number>(rows).fill(0), start: 0, blockTable });
    const token = await timed({ tokens: [0], start: rows, blockTable, samples });
    [best.prompt, best.token] = [Math.min(best.prompt, prompt), Math.min(best.token, token)];
    done++;
  }
  if (!steadyMs) return [];
  return [
    { tokenRows: 1, promptRows: 0, ms: best.token },
    { tokenRows: 0, promptRows: rows, ms: best.prompt },
  ];
}
