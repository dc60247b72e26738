/**
 * The oracle's other side: one process, one sequence at a time, no scheduler, no cache, no blocks that move. The whole prompt in
 * one step, then token by token, on the same device and sampler.
 */
import type { Executable } from '../../kernels/device.ts';
import { loadModel, type LoadedModel, type LoadModelOptions } from '../../shared/engine/load_model.ts';
import { neutralSampling } from '../../shared/node/engine_call.ts';
import { sample, sampleRequest, type SampledToken, type SamplingParams } from '../../shared/engine/sampler.ts';

export const greedy = neutralSampling;

/** What tests load unless they say otherwise. */
export const loadDefaults = {
  device: 'wasm',
  kernelSet: 'deterministic',
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
  return loadModel({ ...loadDefaults, modelPath, kvDtype, chunkTokens: maxRows, maxNumSeqs: 1, ...more });
}

export async function generate(
  executable: Executable,
  prompt: readonly number[],
  params: SamplingParams,
  maxTokens: number,
  stopTokenIds: readonly number[] = [],
): Promise<SampledToken[]> {
  const tokens = [...prompt];
  const blockTable = Array.from({ length: Math.ceil((prompt.length + maxTokens) / 32) }, (_, i) => i);
  const output: SampledToken[] = [];
  let start = 0;
  while (output.length < maxTokens) {
    const context = { tokens, promptLength: prompt.length, stopTokenIds };
    const request = sampleRequest(params, context);
    const samples = [{ row: tokens.length - start - 1, ...request }];
    const [result] = await executable.run([{ tokens: tokens.slice(start), start, blockTable, samples }]);
    if (!result) throw new Error('the step returned no sample');
    const sampled = sample(params, context, request, result);
    start = tokens.length;
    tokens.push(sampled.token);
    output.push(sampled);
    if (stopTokenIds.includes(sampled.token)) break;
  }
  return output;
}
