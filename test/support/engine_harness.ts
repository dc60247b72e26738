/** An engine in the caller's thread, with what it told. */
import assert from 'node:assert/strict';
import { Condition } from '../../shared/base/condition.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { xxh64 } from '../../shared/base/xxh64.ts';
import { Engine } from '../../shared/engine/engine.ts';
import type { EngineEvent } from '../../shared/engine/engine_events.ts';
import type { QueueOrderName } from '../../shared/engine/queue_order.ts';
import type { Grammars } from '../../shared/engine/token_constraint.ts';
import type { SequenceReport } from '../../shared/engine/sequence_times.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import type { AnchoredHash, BlockKey } from '../../shared/kv/block_key.ts';
import type { SampledMessage } from '../../shared/protocol/messages.ts';
import { sequenceRequest, type TestSequence } from './request.ts';
import { until } from './until.ts';

/** Longer than any step: prompts are not slowed down next to others, so that what happens does not depend on how fast the machine is. */
const UNPACED_MS = 100_000;

export class Harness {
  readonly engine: Engine;
  readonly outputs = new Map<number, number[]>();
  readonly hashes = new Map<BlockKey, AnchoredHash>();
  readonly prefilled = new Set<number>();
  readonly embeddings = new Map<number, Float32Array>();
  readonly preempted = new Set<number>();
  readonly failed = new Map<number, string>();
  readonly prompts = new Map<number, SampledMessage[]>();
  readonly reports = new Map<number, SequenceReport>();
  readonly model: LoadedModel;
  readonly #changed = new Condition();
  #isReady = false;
  #nextId = 1;

  constructor(
    model: LoadedModel,
    numBlocks: number,
    chunkTokens: number,
    maxNumSeqs = 8,
    grammars?: Grammars,
    queueOrder?: QueueOrderName,
    stateInterval?: number,
  ) {
    this.model = model;
    this.engine = new Engine(
      model.executable,
      {
        spec: model.layout.spec,
        numBlocks,
        chunkTokens,
        maxNumSeqs,
        maxWaiting: 100,
        stepMs: UNPACED_MS,
        grammars,
        queueOrder,
        stateInterval,
        emit: (event) => {
          this.#note(event);
        },
        onReady: () => {
          this.#isReady = true;
          this.#changed.notify();
        },
      },
      systemClock,
    );
  }

  #note(event: EngineEvent): void {
    switch (event.kind) {
      case 'token': {
        const { id, sampled, report } = event;
        this.outputs.set(id, [...(this.outputs.get(id) ?? []), sampled.token]);
        if (report) this.reports.set(id, report);
        return;
      }
      case 'preempted':
        this.preempted.add(event.id);
        return;
      case 'prefilled':
        this.prefilled.add(event.id);
        this.reports.set(event.id, event.report);
        return;
      case 'embedded':
        this.embeddings.set(event.id, event.values);
        this.reports.set(event.id, event.report);
        return;
      case 'prompt': {
        const notified = this.prompts.get(event.id) ?? [];
        for (const token of event.tokens) notified[token.position] = token;
        this.prompts.set(event.id, notified);
        return;
      }
      case 'refused':
        this.failed.set(event.id, event.message);
        return;
      case 'stored':
        this.hashes.set(event.hash.key, event.hash);
        return;
      case 'removed':
        this.hashes.delete(event.key);
        return;
      case 'admitted':
      case 'progress':
      case 'planned':
        return;
    }
  }

  submit(tokens: readonly number[], maxTokens: number, more: Partial<TestSequence> = {}): number {
    const id = this.#nextId++;
    const { format: root } = this.model.layout;
    this.engine.submit(sequenceRequest({ id, root, tokens, maxLength: tokens.length + maxTokens, ...more }));
    return id;
  }

  /** Resolves when the engine says that it has something to do. */
  async ready(): Promise<void> {
    await until('the engine has something to do', () => this.#isReady);
    this.#isReady = false;
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
