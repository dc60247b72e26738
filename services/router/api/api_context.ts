/** Dependencies of the API's endpoints, for one model. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { CacheScope } from '../../../shared/kv/format.ts';
import type { ModelFacts } from '../../../shared/protocol/model_facts.ts';
import type { Pooling } from '../../../shared/protocol/messages.ts';
import type { TextRules } from '../../../shared/text/grammar/text_rules.ts';
import type { Caller } from '../access/caller.ts';
import type { Bodies } from './bodies.ts';
import { allowedModel } from './parameter_failure.ts';
import type { Admission } from '../conductor/admission.ts';
import type { RouterMetrics } from '../metrics/metrics.ts';
import type { PromptLog } from '../observe/prompt_log.ts';
import type { Relay } from '../relay/relay.ts';
import type { RequestLog } from '../record/request_log.ts';
import type { OutputFormat } from '../../../shared/text/output/output_format.ts';
import type { RequestTargets } from './request_targets.ts';
import type { TextCodec } from '../../../shared/text/text.ts';

/** Everything an endpoint needs: parts of one model (facts, codec, relay, metrics), and parts that all models share. */
export interface ApiContext {
  readonly servedName: string;
  /** Returns `system_fingerprint`: it changes with the model's format and with this software's version. */
  readonly fingerprint: () => string;
  readonly facts: Omit<ModelFacts, 'texts'>;
  /**
   * Returns the context of the model that a request names, or of the router's first model when the name is undefined or empty. @throws
   * ParameterFailure when the model is not served.
   */
  readonly of: (model: string | undefined) => ApiContext;
  /** Returns the longest prompt and output together, in tokens, that can be served now. */
  readonly maxModelLen: () => number;
  readonly bodies: Bodies;
  readonly codec: TextCodec;
  /** Rules that requests state for the texts of their answers. */
  readonly rules: Pick<TextRules, 'compile'>;
  /** Format in which the model writes tool calls and reasoning. */
  readonly output: OutputFormat;
  readonly relay: Relay;
  readonly requests: RequestLog;
  /** Prompts and answers of finished requests; undefined without `--log-prompts`. */
  readonly promptLog: PromptLog | undefined;
  readonly metrics: RouterMetrics;
  readonly clock: Clock;
  readonly admission: Admission;
  /** How the hidden states of a prompt become its embedding. */
  readonly pooling: Pooling;
  /** Targets of requests by tenant and headers. */
  readonly targets: RequestTargets;
  readonly requestTimeoutMs: number;
  readonly stalledReaderMs: number;
  readonly sseKeepAliveMs: number;
  readonly newId: () => string;
  readonly newSeed: () => number;
  /**
   * Called when a request has ended by its own stop token or length: its tokens are remembered, since the next prompt of a chat may
   * begin with them, in the same scope.
   */
  readonly onGenerated: (prompt: Uint32Array, generated: readonly number[], scope: CacheScope) => void;
  /** Aborts when the router shuts down and cannot wait for running requests any longer; the reason is a Failure. */
  readonly ending: AbortSignal;
}

/**
 * Returns the context of the model that a request of a caller names, or of the first that it may use. @throws UnknownModel for one that is
 * not served, or not to this caller
 */
export function contextFor(
  { models }: Pick<Caller, 'models'>,
  all: Pick<ApiContext, 'of'>,
  model: string | undefined,
): ApiContext {
  return all.of(models ? allowedModel(models, model) : model);
}
