/** An engine in the caller's thread, with what it told. */
import assert from 'node:assert/strict';
import { systemClock } from '../../shared/base/clock.ts';
import { xxh64 } from '../../shared/base/xxh64.ts';
import { Engine, type EngineListener, type SequenceReport } from '../../shared/engine/engine.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import type { SampledToken, SamplingParams } from '../../shared/engine/sampler.ts';
import type { SequenceRequest } from '../../shared/engine/sequence.ts';
import type { AnchoredHash, BlockKey } from '../../shared/kv/block_key.ts';
import { greedy } from './reference_loop.ts';

export class Harness {
  readonly engine: Engine;
  readonly outputs = new Map<number, number[]>();
  readonly hashes = new Map<BlockKey, AnchoredHash>();
  readonly prefilled = new Set<number>();
  readonly preempted = new Set<number>();
  readonly failed = new Map<number, string>();
  readonly prompts = new Map<number, SampledToken[]>();
  readonly reports = new Map<number, SequenceReport>();
  readonly model: LoadedModel;
  #nextId = 1;

  constructor(model: LoadedModel, numBlocks: number, chunkTokens: number, maxNumSeqs = 8) {
    this.model = model;
    const listener: EngineListener = {
      onToken: (id, { token }, report) => {
        this.outputs.set(id, [...(this.outputs.get(id) ?? []), token]);
        if (report) this.reports.set(id, report);
      },
      onAdmitted: () => undefined,
      onPreempted: (one) => this.preempted.add(one),
      onProgress: () => undefined,
      onPrefilled: (id, report) => {
        this.prefilled.add(id);
        this.reports.set(id, report);
      },
      onPrompt: (id, position, tokens) => {
        const told = this.prompts.get(id) ?? [];
        tokens.forEach((token, i) => (told[position + i] = token));
        this.prompts.set(id, told);
      },
      onFailed: (id, message) => this.failed.set(id, message),
      onStored: (hash) => this.hashes.set(hash.key, hash),
      onRemoved: (key) => this.hashes.delete(key),
      onFilling: () => undefined,
      onPlanned: () => undefined,
    };
    this.engine = new Engine(
      model.executable,
      {
        spec: model.layout.spec,
        numBlocks,
        chunkTokens,
        maxNumSeqs,
        maxWaiting: 100,
        stepMs: 0,
      },
      listener,
      systemClock,
    );
  }

  submit(tokens: number[], maxTokens: number, more: Partial<SequenceRequest> = {}): number {
    const id = this.#nextId++;
    const sampling: SamplingParams = more.sampling ?? greedy;
    this.engine.submit({
      id,
      kind: 'decode',
      root: this.model.layout.format,
      tokens,
      hashes: [],
      promptLength: tokens.length,
      maxLength: tokens.length + maxTokens,
      stopTokenIds: [],
      isFetching: false,
      ...more,
      sampling,
    });
    return id;
  }

  async run(): Promise<void> {
    while (await this.engine.step()) this.engine.pool.checkIntegrity();
  }

  /** XXH64 of every keyed block's payload. */
  async checksums(): Promise<Map<BlockKey, bigint>> {
    const sums = new Map<BlockKey, bigint>();
    for (const hash of this.hashes.values()) {
      const payload = new Uint8Array(this.model.executable.blockBytes);
      assert.deepEqual(await this.engine.exportTo([{ hash, out: payload }]), [true]);
      sums.set(hash.key, xxh64(payload));
    }
    return sums;
  }
}
