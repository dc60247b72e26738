/**
 * The oracle's other side: one process, one sequence at a time, no scheduler, no cache, no blocks that move. The whole prompt in
 * one step, then token by token, on the same device. Tokens are sampled from the whole row by the definition.
 */
import assert from 'node:assert/strict';
import type { Executable } from '../../kernels/device.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';

import { Sampler } from '../../kernels/sampling.ts';
import { LogitAdjustments, SequenceSampling, numCandidatesOf, sampledToken } from '../../shared/engine/sampler.ts';
import type { SampledMessage } from '../../shared/protocol/messages.ts';
import { greedy, samplingOf, type TestSampling } from './request.ts';
import { productsOfRun } from './products.ts';
import { keptState } from './states.ts';

export { greedy };

/** Default load options of tests. */
export const loadDefaults = {
  device: 'wasm',
  kernelSet: 'deterministic',
  products: productsOfRun,
  weightFormat: 'auto',
  deviceMemoryBytes: 0,
  deviceSharing: 1,
  kvDtype: 'f16',
  blockSize: 32,
  numBlocks: 80,
  numThreads: 1,
  chunkTokens: 512,
  maxNumSeqs: 8,
  maxModelLen: 0,
} as const satisfies Omit<LoadModelOptions, 'modelPath'>;

export async function loadReference(
  modelPath: string,
  kvDtype: 'f16' | 'f32',
  maxRows = 2_048,
  more: Partial<LoadModelOptions> = {},
): Promise<LoadedModel> {
  return loadModel({ ...loadDefaults, modelPath, kvDtype, chunkTokens: maxRows, ...more });
}

/** Returns the logits after a prompt, [vocab] f32. */
export async function logitsOf(executable: Executable, tokens: readonly number[]): Promise<Float32Array> {
  const blockTable = Array.from({ length: Math.ceil(tokens.length / 32) }, (_, i) => i);
  const samples = [{ row: tokens.length - 1, numCandidates: 1, askedTokens: [], isFullRowWanted: true }];
  const [result] = await executable.run([
    { tokens, start: 0, blockTable, samples, ...keptState(executable, 0, tokens.length) },
  ]);
  return result?.fullRow ?? assert.fail();
}

/** Which tokens may come after an output. */
export interface ReferenceConstraint {
  /** Tokens that end the output wherever they come. */
  readonly endTokens: readonly number[];
  after(output: readonly number[]): Promise<{ readonly words: Uint32Array; readonly isComplete: boolean }>;
}

export async function generate(
  executable: Executable,
  prompt: readonly number[],
  wish: TestSampling,
  maxTokens: number,
  stopTokenIds: readonly number[] = [],
  constraint?: ReferenceConstraint,
): Promise<SampledMessage[]> {
  const params = samplingOf(wish);
  const tokens = [...prompt];
  const { vocab } = executable.sampling;
  const blockTable = Array.from({ length: Math.ceil((prompt.length + maxTokens) / 32) }, (_, i) => i);
  const output: SampledMessage[] = [];
  const [sampler, sampling] = [new Sampler(vocab), new SequenceSampling(params)];
  const memory = new LogitAdjustments(params, { tokens, promptLength: prompt.length, stopTokenIds }, vocab);
  const wanted = { numCandidates: numCandidatesOf(params), askedTokens: [], isFullRowWanted: true };
  let start = 0;
  while (output.length < maxTokens) {
    const samples = [{ row: tokens.length - start - 1, ...wanted }];
    const [result] = await executable.run([
      {
        tokens: tokens.slice(start),
        start,
        blockTable,
        samples,
        ...keptState(executable, start, tokens.length - start),
      },
    ]);
    if (!result?.fullRow) throw new Error('the step returned no row');
    const state = await constraint?.after(tokens.slice(prompt.length));
    memory.changesAt(tokens.length, state?.isComplete === true);
    const { bias, counts } = memory;
    const token = sampler.sample(result.fullRow, sampling.at(tokens.length), { bias, counts, allowed: state?.words });
    memory.count(token);
    start = tokens.length;
    tokens.push(token);
    output.push(sampledToken(params, start, token, result.fullRow[token] ?? NaN, result));
    if (stopTokenIds.includes(token) || constraint?.endTokens.includes(token)) break;
  }
  return output;
}
