/**
 * What blocks must share to be interchangeable: the model and how its KV is laid out.
 *
 * Blocks of different namespaces never meet: their chains start from different roots (K1).
 */
import { createHash } from 'node:crypto';
import type { BlockKey, Digest } from './block_key.ts';
import { xxh64 } from './hash.ts';

export interface Namespace {
  /** SHA-256 over the configuration and the weights, hex. */
  readonly model: string;
  readonly weightFormat: string;
  readonly kvDtype: 'f16' | 'f32';
  /** Of the payload, [layer][plane k, v][token][kv_head][head_dim], and of what makes it: 2 since wasm computes with integers. */
  readonly layoutVersion: number;
  /** Tokens per block. */
  readonly blockSize: number;
  /** The numerics class with its kernel revision, so that no bits of another meet these (E2); `mixed` where that is allowed. */
  readonly numerics: string;
  readonly adapterId: string;
  readonly tenantSalt: string;
  /** Which layers and heads a record covers. */
  readonly shard: string;
}

export const LAYOUT_VERSION = 2;

/** The fields in one fixed order; two namespaces are equal when these lines are. */
function namespaceText(namespace: Namespace): string {
  const { model, weightFormat, kvDtype, layoutVersion, blockSize, numerics, adapterId, tenantSalt, shard } = namespace;
  return JSON.stringify([
    ...[model, weightFormat, kvDtype, layoutVersion, blockSize, numerics],
    ...[adapterId, tenantSalt, shard],
  ]);
}

/** 128 bits of SHA-256, hex. */
export function namespaceDigest(namespace: Namespace): Digest {
  return createHash('sha256').update(namespaceText(namespace)).digest('hex').slice(0, 32) as Digest;
}

/** Where the key chain of a namespace starts. */
export function rootKey(digest: Digest): BlockKey {
  return xxh64(Buffer.from(digest, 'hex')) as BlockKey;
}

/** Names the first field in which two namespaces differ, for people. */
export function namespaceDifference(have: Namespace, want: Namespace): string | undefined {
  const fields = Object.keys(want) as (keyof Namespace)[];
  const field = fields.find((name) => have[name] !== want[name]);
  const hints: Partial<Record<keyof Namespace, string>> = {
    weightFormat: ': start all instances with the same --weights',
    numerics: ': other hardware or kernels give other bits; start all instances with --mix-numerics if that is meant',
  };
  const hint = (field && hints[field]) ?? '';
  return field && `${field} is ${String(have[field])}, the cluster has ${String(want[field])}${hint}`;
}
