/**
 * Conditions under which blocks are interchangeable, in two parts.
 *
 *   format   fixed by an engine at load: the model and the layout of its KV. Registrations and records compare formats
 *   scope    of a request: its adapter, the tenant of its key, its salt. One engine serves many scopes
 *
 * The chain of a request starts from both, so blocks of different formats or scopes never meet (K1).
 */
import { hash } from 'node:crypto';
import { Recent } from '../base/recent.ts';
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
  return hash('sha256', formatText(format), 'hex').slice(0, 32) as Digest;
}

/** Properties of a request that its blocks depend on. Empty strings stand for no adapter, a tenant that shares its blocks, and no salt. */
export interface CacheScope {
  readonly adapter: string;
  /** Name of the tenant whose key the request came with. */
  readonly tenant: string;
  /** The client's own `cache_salt`, which separates blocks further within the tenant. */
  readonly salt: string;
}

/** Scope of a request that has no adapter, no tenant and no salt. */
export const noScope: CacheScope = { adapter: '', tenant: '', salt: '' };

/** Scopes whose digests are kept (P1), and characters of their texts: a tenant's requests have the same few. */
const [MAX_SCOPES, MAX_SCOPE_CHARACTERS] = [1_024, 1_048_576];
const scopeDigests = new Recent<string, string>(MAX_SCOPES, MAX_SCOPE_CHARACTERS);

/** Returns the SHA-256 of the text of a scope, in hex. */
function scopeDigest(text: string): string {
  const known = scopeDigests.get(text);
  if (known !== undefined) return known;
  const digest = hash('sha256', text, 'hex');
  scopeDigests.set(text, digest, text.length);
  return digest;
}

/** Returns the digest that a request's chain starts from; without adapter, tenant and salt this is the format's own digest. No salt reaches another tenant's. */
export function chainRoot(format: Digest, { adapter, tenant, salt }: CacheScope): Digest {
  if (adapter === '' && tenant === '' && salt === '') return format;
  // Three texts or four: a salt cannot make one list of the other.
  const text = JSON.stringify(tenant === '' ? [format, adapter, salt] : [format, adapter, tenant, salt]);
  return scopeDigest(text).slice(0, 32) as Digest;
}

/**
 * Returns 64 bits of SHA-256 that name tenant and salt, for what is remembered of requests of a scope; 0 for one that shares. Nobody can
 * choose a salt whose number is that of another tenant.
 */
export function scopeNumber({ tenant, salt }: Pick<CacheScope, 'tenant' | 'salt'>): bigint {
  if (tenant === '' && salt === '') return 0n;
  return Buffer.from(scopeDigest(JSON.stringify([tenant, salt])).slice(0, 16), 'hex').readBigUInt64LE();
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
