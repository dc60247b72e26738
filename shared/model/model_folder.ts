/**
 * A Hugging Face model folder: what its JSON files say, checked before anything listens.
 *
 * Weights are not read here (`safetensors.ts`); the router reads a folder without touching them.
 */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, existsSync, statSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { z } from 'zod';
import { messageOf } from '../base/failure.ts';

/** The folder cannot be served; the message names the file and says what to do. */
export class ModelError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ModelError';
  }
}

const positive = z.int().positive();

const configSchema = z.looseObject({
  model_type: z.string(),
  vocab_size: positive,
  hidden_size: positive,
  intermediate_size: positive,
  num_hidden_layers: positive,
  num_attention_heads: positive,
  num_key_value_heads: positive.nullish(),
  head_dim: positive.nullish(),
  max_position_embeddings: positive,
  rms_norm_eps: z.number().positive(),
  rope_theta: z.number().positive().nullish(),
  rope_scaling: z.unknown().optional(),
  rope_parameters: z
    .looseObject({ rope_theta: z.number().positive().nullish(), rope_type: z.string().nullish() })
    .nullish(),
  hidden_act: z.string(),
  attention_bias: z.boolean().nullish(),
  mlp_bias: z.boolean().nullish(),
  tie_word_embeddings: z.boolean().nullish(),
  eos_token_id: z.union([z.int(), z.array(z.int())]).nullish(),
  quantization_config: z.unknown().optional(),
});

const generationSchema = z.looseObject({
  eos_token_id: z.union([z.int(), z.array(z.int())]).nullish(),
  do_sample: z.boolean().nullish(),
  temperature: z.number().nullish(),
  top_p: z.number().nullish(),
  top_k: z.int().nullish(),
  min_p: z.number().nullish(),
  repetition_penalty: z.number().nullish(),
});

/** Sizes of a Llama-architecture model. */
export interface LlamaConfig {
  readonly vocabSize: number;
  readonly hidden: number;
  readonly inner: number;
  readonly layers: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly maxPositions: number;
  readonly epsilon: number;
  readonly ropeTheta: number;
  readonly hasAttentionBias: boolean;
  readonly hasMlpBias: boolean;
  readonly isTied: boolean;
}

/** Defaults for requests; absent fields are neutral. */
export interface GenerationDefaults {
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly minP?: number;
  readonly repetitionPenalty?: number;
}

export interface ModelFolder {
  readonly path: string;
  /** The folder's own name. */
  readonly name: string;
  readonly config: LlamaConfig;
  readonly eosTokenIds: readonly number[];
  readonly defaults: GenerationDefaults;
  readonly hasTokenizer: boolean;
}

/** @throws ModelError when a file is missing, unreadable or says something this program does not support. */
export function readModelFolder(path: string): ModelFolder {
  const folder = resolve(path);
  if (!existsSync(folder) || !statSync(folder).isDirectory()) {
    throw new ModelError(
      `there is no model folder ${folder}: --model names a folder with config.json and model.safetensors`,
    );
  }
  if (readdirSync(folder).length === 0) {
    throw new ModelError(
      `the model folder ${folder} is empty: put config.json, model.safetensors and tokenizer.json there`,
    );
  }
  const raw = readJson(folder, 'config.json', configSchema);
  const config = toLlamaConfig(raw, join(folder, 'config.json'));
  const generation = existsSync(join(folder, 'generation_config.json'))
    ? readJson(folder, 'generation_config.json', generationSchema)
    : undefined;
  return {
    path: folder,
    name: basename(folder),
    config,
    eosTokenIds: [generation?.eos_token_id ?? raw.eos_token_id ?? []].flat(),
    defaults: generation ? toDefaults(generation) : {},
    hasTokenizer: existsSync(join(folder, 'tokenizer.json')),
  };
}

/** SHA-256 of what the configuration says, hex: equal for equal models, whatever else their files hold. */
export function configDigest(config: LlamaConfig): string {
  return createHash('sha256').update(JSON.stringify(config)).digest('hex');
}

function readJson<T>(folder: string, file: string, schema: z.ZodType<T>): T {
  const path = join(folder, file);
  let parsed: unknown;
  try {
    parsed = JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    throw new ModelError(`cannot read ${path}: ${messageOf(cause)}`, { cause });
  }
  const result = schema.safeParse(parsed);
  if (!result.success) throw new ModelError(`${path}: ${z.prettifyError(result.error)}`);
  return result.data;
}

function toLlamaConfig(raw: z.infer<typeof configSchema>, path: string): LlamaConfig {
  const refuse = (what: string): never => {
    throw new ModelError(
      `${path}: ${what} is not supported; this version serves the Llama architecture with plain rotary embedding`,
    );
  };
  if (raw.model_type !== 'llama') refuse(`model_type ${JSON.stringify(raw.model_type)}`);
  if (raw.hidden_act !== 'silu') refuse(`hidden_act ${JSON.stringify(raw.hidden_act)}`);
  if (raw.rope_scaling !== null && raw.rope_scaling !== undefined) refuse('rope_scaling');
  const ropeType = raw.rope_parameters?.rope_type;
  if (ropeType && ropeType !== 'default') refuse(`rope_type ${JSON.stringify(ropeType)}`);
  if (raw.quantization_config !== null && raw.quantization_config !== undefined) refuse('quantization_config');
  const heads = raw.num_attention_heads;
  const kvHeads = raw.num_key_value_heads ?? heads;
  if (heads % kvHeads !== 0) refuse(`${heads} attention heads over ${kvHeads} KV heads`);
  const headDim = raw.head_dim ?? raw.hidden_size / heads;
  if (!Number.isInteger(headDim) || headDim % 2 !== 0) refuse(`head_dim ${headDim}`);
  return {
    vocabSize: raw.vocab_size,
    hidden: raw.hidden_size,
    inner: raw.intermediate_size,
    layers: raw.num_hidden_layers,
    heads,
    kvHeads,
    headDim,
    maxPositions: raw.max_position_embeddings,
    epsilon: raw.rms_norm_eps,
    ropeTheta: raw.rope_theta ?? raw.rope_parameters?.rope_theta ?? 10_000,
    hasAttentionBias: raw.attention_bias ?? false,
    hasMlpBias: raw.mlp_bias ?? false,
    isTied: raw.tie_word_embeddings ?? false,
  };
}

/** A folder that does not sample by default (`do_sample: false`) means greedy. */
function toDefaults(raw: z.infer<typeof generationSchema>): GenerationDefaults {
  const temperature = raw.do_sample === false ? 0 : raw.temperature;
  return {
    ...(typeof temperature === 'number' ? { temperature } : {}),
    ...(typeof raw.top_p === 'number' ? { topP: raw.top_p } : {}),
    ...(typeof raw.top_k === 'number' ? { topK: raw.top_k } : {}),
    ...(typeof raw.min_p === 'number' ? { minP: raw.min_p } : {}),
    ...(typeof raw.repetition_penalty === 'number' ? { repetitionPenalty: raw.repetition_penalty } : {}),
  };
}
