/**
 * Keys of clients, as the file of `--keys` has them: found by the SHA-256 of what a request comes with.
 *
 * Equal digests are looked for among those that begin with the same 32 bits, and compared in time that does not depend on where they differ.
 * Entries are replaced while the router runs; a request keeps the caller that it began with.
 */
import { setMaxListeners } from 'node:events';
import { keyDigest } from '../../../shared/base/client_keys.ts';
import { isSameSecret } from '../../../shared/base/cluster_tokens.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Caller, ResolveCaller } from './caller.ts';
import { keyOf, refused } from './credentials.ts';
import type { KeyEntry } from './keys_file.ts';

/** A key that is known. */
export interface KnownKey {
  readonly digest: Buffer;
  readonly caller: Caller;
  /** Aborts when the key is removed; undefined where its open requests are finished. */
  readonly removed: AbortController | undefined;
}

/** Keys by the first 32 bits of their digests. */
type ByPrefix = ReadonlyMap<number, readonly KnownKey[]>;

function found(byPrefix: ByPrefix, digest: Buffer): KnownKey | undefined {
  return byPrefix.get(digest.readUInt32LE())?.find((one) => isSameSecret(one.digest, digest));
}

/** The keys that a router takes. */
export class Keys {
  readonly #isAborting: boolean;
  #byPrefix: ByPrefix = new Map();
  #byName: ReadonlyMap<string, KnownKey> = new Map();
  #tenants: ReadonlyMap<string, OfTenant> = new Map();

  /** `isAborting`: whether open requests of a key end when it is removed. */
  constructor(entries: readonly KeyEntry[], isAborting: boolean) {
    this.#isAborting = isAborting;
    this.replace(entries);
  }

  /** Puts these keys in the place of the present ones. */
  replace(entries: readonly KeyEntry[]): void {
    const before = this.#byPrefix;
    const tenants = tenantsOf(entries);
    const byPrefix = new Map<number, KnownKey[]>();
    const byName = new Map<string, KnownKey>();
    for (const entry of entries) {
      const caller = callerOf(entry, tenants.get(entry.tenant) ?? entry);
      const known = knownOf(Buffer.from(entry.sha256, 'hex'), caller, before, this.#isAborting);
      const prefix = known.digest.readUInt32LE();
      const equal = byPrefix.get(prefix);
      if (equal) equal.push(known);
      else byPrefix.set(prefix, [known]);
      byName.set(entry.name, known);
    }
    [this.#byName, this.#byPrefix, this.#tenants] = [byName, byPrefix, tenants];
    for (const one of [...before.values()].flat())
      if (one.removed && found(byPrefix, one.digest)?.removed !== one.removed)
        one.removed.abort(new Failure('invalid_api_key', 'the key of this request has been removed'));
  }

  /** Names of all tenants, in the order of the file. */
  get tenants(): Iterable<string> {
    return this.#tenants.keys();
  }

  /** Returns the key of that name. */
  named(name: string): KnownKey | undefined {
    return this.#byName.get(name);
  }

  /** Whether a tenant shares its blocks with others. */
  sharesBlocks(tenant: string): boolean {
    return this.#tenants.get(tenant)?.sharing === 'all';
  }

  /** Returns the key that is this text; undefined for one that is not known. */
  find(key: string): KnownKey | undefined {
    return found(this.#byPrefix, keyDigest(key));
  }

  /** Returns who sends a request, by the key in its headers. @throws Failure `invalid_api_key` */
  readonly callerOf: ResolveCaller = (asking) => {
    const known = this.find(keyOf(asking));
    if (!known)
      throw refused('this API key is not known here, or has been removed: ask whoever runs this server for one');
    return known.caller;
  };
}

/** Keys of an entry that hold for its whole tenant, whichever of its entries states them. */
type OfTenant = Pick<KeyEntry, 'sharing' | 'limits' | 'weight'>;

function tenantsOf(entries: readonly KeyEntry[]): ReadonlyMap<string, OfTenant> {
  const tenants = new Map<string, OfTenant>();
  for (const { tenant, sharing, limits, weight } of entries) {
    const before = tenants.get(tenant);
    const stated = {
      sharing: sharing ?? before?.sharing,
      limits: limits ?? before?.limits,
      weight: weight ?? before?.weight,
    };
    tenants.set(tenant, stated);
  }
  return tenants;
}

function callerOf(entry: KeyEntry, { sharing, limits, weight }: OfTenant): Caller {
  const { name, tenant, admin, models, targets, max_priority: maxPriority } = entry;
  return {
    key: name,
    tenant,
    cacheTenant: sharing === 'all' ? '' : tenant,
    isAdmin: admin,
    models,
    targets: targets && { ttftMs: targets.ttft_ms, tbtMs: targets.tbt_ms, totalMs: undefined },
    limits: {
      requestsPerMinute: limits?.requests_per_minute,
      tokensPerMinute: limits?.tokens_per_minute,
      maxRequests: limits?.requests_in_flight,
      maxSamples: limits?.samples,
      allowsPriority: true,
    },
    weight,
    maxPriority,
  };
}

/** Returns a key with its caller. One that was known under the same right, whatever its name was, goes on with its open requests. */
function knownOf(digest: Buffer, caller: Caller, before: ByPrefix, isAborting: boolean): KnownKey {
  if (!isAborting) return { digest, removed: undefined, caller };
  const earlier = found(before, digest);
  const isSame = earlier?.caller.tenant === caller.tenant && earlier.caller.isAdmin === caller.isAdmin;
  const removed = (isSame ? earlier.removed : undefined) ?? new AbortController();
  // One listener for each of its requests.
  setMaxListeners(0, removed.signal);
  return { digest, removed, caller: { ...caller, revoked: removed.signal } };
}
