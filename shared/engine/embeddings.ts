/**
 * Embeddings of prompts: pools the hidden states of `embed` sequences into vectors of length 1.
 *
 * E2: sums are in f64 and by ascending position, so the bits of an embedding depend on no batch, chunk or hit.
 */
import assert from 'node:assert/strict';
import type { Clock } from '../base/clock.ts';
import { Pooling } from '../protocol/messages.ts';
import type { SequenceEvent } from './engine_events.ts';
import type { Sequence } from './sequence.ts';

/** Rows [start, start + count) of a sequence that a step has computed, and the hidden states of the last of them, if any were wanted. */
interface ComputedRows {
  readonly sequence: Sequence;
  readonly start: number;
  readonly count: number;
  readonly hidden?: Float32Array | undefined;
}

/** Pools hidden states as steps return them, and emits the embedding of each sequence after its last row. */
export class Embeddings {
  /** Values of a hidden state. */
  readonly #width: number;
  readonly #clock: Clock;
  readonly #emit: (event: SequenceEvent) => void;
  /** Sums of the hidden states of rows [0, computed), of held sequences whose mean is wanted. */
  readonly #sums = new Map<Sequence, Float64Array>();

  constructor(width: number, clock: Clock, emit: (event: SequenceEvent) => void) {
    this.#width = width;
    this.#clock = clock;
    this.#emit = emit;
  }

  /** Returns an array for the hidden states that a step with rows [start, end) must return; undefined when it needs none of them. */
  roomFor({ request: { kind, pooling }, tokens }: Sequence, start: number, end: number): Float32Array | undefined {
    if (kind !== 'embed') return undefined;
    const count = pooling === Pooling.MEAN ? end - start : end === tokens.length ? 1 : 0;
    if (count === 0) return undefined;
    assert(this.#width > 0, 'the program of a model returns hidden states');
    return new Float32Array(count * this.#width);
  }

  /**
   * Adds the hidden states that a step returned. Returns whether the sequence has ended: its embedding was emitted, or a refusal when
   * a value is no number.
   */
  complete({ sequence, start, count, hidden }: ComputedRows): boolean {
    if (!hidden) return false;
    const { id, pooling } = sequence.request;
    const isMean = pooling === Pooling.MEAN;
    // A preempted sequence starts again at 0.
    const known = isMean && start > 0 ? this.#sums.get(sequence) : undefined;
    const sum = known ?? new Float64Array(this.#width);
    for (let at = 0; at < hidden.length; at++) sum[at % this.#width]! += hidden[at]!;
    if (start + count < sequence.tokens.length) {
      this.#sums.set(sequence, sum);
      return false;
    }
    const values = unitVector(sum);
    if (values) {
      this.#emit({ kind: 'embedded', id, values, report: sequence.times.report(this.#clock.nowMs()) });
    } else {
      const message = 'the prompt has no embedding: its hidden states are zero, or a value of them is no number';
      this.#emit({ kind: 'refused', id, code: 'internal', message });
    }
    return true;
  }

  /** Forgets a sequence that was cancelled or has ended. A second call does nothing. */
  close(sequence: Sequence): void {
    this.#sums.delete(sequence);
  }
}

/** Returns the vector divided by its length, rounded to f32; undefined when the length is 0 or no number. */
function unitVector(vector: Float64Array): Float32Array<ArrayBuffer> | undefined {
  const length = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  return length > 0 && length < Infinity ? Float32Array.from(vector, (value) => value / length) : undefined;
}
