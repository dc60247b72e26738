/** Requests as tests write them: a seed as one number, biases as pairs. */
import type { AnchoredHash, Digest } from '../../shared/kv/block_key.ts';
import { noScope } from '../../shared/kv/format.ts';
import { packSeed } from '../../shared/protocol/packing.ts';
import { neutralSampling, type Sampling } from '../../shared/protocol/request.ts';
import type { TokenConstraintMessage } from '../../shared/protocol/messages.ts';
import type { SequenceRequest } from '../../shared/engine/sequence_request.ts';

export interface TestSampling extends Omit<Sampling, 'seedLow' | 'seedHigh' | 'biasTokens' | 'biasValues'> {
  readonly seed: bigint | number;
  readonly logitBias: readonly (readonly [token: number, bias: number])[];
}

/** Every parameter at its neutral value. */
export const greedy: TestSampling = { ...neutralSampling, seed: 0, logitBias: [] };

/** Sampling in the form sent over the wire; parameters not named are neutral. */
export function samplingOf({ seed = 0, logitBias = [], ...rest }: Partial<TestSampling>): Sampling {
  return {
    ...neutralSampling,
    ...rest,
    ...packSeed(BigInt(seed)),
    biasTokens: logitBias.map(([token]) => token),
    biasValues: logitBias.map(([, bias]) => bias),
  };
}

export interface TestSequence {
  readonly id: number;
  readonly kind?: SequenceRequest['kind'];
  readonly pooling?: SequenceRequest['pooling'];
  readonly root: Digest;
  readonly tokens: ArrayLike<number>;
  readonly hashes?: readonly AnchoredHash[];
  /** All of `tokens` when it does not say. */
  readonly promptLength?: number;
  readonly maxLength: number;
  readonly stopTokenIds?: readonly number[];
  readonly sampling?: Partial<TestSampling>;
  readonly isFetching?: boolean;
  readonly fetchEnd?: number;
  readonly awaited?: SequenceRequest['awaited'];
  readonly expectedTokens?: number;
  readonly priority?: number;
  readonly sharer?: SequenceRequest['sharer'];
  readonly group?: SequenceRequest['group'];
  readonly constraint?: TokenConstraintMessage | undefined;
  /** Log-probabilities of the prompt from that position on. */
  readonly promptLogprobs?: { readonly numTop: number; readonly from: number };
}

/** Returns the sequence as an engine accepts it. */
export function sequenceRequest(of: TestSequence): SequenceRequest {
  const { id, kind = 'decode', pooling, root, hashes = [], isFetching = false } = of;
  const { promptLogprobs, group, constraint = null } = of;
  const tokens = Uint32Array.from(of.tokens);
  const { promptLength = tokens.length, maxLength, stopTokenIds = [] } = of;
  return {
    id,
    kind,
    pooling,
    root,
    tokens,
    hashes,
    isFetching,
    group,
    fetchEnd: of.fetchEnd,
    awaited: of.awaited,
    expectedTokens: of.expectedTokens,
    priority: of.priority,
    sharer: of.sharer,
    promptLogprobsFrom: promptLogprobs?.from ?? promptLength,
    request: {
      promptLength,
      maxLength,
      stopTokenIds,
      constraint,
      scope: noScope,
      sampling: samplingOf(of.sampling ?? {}),
      promptLogprobs: promptLogprobs ? promptLogprobs.numTop + 1 : 0,
    },
  };
}
