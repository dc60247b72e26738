/** Golden vectors of tiny models, made by the reference implementation; test/golden/NAME. */
import { readFileSync } from 'node:fs';
import { projectPath } from './project.ts';

export const goldenModels = [
  'llama-tied',
  'llama-untied',
  'llama-head-dim',
  'llama-mha-f16',
  'llama-bf16',
  'llama-odd',
  'llama-bias',
  'llama-rope-llama3',
  'llama-rope-linear',
  'llama-rope-yarn',
  'qwen2-tied-window',
  'qwen2',
  'qwen3',
  'mistral',
  'mistral-full',
  'phi3',
  'phi3-longrope',
  'gemma2',
  'gemma3',
  'qwen3-moe',
  'mixtral',
  'olmo3',
  'ministral3',
  'glm4_moe',
  'gemma4',
  'gemma4-published',
  'deepseek_v3',
  'deepseek_v3-noq',
  'glm4_moe_lite',
  'qwen3_5-simple',
  'qwen3_5',
  'qwen3_5-moe',
  'qwen3_next',
  'qwen3_5-published',
  'gpt_oss',
  'gemma4-e',
  'qwen3_5-moe-published',
  'gemma4-moe',
  'lfm2',
  'granitemoehybrid',
  'granitemoehybrid-dense',
] as const;

/** One tiny Llama in other weight formats; the reference ran with what they decode to. */
export const goldenFormats = [
  'gguf-f16',
  'gguf-q8_0',
  'gguf-q4_0',
  'gguf-q4_k_m',
  'llama-f16-same-as-gguf',
  'llama-gptq',
  'llama-gptq-actorder',
  'llama-awq',
  'llama-fp8-channel',
  'llama-fp8-block',
  'gpt_oss-mxfp4',
] as const;

export interface GoldenCase {
  readonly prompt: number[];
  /** The 40 ids that follow. */
  readonly greedy: number[];
  /** Top-1 minus top-2 logit at each of them. */
  readonly margins: number[];
  readonly positions: 'last' | 'all';
  readonly rows: number;
  readonly logits_offset: number;
}

export function goldenFolder(name: string): string {
  return projectPath(`test/golden/${name}`);
}

/** `yarn` is served to its factor times what it was trained for, 256 positions, whatever the configuration names: 1,024. */
const servedPositions: Partial<Record<string, number>> = {
  'llama-rope-yarn': 256,
  olmo3: 256,
  ministral3: 256,
  deepseek_v3: 256,
};

/** Whether the KV of a model has several ranges of layers: a hybrid with attention in one layer has one. */
export function hasRanges(name: string): boolean {
  const text = readFileSync(`${goldenFolder(name)}/config.json`, 'utf8');
  const { layer_types: types = [] } = JSON.parse(text) as { readonly layer_types?: readonly string[] };
  return types.filter((type) => type.endsWith('_attention') && type !== 'linear_attention').length !== 1;
}

/** Returns a model's golden cases that fit the served context. */
export function goldenCases(name: string): GoldenCase[] {
  const maxPositions = servedPositions[name] ?? Infinity;
  const text = readFileSync(`${goldenFolder(name)}/golden.json`, 'utf8');
  return (JSON.parse(text) as { cases: GoldenCase[] }).cases.filter(
    ({ prompt, greedy }) => prompt.length + greedy.length <= maxPositions,
  );
}

/** The logits of a prompt position: those of the last one, or of every one where the case has them. */
export function logitsAt(
  name: string,
  { logits_offset: offset, rows, prompt }: GoldenCase,
  position: number,
  vocabSize: number,
): Float32Array {
  const bytes = readFileSync(`${goldenFolder(name)}/logits.f32`);
  const start = offset + (rows - (prompt.length - position)) * vocabSize * 4;
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset + start, bytes.byteOffset + start + vocabSize * 4));
}

export function maxAbs(values: Float32Array): number {
  return values.reduce((highest, value) => Math.max(highest, Math.abs(value)), 0);
}

/** How far two greedy continuations must agree: up to the first step whose margin is within twice the tolerance. */
export function comparableSteps({ greedy, margins }: GoldenCase, tolerance: number): number {
  const first = margins.findIndex((margin) => margin < tolerance);
  return first < 0 ? greedy.length : first;
}
