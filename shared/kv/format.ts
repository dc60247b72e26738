/**
 * Conditions under which blocks are interchangeable, in two parts.
 *
 *   format   fixed by an engine at load: the model and the layout of its KV. Registrations and records compare formats
 *   scope    named by a request: an adapter, a tenant's salt. One engine serves many scopes
 *
 * The chain of a request starts from both, so blocks of different formats or scopes never meet (K1).
 */
import { createHash } from 'node:crypto';
import type { Digest } from './block_key.ts';

/** Properties that an engine fixes at load. Engines with equal formats can use each other's blocks. */
export interface Format {
  /** SHA-256 over the configuration and the weights, hex. */
  readonly model: string;
  readonly weightFormat: string;
  readonly kvDtype: 'f16' | 'f32';
  /** LAYOUT_VERSION of kv_spec.ts: what the bytes of a record mean. */
  readonly layoutVersion: number;
  /** Tokens per block. */
  readonly blockSize: number;
  /**
   * Numerics class with its kernel revision, so that blocks of classes with other bits are never mixed (E2); `mixed` where the cluster
   * allows that.
   */
  readonly numerics: string;
  /** Digest of the KvSpec: layers, planes, windows, frames, shard. */
  readonly kv: string;
}

/** Returns the fields as text in one fixed order; two formats are equal when their texts are. */
function formatText(format: Format): string {
  const { model, weightFormat, kvDtype, layoutVersion, blockSize, numerics, kv } = format;
  return JSON.stringify([...[model, weightFormat, kvDtype, layoutVersion, blockSize, numerics], kv]);
}

/** Returns the digest of a format: 128 bits of SHA-256, in hex. */
export function formatDigest(format: Format): Digest {
  return createHash('sha256').update(formatText(format)).digest('hex').slice(0, 32) as Digest;
}

/** Properties of a request that its blocks depend on. Empty strings stand for no adapter, and for a tenant that shares its blocks. */
export interface CacheScope {
  readonly adapter: string;
  readonly salt: string;
}

/** Scope of a request that has no adapter and no salt. */
export const noScope: CacheScope = { adapter: '', salt: '' };

/** Returns the digest that a request's chain starts from; without adapter and salt this is the format's own digest. */
export function chainRoot(format: Digest, { adapter, salt }: CacheScope): Digest {
  if (adapter === '' && salt === '') return format;
  const text = JSON.stringify([format, adapter, salt]);
  return createHash('sha256').update(text).digest('hex').slice(0, 32) as Digest;
}

/** Names the first field in which two formats differ, for people. */
export function formatDifference(have: Format, want: Format): string | undefined {
  const fields = Object.keys(want) as (keyof Format)[];
  const field = fields.find((name) => have[name] !== want[name]);
  const hints: Partial<Record<keyof Format, string>> = {
    weightFormat: ': start all instances with the same --weights',
    layoutVersion: ': start all instances of the same version of Penstock',
    kv: ': start all instances of the same version of Penstock, with the same context and shard',
    numerics: ': other hardware or kernels give other bits; start all instances with --mix-numerics if that is meant',
  };
  const hint = (field && hints[field]) ?? '';
  return field && `${field} is ${String(have[field])}, the cluster has ${String(want[field])}${hint}`;
}
