/**
 * Sampling on the host, for rows of logits that a device returned whole: the arithmetic of sampling.ts in a wasm kernel, four tokens
 * at a time.
 */
import assert from 'node:assert/strict';
import type { RowSampler } from '../device.ts';
import type { SampleParams, LogitState } from '../sampling.ts';
import { exp2Table } from '../sampling.ts';
import { maskOf, samplerSlotOf } from '../sampler_slot.ts';
import { compileKernels } from './compiled_kernels.ts';
import { instantiate, type Kernels } from './kernel_exports.ts';
import { MemoryPlan } from './memory_plan.ts';
import { sample as operation, samplerSlot, scratchBytes } from './ops/sample.ts';
import { paddedWidth } from './panels.ts';

/** Samples with the wasm kernel on the calling thread, from rows of logits that a device returned whole. */
export class HostRowSampler implements RowSampler {
  readonly #vocab: number;
  readonly #kernels: Kernels;
  readonly #view: DataView;
  readonly #words: Uint32Array;
  readonly #at: Readonly<
    Record<'params' | 'slot' | 'logits' | 'bias' | 'counts' | 'allowed' | 'token' | 'scratch', number>
  >;

  constructor(vocab: number) {
    const plan = new MemoryPlan();
    const words = (count: number): number => plan.reserve('a row to sample from', 4 * count);
    this.#vocab = vocab;
    this.#at = {
      params: plan.reserve('a row to sample from', operation.params.bytes),
      slot: plan.reserve('a row to sample from', samplerSlot.bytes),
      logits: words(paddedWidth(vocab)),
      bias: words(vocab),
      counts: words(vocab),
      allowed: words(Math.ceil(vocab / 32)),
      token: words(2),
      scratch: plan.reserve('a row to sample from', scratchBytes(vocab)),
    };
    const table = words(exp2Table.length);
    const memory = plan.allocate();
    this.#kernels = instantiate(compileKernels(true).module, memory);
    this.#view = new DataView(memory.buffer);
    this.#words = new Uint32Array(memory.buffer);
    this.#words.set(exp2Table, table / 4);
    const { params, logits, slot, token } = this.#at;
    operation.params.write(this.#view, params, {
      logits,
      stride: 4 * paddedWidth(vocab),
      vocab,
      samplerSlots: slot,
      samplerSlotBytes: samplerSlot.bytes,
      tokens: token,
      slots: token + 4,
      table,
    });
  }

  /** Samples a token from one row of logits; returns the same token as `Sampler.sample`. */
  sample(logits: Float32Array, sample: SampleParams, state: LogitState = {}): number {
    assert(logits.length === this.#vocab, `a row of ${this.#vocab} logits, not ${logits.length}`);
    const { params, slot, token, scratch } = this.#at;
    const put = (name: 'bias' | 'counts' | 'allowed', values: Int32Array | Uint32Array | undefined): number => {
      if (values) this.#words.set(values, this.#at[name] / 4);
      return values ? this.#at[name] : 0;
    };
    new Float32Array(this.#words.buffer, this.#at.logits, logits.length).set(logits);
    const addresses = {
      bias: put('bias', state.bias),
      allowed: put('allowed', state.allowed && maskOf(state.allowed, this.#vocab)),
      counts: put('counts', state.counts),
    };
    samplerSlot.write(this.#view, slot, samplerSlotOf({ ...sample, slot: 0 }, addresses));
    this.#kernels.sample(params, 0, 1, scratch);
    return this.#words[token / 4]!;
  }
}
