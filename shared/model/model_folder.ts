/**
 * Reads a Hugging Face model folder: the content of its JSON files, checked before the process listens.
 *
 * Weights are read elsewhere (`checkpoint.ts`); a router never touches them.
 */
import { readdirSync, readFileSync, existsSync, statSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { z } from 'zod';
import { messageOf } from '../base/failure.ts';
import type { TextFiles } from './text_files.ts';
import type { ModelWeights } from './weights.ts';
import { repoOfSnapshot } from './repo_name.ts';
import { readQuantization, type Quantization } from './quantization.ts';

/** The folder cannot be served; the message names the file and says what to do. */
export class ModelError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'ModelError';
  }
}

const positive = z.int().positive();

/** Keys that every configuration has; an architecture reads the rest. */
const configSchema = z.looseObject({
  model_type: z.string(),
  vocab_size: positive,
  max_position_embeddings: positive,
  eos_token_id: z.union([z.int(), z.array(z.int())]).nullish(),
  quantization_config: z.unknown().optional(),
});

const generationSchema = z.looseObject({
  eos_token_id: z.union([z.int(), z.array(z.int())]).nullish(),
  do_sample: z.boolean().nullish(),
  // The same ranges as in requests: these values are the defaults of requests that leave them out.
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(-1).nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  repetition_penalty: z.number().gt(0).max(10).nullish(),
});

/** A config.json: the keys that every model has, and `read` for the others, which the architecture knows. */
export interface ModelConfig {
  /** Path of the file, for messages. */
  readonly path: string;
  readonly modelType: string;
  readonly vocabSize: number;
  readonly maxPositions: number;
  /** Quantisation of the matrices; undefined where all are floats. */
  readonly quantization: Quantization | undefined;
  /** @throws ModelError when the file does not have what the schema asks for. */
  read<T>(schema: z.ZodType<T>): T;
}

/** Refuses a configuration that needs `what`, which this version lacks. @throws ModelError always */
export function refuse({ path, modelType }: ModelConfig, what: string): never {
  throw new ModelError(`${path}: ${what} is not supported for model_type ${modelType} in this version`);
}

/** Defaults for requests; absent fields are neutral. */
export interface GenerationDefaults {
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  readonly minP?: number;
  readonly repetitionPenalty?: number;
}

/** Properties of a model, read from its JSON files or a GGUF file without touching the weights. */
export interface ModelFolder {
  /** Path of the folder, or of the GGUF file. */
  readonly path: string;
  /** The folder's own name, or that of the repository whose snapshot it is. */
  readonly name: string;
  readonly config: ModelConfig;
  /** Tokens that end an answer, by config.json and generation_config.json; the tokenizer may name more. */
  readonly eosTokenIds: readonly number[];
  readonly defaults: GenerationDefaults;
  readonly hasTokenizer: boolean;
}

/** A model that can be opened, whether from safetensors or GGUF files; made by `open_model.ts`. */
export interface Model extends ModelFolder {
  /** @throws ModelError when a file is missing, truncated, or not what it says. */
  openWeights(): Promise<ModelWeights>;
  /**
   * Reads tokenizer and chat template; undefined when the model has no tokenizer. @throws ModelError when the tokenizer cannot be
   * read.
   */
  readTexts(): Promise<TextFiles | undefined>;
}

/** @throws ModelError when a file is missing, unreadable or says something this program does not support. */
export function readModelFolder(path: string): ModelFolder {
  const folder = resolve(path);
  if (!existsSync(folder) || !statSync(folder).isDirectory()) {
    throw new ModelError(
      `there is no model folder ${folder}: --model names a folder with config.json and its safetensors files, or ORG/NAME of a hub`,
    );
  }
  if (readdirSync(folder).length === 0) {
    throw new ModelError(
      `the model folder ${folder} is empty: put config.json, the model's safetensors files and tokenizer.json there`,
    );
  }
  const configPath = join(folder, 'config.json');
  const { config, eosTokenIds } = checkedConfig(
    textPart(readJson(folder, 'config.json', z.looseObject({}))),
    configPath,
  );
  const generation = existsSync(join(folder, 'generation_config.json'))
    ? readJson(folder, 'generation_config.json', generationSchema)
    : undefined;
  return {
    path: folder,
    name: repoOfSnapshot(folder) ?? basename(folder),
    config,
    // The two files are merged because either may lack an id: a chat model often keeps the configuration of its base model.
    eosTokenIds: [...new Set([...[generation?.eos_token_id ?? []].flat(), ...eosTokenIds])],
    defaults: generation ? toDefaults(generation) : {},
    hasTokenizer: existsSync(join(folder, 'tokenizer.json')),
  };
}

/** Checks the values of a config.json, or of its equivalent from a GGUF file. `path` is for messages. @throws ModelError */
export function checkedConfig(
  values: unknown,
  path: string,
): { readonly config: ModelConfig; readonly eosTokenIds: readonly number[] } {
  const raw = check(values, path, configSchema);
  return { config: toConfig(raw, path), eosTokenIds: [raw.eos_token_id ?? []].flat() };
}

/** Values that transformers assumes where the text part of a multimodal configuration omits them, by model_type. */
const partDefaults: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  gemma3_text: {
    vocab_size: 262_208,
    max_position_embeddings: 131_072,
    num_attention_heads: 8,
    num_key_value_heads: 4,
    head_dim: 256,
    rms_norm_eps: 1e-6,
    rope_theta: 1_000_000,
    rope_local_base_freq: 10_000,
    query_pre_attn_scalar: 256,
    sliding_window: 4_096,
    hidden_activation: 'gelu_pytorch_tanh',
  },
  gemma4_text: {
    vocab_size: 262_144,
    hidden_size: 2_304,
    intermediate_size: 9_216,
    num_hidden_layers: 30,
    num_attention_heads: 8,
    num_key_value_heads: 4,
    head_dim: 256,
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-6,
    hidden_size_per_layer_input: 256,
  },
};

const QUANTIZATION = 'quantization_config';

/**
 * Returns the configuration of a multimodal model's text: values of the whole, overridden by defaults and then by the text part. Any
 * other configuration is returned unchanged.
 */
function textPart(raw: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const part = z.looseObject({ model_type: z.string() }).safeParse(raw['text_config']).data;
  if (!part) return raw;
  const whole = Object.fromEntries(
    Object.entries(raw).filter(([key]) => !key.endsWith('_config') || key === QUANTIZATION),
  );
  return { ...whole, ...partDefaults[part.model_type], ...part };
}

function readJson<T>(folder: string, file: string, schema: z.ZodType<T>): T {
  const path = join(folder, file);
  let parsed: unknown;
  try {
    parsed = JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    throw new ModelError(`cannot read ${path}: ${messageOf(cause)}`, { cause });
  }
  return check(parsed, path, schema);
}

function check<T>(value: unknown, path: string, schema: z.ZodType<T>): T {
  const result = schema.safeParse(value);
  if (!result.success) throw new ModelError(`${path}: ${z.prettifyError(result.error)}`);
  return result.data;
}

function toConfig(raw: z.infer<typeof configSchema>, path: string): ModelConfig {
  let quantization: Quantization | undefined;
  try {
    quantization = readQuantization(raw.quantization_config);
  } catch (cause) {
    throw new ModelError(`${path}: ${messageOf(cause)}`, { cause });
  }
  return {
    path,
    quantization,
    modelType: raw.model_type,
    vocabSize: raw.vocab_size,
    maxPositions: raw.max_position_embeddings,
    read: (schema) => check(raw, path, schema),
  };
}

/** Defaults as generation_config.json, or what stands in its place, has them. `path`: for messages. @throws ModelError for a value out of range */
export function checkedDefaults(values: unknown, path: string): GenerationDefaults {
  return toDefaults(check(values, path, generationSchema));
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
