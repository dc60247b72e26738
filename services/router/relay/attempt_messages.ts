/** Messages of one attempt at a request: the Decode and Prefill requests to its instances. */
import { Failure } from '../../../shared/base/failure.ts';
import type { Digest } from '../../../shared/kv/block_key.ts';
import type {
  DecodeStart,
  PrefillRequest,
  RequestContext,
  SampleGroupMessage,
  Source,
} from '../../../shared/protocol/messages.ts';
import { packDigest, packTokens } from '../../../shared/protocol/packing.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { InFlightRequest } from './in_flight_request.ts';

interface AttemptMessagesOptions {
  readonly inFlight: InFlightRequest;
  /** Prompt and output so far, when the attempt began. */
  readonly tokens: Uint32Array;
  /** Digest of the last full block before the tail of `tokens`; undefined: there is none. */
  readonly lastDigest: Digest | undefined;
  /** Format digest of the model; undefined: no instance of it is in the cluster any more. */
  readonly digest: Digest | undefined;
  /** Membership of the call in a group of samples; undefined for a request of one sample. */
  readonly group: SampleGroupMessage | undefined;
  /** Epoch of this router. */
  readonly router: string;
  /** Tokens that the decode instance is expected to generate. */
  readonly expectedTokens: number;
  readonly timeoutMs: number;
}

/** Builds the Decode and Prefill requests of one attempt. */
export class AttemptMessages {
  readonly timeoutMs: number;
  readonly #options: AttemptMessagesOptions;

  constructor(options: AttemptMessagesOptions) {
    this.#options = options;
    this.timeoutMs = options.timeoutMs;
  }

  /** Returns the first message of the Decode call. `placement` is the call's number among those of this router. */
  start({ decode, decodeSources: sources, maxSelfCompute }: Chosen, placement: number): DecodeStart {
    const { request, promptLogprobs } = this.#options.inFlight.generation;
    return {
      context: this.#context(placement, this.#options.expectedTokens),
      ...this.#chain(),
      request: { ...request, maxLength: Math.min(request.maxLength, decode.maxModelLen) },
      sources,
      maxSelfCompute,
      promptLogprobsFrom: promptLogprobs ? promptLogprobs.length + 1 : 0,
      group: this.#options.group ?? null,
    };
  }

  /** Returns the request of a Prefill call. `pipelinePatienceMs`: 0 unless it is one of a pipeline. */
  prefill(sources: readonly Source[], placement: number, pipelinePatienceMs: number): PrefillRequest {
    const { scope } = this.#options.inFlight.generation.request;
    return { context: this.#context(placement, 0), ...this.#chain(), sources, scope, pipelinePatienceMs };
  }

  #context(placement: number, expectedTokens: number): RequestContext {
    const { inFlight, router, timeoutMs } = this.#options;
    const { trace, numAttempts, generation } = inFlight;
    return callContext(trace, numAttempts, { ...generation.origin, timeoutMs, router, placement, expectedTokens });
  }

  #chain(): WireChain {
    const { digest, tokens, lastDigest } = this.#options;
    return wireChain(digest, tokens, lastDigest);
  }
}

/** Returns the context of a call. Each attempt has its own id, so that the end of an earlier one is not taken for the end of this one. */
export function callContext(
  trace: RequestTrace,
  numAttempts: number,
  call: Omit<RequestContext, 'requestId' | 'traceId'>,
): RequestContext {
  return { requestId: `${trace.id}.${numAttempts}`, ...spanFields(trace), ...call };
}

/** Returns the span that a call is below: the router's own, without tracing here the client's. */
function spanFields({
  id,
  record,
  spans,
}: RequestTrace): Pick<RequestContext, 'traceId' | 'parentSpan' | 'traceFlags'> {
  if (spans) return spans.wire;
  const { parent, traceId = id } = record.facts.names;
  return parent ? { traceId, parentSpan: parent.spanId, traceFlags: parent.flags } : { traceId };
}

interface WireChain {
  readonly format: Buffer;
  readonly tokens: Buffer;
  readonly lastDigest: Buffer;
}

/**
 * Returns the block chain of a call's tokens. `digest` is that of the model's format, `lastDigest` that of the last full block before the
 * tail. @throws Failure `instance_lost` without a digest: the last instance of the model has left since the placement
 */
export function wireChain(digest: Digest | undefined, tokens: Uint32Array, lastDigest: Digest | undefined): WireChain {
  if (digest === undefined) throw new Failure('instance_lost', 'the last instance of the model has left the cluster');
  return {
    format: packDigest(digest),
    tokens: packTokens(tokens),
    lastDigest: lastDigest ? packDigest(lastDigest) : Buffer.alloc(0),
  };
}
