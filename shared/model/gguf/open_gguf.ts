/** A GGUF file as a model: its metadata read as a configuration, its tensors under their usual names. */
import { existsSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { messageOf } from '../../base/failure.ts';
import { checkedConfig, checkedDefaults, ModelError, type GenerationDefaults, type Model } from '../model_folder.ts';
import { readFully } from '../read_fully.ts';
import { repoOfSnapshot } from '../repo_name.ts';
import { readTextFiles } from '../text_files.ts';
import { unreadType } from './gguf_blocks.ts';
import { configOf } from './gguf_config.ts';
import type { RopeFactors } from './gguf_facts.ts';
import { familyOf } from './gguf_families.ts';
import { GgufFiles, type GgufTensor } from './gguf_file.ts';
import { textFilesOf } from './gguf_tokenizer.ts';
import { tensorLocations } from './gguf_locations.ts';
import { GgufWeights } from './gguf_weights.ts';

/** Most rope factors that are read; a model has one for each pair of rotated values of a head. */
const MAX_ROPE_FACTORS = 4_096;
/** Most experts in all layers together. */
const MAX_EXPERTS = 200_000;

/** Opens a GGUF file as a model. A tokenizer.json next to the file takes precedence over the tokenizer in it. @throws ModelError */
export async function openGguf(path: string): Promise<Model> {
  const files = await GgufFiles.open(path);
  try {
    const { metadata, tensors } = files;
    const architecture = String(metadata['general.architecture']);
    const numExperts = Number(metadata[`${architecture}.expert_count`] ?? 0);
    const [vocabSize] = tensors.get('token_embd.weight')?.shape ?? [];
    if (vocabSize === undefined) {
      const type = files.unread.get('token_embd.weight');
      const why =
        type === undefined
          ? 'it has no tensor token_embd.weight: download it again'
          : unreadType('token_embd.weight', type);
      throw new ModelError(`${path}: ${why}`);
    }
    const ropeFactors = await readRopeFactors(tensors);
    const { family, raw } = inWords(path, () => {
      const found = familyOf(architecture, numExperts);
      return { family: found, raw: configOf({ family: found, metadata, vocabSize, tensors, ropeFactors }) };
    });
    const { config, eosTokenIds } = checkedConfig(raw, path);
    const numLayers = Number(raw['num_hidden_layers']);
    if (numLayers * numExperts > MAX_EXPERTS)
      throw new ModelError(`${path} has ${numExperts} experts in each of ${numLayers} layers, which no model has`);
    const heads = { q: Number(raw['num_attention_heads']), k: Number(raw['num_key_value_heads']) };
    const hasOwnTexts = existsSync(join(dirname(path), 'tokenizer.json'));
    return {
      path,
      name: nameOf(path),
      config,
      eosTokenIds,
      defaults: defaultsOf(metadata, path),
      hasTokenizer: hasOwnTexts || metadata['tokenizer.ggml.model'] !== undefined,
      openWeights: async () =>
        new GgufWeights(await GgufFiles.open(path), tensorLocations(family, numLayers, numExperts), heads),
      readTexts: async () => {
        if (hasOwnTexts) return inWords(path, () => readTextFiles(dirname(path)));
        const again = await GgufFiles.open(path);
        await again.close();
        return inWords(path, () => textFilesOf(again.metadata));
      },
    };
  } finally {
    await files.close();
  }
}

function inWords<T>(path: string, read: () => T): T {
  try {
    return read();
  } catch (cause) {
    throw cause instanceof ModelError ? cause : new ModelError(`${path}: ${messageOf(cause)}`, { cause });
  }
}

/**
 * Returns the model's name: REPO:FILE for a file in the hub's cache, else the file's name without ending and split number, or its
 * folder's name where the file is just model.gguf.
 */
function nameOf(path: string): string {
  const file = basename(path);
  const repo = repoOfSnapshot(dirname(path));
  if (repo !== undefined) return `${repo}:${file}`;
  const stem = file.replace(/(-\d{5}-of-\d{5})?\.gguf$/i, '');
  return stem === 'model' ? basename(dirname(path)) : stem;
}

async function readRopeFactors(tensors: ReadonlyMap<string, GgufTensor>): Promise<RopeFactors> {
  const read = async (name: string): Promise<number[] | undefined> => {
    const tensor = tensors.get(name);
    if (!tensor) return undefined;
    const [count = 0] = tensor.shape;
    if (tensor.type.name !== 'F32' || tensor.shape.length !== 1 || count > MAX_ROPE_FACTORS)
      throw new ModelError(`${tensor.path}: ${name} is no vector of a few f32`);
    const bytes = Buffer.alloc(tensor.rowBytes);
    await readFully(tensor.file, bytes, tensor.start, tensor.path);
    return [...new Float32Array(Uint8Array.from(bytes).buffer)];
  };
  const [all, short, long] = [
    await read('rope_freqs.weight'),
    await read('rope_factors_short.weight'),
    await read('rope_factors_long.weight'),
  ];
  return { ...(all ? { all } : {}), ...(short ? { short } : {}), ...(long ? { long } : {}) };
}

/** Returns the sampling defaults in the file's metadata, as far as the file has some. @throws ModelError for a value out of range. */
function defaultsOf(metadata: Readonly<Record<string, unknown>>, path: string): GenerationDefaults {
  const numberOf = (key: string): unknown => {
    const value = metadata[`general.sampling.${key}`];
    return typeof value === 'number' ? value : undefined;
  };
  const values = {
    temperature: numberOf('temp'),
    top_p: numberOf('top_p'),
    top_k: numberOf('top_k'),
    min_p: numberOf('min_p'),
    repetition_penalty: numberOf('penalty_repeat'),
  };
  return checkedDefaults(values, `${path}: general.sampling`);
}
