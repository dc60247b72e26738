/**
 * An attack on records: the tokens of a block, from the values of its first layer. A value row there is W_v · norm(E[token]), without a
 * position, so whoever has the weights compares it with the row of every token of the vocabulary. For models of the Llama family in f16,
 * in one file, with KV in f16.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { halfValue } from '../../shared/model/half_value.ts';
import { framesIn, readHeader } from '../../shared/kv/record.ts';

interface TensorLocation {
  readonly shape: readonly [number, number];
  readonly data_offsets: readonly [number, number];
}

/** Greatest distance of a row to its token's, over the row's length: integers of weights give 0.02, another token 0.2 and more. */
const NEAR = 0.08;

/** Finds tokens in records on disk with the weights of the model in a folder. */
export class Inversion {
  /** Values of layer 0 for every token. */
  readonly #rows: readonly Float32Array[];
  readonly #keyBytes: number;

  constructor(modelFolder: string) {
    const file = readFileSync(join(modelFolder, 'model.safetensors'));
    const headerBytes = Number(file.readBigUInt64LE(0));
    const header = JSON.parse(file.toString('utf8', 8, 8 + headerBytes)) as Record<string, TensorLocation>;
    const floats = (name: string): Float32Array => {
      const [from, to] = header[name]!.data_offsets;
      return halves(file.subarray(8 + headerBytes + from, 8 + headerBytes + to));
    };
    const [vocabulary, width] = header['model.embed_tokens.weight']!.shape;
    const [values] = header['model.layers.0.self_attn.v_proj.weight']!.shape;
    const embeddings = floats('model.embed_tokens.weight');
    const norm = floats('model.layers.0.input_layernorm.weight');
    const weights = floats('model.layers.0.self_attn.v_proj.weight');
    this.#keyBytes = 2 * values;
    this.#rows = Array.from({ length: vocabulary }, (_, token) => {
      const row = embeddings.subarray(token * width, (token + 1) * width);
      const meanSquare = row.reduce((sum, x) => sum + x * x, 0) / width;
      const scale = 1 / Math.sqrt(meanSquare + 1e-5);
      const normed = row.map((x, i) => x * scale * norm[i]!);
      return Float32Array.from({ length: values }, (_, i) => {
        const weightRow = weights.subarray(i * width, (i + 1) * width);
        return weightRow.reduce((sum, x, j) => sum + x * normed[j]!, 0);
      });
    });
  }

  /** The tokens of a record in clear. `payload` are the raw bytes of its layers, `numTokens` the tokens of a block; undefined: none is near. */
  tokensOf(payload: Buffer, numTokens: number): (number | undefined)[] {
    const from = numTokens * this.#keyBytes;
    return Array.from({ length: numTokens }, (_, i) => {
      const at = from + i * this.#keyBytes;
      return this.#nearest(halves(payload.subarray(at, at + this.#keyBytes)));
    });
  }

  #nearest(row: Float32Array): number | undefined {
    const length = Math.sqrt(row.reduce((sum, x) => sum + x * x, 0));
    let best: number | undefined;
    let least = NEAR * length;
    this.#rows.forEach((other, token) => {
      const distance = Math.sqrt(other.reduce((sum, x, i) => sum + (x - row[i]!) ** 2, 0));
      if (distance < least) [best, least] = [token, distance];
    });
    return best;
  }
}

function halves(bytes: Buffer): Float32Array {
  return Float32Array.from({ length: bytes.length >> 1 }, (_, i) => halfValue(bytes.readUInt16LE(2 * i)));
}

const PAGE_BYTES = 4_096;

/**
 * Returns the payloads that a file of records may hold: those of its records in clear; and at every page, for `guess` bytes in front of the
 * payload, what would be a record if it were in clear.
 */
export function payloadsIn(
  file: Buffer,
  guess: readonly number[],
  payloadBytes: number,
): { clear: Buffer[]; guessed: Buffer[] } {
  const clear: Buffer[] = [];
  const guessed: Buffer[] = [];
  for (let at = 0; at + PAGE_BYTES <= file.length; at += PAGE_BYTES) {
    const page = file.subarray(at);
    if (page.toString('latin1', 0, 3) === 'PKV') {
      const record = page.subarray(0, page.readUInt32LE(4) + page.readUInt32LE(8));
      if (!('fault' in readHeader(record))) clear.push(record.subarray(framesIn(record)[0]!.offset));
    }
    for (const bytes of guess)
      if (page.length >= bytes + payloadBytes) guessed.push(page.subarray(bytes, bytes + payloadBytes));
  }
  return { clear, guessed };
}
