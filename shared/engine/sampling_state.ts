/**
 * Who samples where: each sequence that holds device blocks has a slot of the device for its tokens, and pages for bias and counts when it
 * needs them and there are any. Without pages, and for rows that a device does not sample from, the host samples by the definition: from the
 * full row, a few such in a step (P1), and the sequence waits for its token before it goes on.
 */
import assert from 'node:assert/strict';
import {
  MAX_FULL_ROWS,
  type Executable,
  type RowSampler,
  type SampleRequest,
  type SampleResult,
} from '../../kernels/device.ts';
import { NO_TOKEN } from '../../kernels/sampling.ts';
import type { SampledMessage } from '../protocol/messages.ts';
import { LogitAdjustments, SequenceSampling, numCandidatesOf, sampledToken } from './sampler.ts';
import type { Sequence } from './sequence.ts';
import type { Candidate, SampledBy } from './step_plan.ts';

const NO_TOKENS: readonly number[] = [];
/** Sequences whose tokens the host samples, in one step. */
export const MAX_HOST_SAMPLED_ROWS = MAX_FULL_ROWS;

interface Entry {
  readonly sampling: SequenceSampling;
  readonly slot: number;
  readonly pages: { readonly biasPage?: number; readonly countsPage?: number };
  /** Where the pages are the device's, they are not kept here too. */
  readonly memory: LogitAdjustments;
  readonly isOnDevice: boolean;
}

export class SamplingState {
  readonly #executable: Executable;
  readonly #entries = new Map<Sequence, Entry>();
  readonly #slots: number[];
  readonly #pages: number[];
  /** Open ones whose tokens the host samples. */
  #numSampledByHost = 0;
  #sampler: RowSampler | undefined;

  constructor(executable: Executable, numSlots: number) {
    this.#executable = executable;
    this.#slots = Array.from({ length: numSlots }, (_, i) => numSlots - 1 - i);
    this.#pages = Array.from({ length: executable.sampling.numPages }, (_, i) => i);
  }

  /** Its device blocks are taken: it may sample. A second call does nothing. */
  open(sequence: Sequence): void {
    if (this.#entries.has(sequence)) return;
    const { request } = sequence.request;
    const { promptLength, stopTokenIds, sampling } = request;
    const tokens = sequence.tokens.view();
    const { vocab } = this.#executable.sampling;
    const memory = new LogitAdjustments(sampling, { tokens, promptLength, stopTokenIds }, vocab);
    const numNeeded = (memory.bias ? 1 : 0) + (memory.counts ? 1 : 0);
    const isOnDevice = numNeeded <= this.#pages.length;
    const page = (values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>): number => {
      const taken = this.#pages.pop()!;
      this.#executable.writeSamplerPage(taken, 0, values);
      return taken;
    };
    const pages = {
      ...(isOnDevice && memory.bias ? { biasPage: page(memory.bias) } : {}),
      ...(isOnDevice && memory.counts ? { countsPage: page(memory.counts) } : {}),
    };
    if (isOnDevice) memory.forget();
    const slot = this.#slots.pop();
    assert(slot !== undefined, 'a sequence that is held has a slot');
    if (!isOnDevice) this.#numSampledByHost++;
    this.#entries.set(sequence, { sampling: new SequenceSampling(sampling), slot, pages, memory, isOnDevice });
  }

  /** It is over, or has no device blocks any more. A second call does nothing. */
  close(sequence: Sequence): void {
    const entry = this.#entries.get(sequence);
    if (!entry) return;
    this.#entries.delete(sequence);
    if (!entry.isOnDevice) this.#numSampledByHost--;
    this.#slots.push(entry.slot);
    for (const page of Object.values(entry.pages)) this.#pages.push(page);
  }

  #entry(sequence: Sequence): Entry {
    const entry = this.#entries.get(sequence);
    assert(entry, 'a sequence that samples is held');
    return entry;
  }

  slotOf(sequence: Sequence): number {
    return this.#entry(sequence).slot;
  }

  /** Those of the sequences whose next rows may be computed, in order, and who samples for each. */
  candidatesOf(sequences: readonly Sequence[]): Candidate<Sequence>[] {
    const ready = sequences.filter((sequence) => this.#mayPlan(sequence));
    const isServed = this.#servedByHost();
    return ready.map((sequence) => ({ sequence, sampledBy: this.#sampledBy(sequence, isServed) }));
  }

  /** Whether its next rows may be computed: its output is not complete, and no token that the host samples is outstanding. */
  #mayPlan(sequence: Sequence): boolean {
    const { kind, request } = sequence.request;
    if (kind === 'prefill') return true;
    if (sequence.length >= request.maxLength) return false;
    this.open(sequence);
    return sequence.cursor.pending === 0 || !this.#isSampledByHost(sequence);
  }

  #sampledBy(sequence: Sequence, isServed: ReadonlySet<Sequence> | undefined): SampledBy {
    if (!this.#isSampledByHost(sequence)) return 'device';
    return isServed?.has(sequence) === false ? 'waits' : 'host';
  }

  /** Sequences that the host samples for in the next step, those first that waited longest; undefined: there is room for all. */
  #servedByHost(): ReadonlySet<Sequence> | undefined {
    if (this.#numSampledByHost <= MAX_HOST_SAMPLED_ROWS) return undefined;
    const ready = [...this.#entries].flatMap(([sequence, { isOnDevice }]) =>
      !isOnDevice && sequence.length - sequence.cursor.submitted === 1 ? [sequence] : [],
    );
    return new Set(ready.sort((a, b) => a.lastStep - b.lastStep).slice(0, MAX_HOST_SAMPLED_ROWS));
  }

  /** Its next token cannot be sampled before the last one has come back. */
  #isSampledByHost(sequence: Sequence): boolean {
    return this.#entries.get(sequence)?.isOnDevice === false;
  }

  /** How the token that will have `position` is asked of the device. */
  request(sequence: Sequence, position: number, row: number): SampleRequest {
    const { sampling, slot, pages, memory, isOnDevice } = this.#entry(sequence);
    const changes = memory.changesAt(position);
    if (changes.length > 0 && pages.biasPage !== undefined) {
      for (const [token, bias] of changes)
        this.#executable.writeSamplerPage(pages.biasPage, token, Int32Array.of(bias));
    }
    const numCandidates = numCandidatesOf(sampling.params);
    if (!isOnDevice) return { row, numCandidates, askedTokens: NO_TOKENS, isFullRowWanted: true };
    const sample = sampling.requestAt(position, slot, pages.biasPage, pages.countsPage);
    return { row, numCandidates, askedTokens: NO_TOKENS, isFullRowWanted: false, sample };
  }

  /** What came back for it. Undefined: there is nothing that it could be. */
  sampledMessage(sequence: Sequence, position: number, result: SampleResult): SampledMessage | undefined {
    const { sampling, memory, isOnDevice } = this.#entry(sequence);
    const { fullRow } = result;
    let token = result.token;
    let logit = result.tokenLogit;
    if (!isOnDevice) {
      assert(fullRow, 'a row that the host samples from comes back whole');
      this.#sampler ??= this.#executable.rowSampler();
      token = this.#sampler.sample(fullRow, sampling.at(position), memory);
      logit = fullRow[token] ?? NaN;
      if (token !== NO_TOKEN) memory.count(token);
    }
    return token === NO_TOKEN ? undefined : sampledToken(sampling.params, position, token, logit, result);
  }
}

/** What is asked of a row whose next token is known: that token's log-probability, and the best ones. */
export function promptRequest(row: number, token: number, numTop: number): SampleRequest {
  return { row, numCandidates: Math.max(1, numTop), askedTokens: [token], isFullRowWanted: false };
}
