/** Content that every block of a seed's requests must have, computed by the plain function; K1, K2 and K3 are checked against it. */
import { KeyChain, type BlockKey, type Digest } from '../../shared/kv/block_key.ts';
import { chainRoot, noScope } from '../../shared/kv/format.ts';
import type { KvSpec } from '../../shared/kv/kv_spec.ts';
import { readHeader, stateHashOf } from '../../shared/kv/record.ts';
import { readPayload, readState, type PlainRun } from './simulated_device.ts';

interface Entry {
  /** Values of the block's tokens: those of the low layer, then those of the high one. */
  readonly content: Uint32Array;
  /** The scope's tenant and salt, and the tokens that lead here. */
  readonly of: string;
}

export class Truth {
  readonly #format: Digest;
  readonly #spec: KvSpec;
  readonly #blockSize: number;
  readonly #entries = new Map<Digest, Entry>();
  /** State of the recurrent layer at the end of a block, by the digest that names it, and the tokens that lead there. */
  readonly #states = new Map<Digest, { readonly state: number; readonly of: string }>();

  /** Parents of all blocks and states, by their keys of 64 bits. */
  readonly #parents = new Map<BlockKey, BlockKey>();

  constructor(format: Digest, spec: KvSpec) {
    this.#format = format;
    this.#spec = spec;
    this.#blockSize = spec.blockSize;
  }

  /** Every full block of a prompt and its output, by the salt of a request and the tenant of its key. @throws Error when two different prefixes have one name (K1). */
  learn(
    prompt: readonly number[],
    { sampled, kv, states }: Pick<PlainRun, 'sampled' | 'kv' | 'states'>,
    salt: string,
    tenant = '',
  ): void {
    const tokens = [...prompt, ...sampled.map(({ token }) => token)].slice(0, kv.length);
    const chain = new KeyChain(chainRoot(this.#format, { ...noScope, tenant, salt }), this.#blockSize);
    chain.extend(tokens).forEach((hash, block) => {
      const { digest } = hash;
      const [from, to] = [block * this.#blockSize, (block + 1) * this.#blockSize];
      const of = `${tenant} ${salt}: ${tokens.slice(0, to).join()}`;
      const known = this.#entries.get(digest);
      if (known && known.of !== of) throw new Error(`K1: ${known.of} and ${of} have one digest`);
      const positions = kv.slice(from, to);
      const content = Uint32Array.of(...positions.map(([low]) => low), ...positions.map(([, high]) => high));
      this.#entries.set(digest, { content, of });
      this.#parents.set(hash.key, hash.parent);
      this.#parents.set(stateHashOf(hash).key, hash.key);
      if (this.#spec.state) this.#states.set(stateHashOf(hash).digest, { state: states[to - 1]!, of });
    });
  }

  /** Returns what is wrong with the parent that a holder announces for a key of 64 bits; undefined when nothing is. */
  faultOfParent(key: BlockKey, parent: BlockKey): string | undefined {
    const known = this.#parents.get(key);
    return known === undefined || known === parent ? undefined : `the parent of ${key} is ${known}, not ${parent}`;
  }

  /** Returns what is wrong with `content` under the name `digest`; undefined when nothing is. */
  fault(digest: Digest, content: Uint32Array): string | undefined {
    const known = this.#entries.get(digest);
    if (!known) return `${digest} is the name of no request's tokens`;
    const isTrue = known.content.every((value, i) => value === content[i]);
    return isTrue ? undefined : `${digest} does not hold the KV of ${known.of}`;
  }

  /** Returns what is wrong with a state under the name `digest`; undefined when nothing is. */
  faultOfState(digest: Digest, state: number): string | undefined {
    const known = this.#states.get(digest);
    if (!known) return `${digest} is the name of no request's state`;
    return known.state === state ? undefined : `${digest} is not the state after ${known.of}`;
  }

  faultOfRecord(digest: Digest, record: Uint8Array): string | undefined {
    const header = readHeader(record);
    if (!('fault' in header) && header.kind === 'state')
      return this.faultOfState(digest, readState(record.subarray(header.preambleBytes)));
    return this.faultOfLayers(digest, 0, record.subarray(this.#spec.preambleBytes));
  }

  /** Checks raw bytes of a payload that begin at layer `firstLayer`. Returns what is wrong with them; undefined when nothing is. */
  faultOfLayers(digest: Digest, firstLayer: number, raw: Uint8Array): string | undefined {
    const known = this.#entries.get(digest);
    const layers = readPayload(raw, this.#blockSize).flatMap((values) => [...values]);
    const content = Uint32Array.from(known?.content ?? []);
    const before = this.#spec.layers.slice(0, firstLayer).filter(({ bytes }) => bytes > 0).length;
    content.set(layers, before * this.#blockSize);
    return this.fault(digest, content);
  }
}
