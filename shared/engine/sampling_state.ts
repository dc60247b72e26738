/**
 * Decides where each sequence samples. Every sequence that holds device blocks has a sampler slot on the device, and pages for bias
 * and counts when it needs them and pages are free. Otherwise the host samples from the full row: at most MAX_HOST_SAMPLED_ROWS per
 * step (P1), and the sequence waits for each token before its next step.
 */
import assert from 'node:assert/strict';
import {
  MAX_FULL_ROWS,
  MAX_MASKS,
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
  /** Bias and counts for sampling on the host; empty when device pages hold them. */
  readonly adjustments: LogitAdjustments;
  readonly isOnDevice: boolean;
}

/** Sampler slots and pages of the sequences that hold device blocks, and where each sequence samples. */
export class SamplingState {
  readonly #executable: Executable;
  readonly #entries = new Map<Sequence, Entry>();
  readonly #slots: number[];
  readonly #pages: number[];
  /** Number of open sequences whose tokens the host samples. */
  #numSampledByHost = 0;
  /** Number of open sequences that the device samples with a mask. */
  #numMasked = 0;
  #sampler: RowSampler | undefined;

  constructor(executable: Executable, numSlots: number) {
    this.#executable = executable;
    this.#slots = Array.from({ length: numSlots }, (_, i) => numSlots - 1 - i);
    this.#pages = Array.from({ length: executable.sampling.numPages }, (_, i) => i);
  }

  /** Assigns a sampler slot, and pages if needed, to a sequence that holds device blocks. A second call does nothing. */
  open(sequence: Sequence): void {
    if (this.#entries.has(sequence)) return;
    const { request } = sequence.request;
    const { promptLength, stopTokenIds, sampling } = request;
    const tokens = sequence.tokens.view();
    const { vocab } = this.#executable.sampling;
    const adjustments = new LogitAdjustments(sampling, { tokens, promptLength, stopTokenIds }, vocab);
    const numNeeded = (adjustments.bias ? 1 : 0) + (adjustments.counts ? 1 : 0);
    const isOnDevice = numNeeded <= this.#pages.length;
    const page = (values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>): number => {
      const taken = this.#pages.pop()!;
      this.#executable.writeSamplerPage(taken, 0, values);
      return taken;
    };
    const pages = {
      ...(isOnDevice && adjustments.bias ? { biasPage: page(adjustments.bias) } : {}),
      ...(isOnDevice && adjustments.counts ? { countsPage: page(adjustments.counts) } : {}),
    };
    if (isOnDevice) adjustments.forget();
    const slot = this.#slots.pop();
    assert(slot !== undefined, 'a sequence that is held has a slot');
    const entry = { sampling: new SequenceSampling(sampling), slot, pages, adjustments, isOnDevice };
    if (!isOnDevice) this.#numSampledByHost++;
    if (isMasked(sequence, entry)) this.#numMasked++;
    this.#entries.set(sequence, entry);
  }

  /** Does what {@link open} does if the device can sample for the sequence; returns false, and opens nothing, if the host would. */
  openOnDevice(sequence: Sequence): boolean {
    if (this.#slots.length === 0) return false;
    this.open(sequence);
    if (!this.#isSampledByHost(sequence)) return true;
    this.close(sequence);
    return false;
  }

  /** Releases the slot and pages of a sequence that has ended or was preempted. A second call does nothing. */
  close(sequence: Sequence): void {
    const entry = this.#entries.get(sequence);
    if (!entry) return;
    this.#entries.delete(sequence);
    if (!entry.isOnDevice) this.#numSampledByHost--;
    if (isMasked(sequence, entry)) this.#numMasked--;
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

  /** Returns the sequences whose next rows may be computed, in order, with the place where each samples. */
  candidatesOf(sequences: readonly Sequence[]): Candidate<Sequence>[] {
    const ready = sequences.filter((sequence) => this.#mayPlan(sequence));
    const byHost = this.#servedByHost();
    const masked = this.#numMasked > MAX_MASKS ? this.#longestWaiting(isMasked, MAX_MASKS) : undefined;
    return ready.map((sequence) => ({ sequence, sampledBy: this.#sampledBy(sequence, byHost, masked) }));
  }

  /**
   * Whether the sequence's next rows may be computed: its output is not complete, and no token that the host samples is outstanding.
   */
  #mayPlan(sequence: Sequence): boolean {
    const { kind, request } = sequence.request;
    if (kind !== 'decode') return true;
    if (sequence.length >= request.maxLength) return false;
    this.open(sequence);
    return sequence.cursor.pending === 0 || !this.#isSampledByHost(sequence);
  }

  #sampledBy(
    sequence: Sequence,
    byHost: ReadonlySet<Sequence> | undefined,
    masked: ReadonlySet<Sequence> | undefined,
  ): SampledBy {
    const { constraint } = sequence;
    if (!hasMask(sequence)) return 'waits';
    if (this.#isSampledByHost(sequence)) return byHost?.has(sequence) === false ? 'waits' : 'host';
    if (!constraint) return 'device';
    // A prompt that is not in the set may have a mask that is left.
    return masked && isNextSampled(sequence) && !masked.has(sequence) ? 'waits' : 'masked';
  }

  /** Sequences that the host samples for in the next step, those first that waited longest; undefined: there is room for all. */
  #servedByHost(): ReadonlySet<Sequence> | undefined {
    if (this.#numSampledByHost <= MAX_HOST_SAMPLED_ROWS) return undefined;
    return this.#longestWaiting((_, { isOnDevice }) => !isOnDevice, MAX_HOST_SAMPLED_ROWS);
  }

  /** The `max` sequences of a kind that have waited longest for a step, among those that would be sampled in the next one. */
  #longestWaiting(isOfKind: (sequence: Sequence, entry: Entry) => boolean, max: number): ReadonlySet<Sequence> {
    const ready = [...this.#entries].flatMap(([sequence, entry]) =>
      isOfKind(sequence, entry) && isNextSampled(sequence) && hasMask(sequence) ? [sequence] : [],
    );
    return new Set(ready.sort((a, b) => a.lastStep - b.lastStep).slice(0, max));
  }

  /** Whether the host samples for this sequence; the next token then needs the result of the last one. */
  #isSampledByHost(sequence: Sequence): boolean {
    return this.#entries.get(sequence)?.isOnDevice === false;
  }

  /**
   * Returns the sample request for the token at `position`, whose logits are in `row`; first writes bias changes that take effect
   * there to the device.
   */
  request(sequence: Sequence, position: number, row: number): SampleRequest {
    const { sampling, slot, pages, adjustments, isOnDevice } = this.#entry(sequence);
    const { constraint } = sequence;
    const changes = adjustments.changesAt(position, constraint?.isComplete === true);
    if (changes.length > 0 && pages.biasPage !== undefined) {
      for (const [token, bias] of changes)
        this.#executable.writeSamplerPage(pages.biasPage, token, Int32Array.of(bias));
    }
    const numCandidates = numCandidatesOf(sampling.params);
    if (!isOnDevice) return { row, numCandidates, askedTokens: NO_TOKENS, isFullRowWanted: true };
    const sample = sampling.requestAt(position, slot, pages.biasPage, pages.countsPage, constraint?.words());
    return { row, numCandidates, askedTokens: NO_TOKENS, isFullRowWanted: false, sample };
  }

  /**
   * Returns the sampled token of `result`, sampling on the host where the device did not. Undefined when no token can be sampled: a
   * logit is NaN, or every token is forbidden.
   */
  sampledMessage(sequence: Sequence, position: number, result: SampleResult): SampledMessage | undefined {
    const { sampling, adjustments, isOnDevice } = this.#entry(sequence);
    const { fullRow } = result;
    let token = result.token;
    let logit = result.tokenLogit;
    if (!isOnDevice) {
      assert(fullRow, 'a row that the host samples from comes back whole');
      this.#sampler ??= this.#executable.rowSampler();
      const { bias, counts } = adjustments;
      const state = { bias, counts, allowed: sequence.constraint?.words() };
      token = this.#sampler.sample(fullRow, sampling.at(position), state);
      logit = fullRow[token] ?? NaN;
      if (token !== NO_TOKEN) adjustments.count(token);
    }
    return token === NO_TOKEN ? undefined : sampledToken(sampling.params, position, token, logit, result);
  }
}

function isMasked({ constraint }: Sequence, { isOnDevice }: Entry): boolean {
  return constraint !== undefined && isOnDevice;
}

/** Whether the mask of the next token is known, or there is none. A token that is outstanding comes before the mask. */
function hasMask({ constraint, cursor }: Sequence): boolean {
  return !constraint || (constraint.isReady && cursor.pending === 0);
}

/** Whether the next row of the sequence is one that a token is sampled from. */
function isNextSampled({ length, cursor }: Sequence): boolean {
  return length - cursor.submitted === 1;
}

/** Returns the request for a row whose next token is known: the log-probability of that token, and the `numTop` best ones. */
export function promptRequest(row: number, token: number, numTop: number): SampleRequest {
  return { row, numCandidates: Math.max(1, numTop), askedTokens: [token], isFullRowWanted: false };
}
