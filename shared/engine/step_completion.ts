/** Applies the results of a step: tokens, log-probabilities of prompts, full blocks, and the ends of sequences. */
import assert from 'node:assert/strict';
import type { SampleResult } from '../../kernels/device.ts';
import type { Clock } from '../base/clock.ts';
import type { FailureCode } from '../base/failure.ts';
import { widestOf, type KvSpec } from '../kv/kv_spec.ts';
import type { SampledMessage } from '../protocol/messages.ts';
import type { BlockPool } from './block_pool.ts';
import type { Embeddings } from './embeddings.ts';
import type { EngineEvent } from './engine_events.ts';
import { reportedToken } from './sampler.ts';
import type { RecurrentStates } from './recurrent_states.ts';
import type { SamplingState } from './sampling_state.ts';
import type { Sequence } from './sequence.ts';
import { numPromptTop, type StepRows } from './step.ts';

/** Parts of an engine that a completion needs. */
export interface CompletionOptions {
  readonly spec: KvSpec;
  readonly pool: BlockPool;
  readonly sampling: SamplingState;
  readonly embeddings: Embeddings;
  /** Undefined for a model without recurrent layers. */
  readonly states: RecurrentStates | undefined;
  readonly clock: Clock;
  readonly emit: (event: EngineEvent) => void;
  /** Whether the sequence was cancelled or has ended. */
  readonly isGone: (sequence: Sequence) => boolean;
  /** Called when an answer is complete, with the number of its tokens. */
  readonly onFinished: (numTokens: number) => void;
  /** Forgets a sequence. */
  readonly cancel: (id: number) => void;
}

/** Completes the rows of steps that have returned. */
export class StepCompletion {
  readonly #options: CompletionOptions;
  /** Tokens that the widest layer of all sees; 0: all. */
  readonly #widest: number;

  constructor(options: CompletionOptions) {
    this.#options = options;
    this.#widest = widestOf(options.spec.frames.map(({ window }) => window));
  }

  /**
   * Completes the rows of one sequence. `at` is the index of their first result; results of prompt tokens come before those of sampled
   * tokens.
   */
  complete(rows: StepRows, results: readonly SampleResult[], at: number): void {
    const { sequence, prompt, sampled } = rows;
    sequence.cursor.stepReturned();
    // The sequence was cancelled or finished while the device computed: its token is dropped, and its blocks are released once no step
    // touches them.
    if (this.#options.isGone(sequence)) {
      this.#options.pool.release(sequence.releaseEnded());
      if (rows.states) this.#options.states?.drop(sequence, rows.states);
      else this.#options.states?.left(sequence);
      return;
    }
    this.#advance(rows);
    if (this.#options.embeddings.complete(rows)) this.#options.cancel(sequence.request.id);
    const after = at + prompt.end - prompt.start;
    if (after > at) this.#reportPrompt(rows, results.slice(at, after));
    for (let i = 0; i < sampled.length; i++) {
      const position = sampled[i];
      const result = results[after + i];
      if (position === undefined || !result || this.#options.isGone(sequence)) return;
      sequence.cursor.sampleReturned();
      const message = this.#options.sampling.sampledMessage(sequence, position, result);
      if (message) this.#applyToken(sequence, message);
      else this.#fail(sequence);
    }
  }

  #reportPrompt({ sequence, prompt }: StepRows, results: readonly SampleResult[]): void {
    const tokens = sequence.tokens.view();
    const numTop = numPromptTop(sequence);
    const reported = results.map((row, i) => {
      const position = prompt.start + i;
      return reportedToken(numTop, position, tokens[position]!, row.askedLogits[0]!, row);
    });
    sequence.promptReported(prompt.end);
    this.#options.emit({ kind: 'prompt', id: sequence.request.id, tokens: reported });
  }

  #fail({ request: { id }, constraint }: Sequence): void {
    // Without a constraint of the request's own, it is the model that gives no token.
    if (constraint)
      this.#refuse(id, 'invalid_request', 'no token is left: the grammar, bad_words and allowed_token_ids exclude all');
    else
      this.#refuse(
        id,
        'internal',
        'no token can be sampled: a logit of the model is no number, or every token is forbidden',
      );
  }

  /** Counts computed tokens and names the blocks that became full. */
  #advance({ sequence, start, count, after, states }: StepRows): void {
    const { pool, emit, spec } = this.#options;
    const { blockSize } = spec;
    const { request, times, tokens, chain, cursor } = sequence;
    cursor.complete(after);
    times.numRun += count;
    if (tokens.length >= (chain.hashes.length + 1) * blockSize) chain.extend(tokens.view());
    for (let index = Math.floor(start / blockSize); index < Math.floor((start + count) / blockSize); index++) {
      const [block, hash] = [sequence.blocks[index], chain.hashes[index]];
      assert(block !== undefined && hash, `block ${index} of ${tokens.length} tokens is computed but not named`);
      if (pool.seal(block, hash)) emit({ kind: 'stored', hash, origin: 'computed' });
    }
    if (states) this.#options.states?.complete(sequence, states);
    if (request.kind === 'prefill')
      emit({ kind: 'progress', id: request.id, numReady: cursor.computed, numRun: times.numRun });
    // A prefill keeps its blocks for others to fetch; a decode sequence releases blocks that lie outside its widest attention window.
    else if (this.#widest > 0) pool.release(sequence.dropOutside(this.#widest), 0);
  }

  #applyToken(sequence: Sequence, sampled: SampledMessage): void {
    const { constraint } = sequence;
    const { id, tokens: prompt, request } = sequence.request;
    const isFirst = sequence.tokens.length === prompt.length;
    sequence.tokens.push(sampled.token);
    const isFull = sequence.tokens.length >= request.maxLength;
    const isStop = request.stopTokenIds.includes(sampled.token) || constraint?.isEnd(sampled.token);
    const finish = isStop ? 'stop' : isFull ? 'length' : undefined;
    const report = isFirst ? sequence.times.report(this.#options.clock.nowMs()) : undefined;
    this.#options.emit({ kind: 'token', id, sampled, report, finish });
    if (finish) {
      this.#options.onFinished(sequence.tokens.length - request.promptLength);
      this.#options.cancel(id);
    } else constraint?.push(sampled.token);
  }

  #refuse(id: number, code: FailureCode, message: string): void {
    this.#options.cancel(id);
    this.#options.emit({ kind: 'refused', id, code, message });
  }
}
