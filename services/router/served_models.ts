/** The contexts of the endpoints: tokenizer, relay and metrics of each served model, and the parts that all models share. */
import { scopeNumber } from '../../shared/kv/format.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { softwareVersion } from '../../shared/base/version.ts';
import type { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { TrialCompiler } from '../../shared/grammar/matcher/trial_compiler.ts';
import type { RoleContext } from '../../shared/node/role.ts';
import { decodeAnswer, encodeAnswer } from './remembered_answers.ts';
import { subjects } from '../../shared/protocol/membership.ts';
import { Pooling } from '../../shared/protocol/messages.ts';
import type { ModelFacts } from '../../shared/protocol/model_facts.ts';
import { Admission } from './conductor/admission.ts';
import type { Conductor } from '../../shared/placement/conductor.ts';
import type { LoggedDecision } from '../../shared/placement/decision_log.ts';
import { hardwareView } from './cluster/hardware_view.ts';
import type { ModelView } from './cluster/model_view.ts';
import type { LinkSnapshot } from '../../shared/placement/policy.ts';
import type { RouterCore } from './core.ts';
import { RuleConversions, TextRules } from '../../shared/text/grammar/text_rules.ts';
import { RouterMetrics } from './metrics/metrics.ts';
import type { ApiContext } from './api/api_context.ts';
import { Bodies } from './api/bodies.ts';
import { UnknownModel, type BodyLimits } from './api/parameter_failure.ts';
import { RequestTargets } from './api/request_targets.ts';
import { PromptLog } from './observe/prompt_log.ts';
import type { RouterConfig } from './options.ts';
import { answerEnds } from '../../shared/text/output/end_tokens.ts';
import { NO_FORMAT, OutputFormat } from '../../shared/text/output/output_format.ts';
import { specialNames } from '../../shared/text/output/rule_format.ts';
import type { RequestListener } from './record/request_listener.ts';
import { RequestLog } from './record/request_log.ts';
import { TextCodec } from '../../shared/text/text.ts';

/** Modules of the threads that read bodies. */
const bodyModule = { url: new URL('./surfaces/body_worker.js', import.meta.url) };
const promptModule = { url: new URL('./surfaces/prompt_worker.js', import.meta.url) };

/** Digits of the format's digest in a fingerprint: enough to tell the formats of a cluster apart. */
const FINGERPRINT_DIGITS = 12;

type Host = Pick<
  RoleContext<RouterConfig>,
  'config' | 'threads' | 'clock' | 'random' | 'newId' | 'log' | 'fail' | 'tracing'
>;

/** Dependencies of {@link ServedModels}. */
export interface ServedModelsOptions extends Host {
  readonly core: RouterCore;
  readonly bus: ClusterBus;
  /** Aborts when the router cannot wait for requests any longer. */
  readonly ending: AbortSignal;
  /** Listeners that count the requests of all models. */
  readonly listeners: readonly RequestListener[];
}

interface Served {
  readonly facts: ApiContext['facts'];
  readonly context: ApiContext;
  readonly view: ModelView;
  readonly conductor: Conductor;
  /** Undefined for a model without a tokenizer. */
  readonly trial: TrialCompiler | undefined;
}

/** All models that a router serves: opens and drops them, and finds the context of the model that a request names. */
export class ServedModels {
  readonly admission: Admission;
  readonly #options: ServedModelsOptions;
  /** Served models by name, in the order they were opened. */
  readonly #served = new Map<string, Served>();
  readonly #requests: RequestLog;
  readonly #conversions: RuleConversions;
  readonly #promptLog: PromptLog | undefined;
  #bodies: Bodies | undefined;

  constructor(options: ServedModelsOptions) {
    this.#options = options;
    const { config, clock, bus, log, threads } = options;
    this.admission = new Admission(config.max_requests);
    this.#conversions = new RuleConversions(threads, clock);
    this.#promptLog = config.log_prompts ? new PromptLog() : undefined;
    const metrics: RequestListener = {
      on: (record, event) => {
        if (event.kind !== 'token' && event.kind !== 'ended') return;
        const { context } = this.#served.get(record.facts.model ?? '') ?? this.#first;
        context.metrics.on(record, event);
      },
    };
    this.#requests = new RequestLog(clock, [metrics, ...options.listeners], config.request_log, options.tracing);
    bus.subscribe(subjects.answers, (bytes) => {
      try {
        const { model, ...answer } = decodeAnswer(bytes);
        this.#served.get(model)?.context.codec.learn(answer);
      } catch (error) {
        log.warn(
          { error: messageOf(error) },
          'ignored a message from another router that cannot be decoded: run the same version everywhere',
        );
      }
    });
  }

  get #first(): Served {
    const [first] = this.#served.values();
    if (!first) throw new Error('a router serves a model from the start');
    return first;
  }

  /**
   * Begins to serve a model: opens its tokenizer and metrics, and creates its conductor and relay. @throws ModelError when the
   * tokenizer cannot be used.
   */
  async open({ texts, ...described }: ModelFacts): Promise<void> {
    const { config, core, clock, random, newId, log, threads, fail, ending } = this.#options;
    const { name, maxModelLen: ownLength } = described;
    const readTexts = (): Promise<ModelFacts['texts']> => Promise.resolve(texts);
    const parsers = { tools: config.tool_call_parser, reasoning: config.reasoning_parser };
    const input = { parsers, keepsReasoning: config.keep_reasoning };
    const codec = await TextCodec.open({ path: name, readTexts }, ownLength, threads, fail, input, promptModule);
    const [ends, templateError, format] = await Promise.all([
      codec.endTokens(),
      codec.templateError(),
      codec.outputFacts(),
    ]);
    const choice = format?.choice ?? NO_FORMAT;
    const eosTokenIds = answerEnds([...described.eosTokenIds, ...ends], choice, format?.grammarTokens ?? []);
    const facts = { ...described, eosTokenIds };
    if (templateError !== undefined)
      log.warn({ model: name, error: templateError }, 'the chat template cannot be read: chats are refused');
    if (format?.error !== undefined)
      log.warn({ model: name, error: format.error }, 'response_template of tokenizer_config.json is not used');
    const names = specialNames(format?.grammarTokens ?? [], eosTokenIds);
    const output = new OutputFormat(choice, format?.specialTokens ?? [], names);
    const metrics = new RouterMetrics(name, log, { nowMs: () => clock.nowMs(), instances: () => view });
    const { view, conductor, relay } = core.serve(name, () => {
      metrics.failovers.inc();
    });
    this.#bodies ??= this.#openBodies();
    const { vocabSize } = facts;
    const trial = texts && new TrialCompiler({ threads, clock, vocabulary: { kind: 'texts', texts, vocabSize } });
    const context: ApiContext = {
      servedName: name,
      facts,
      codec,
      output,
      relay,
      metrics,
      clock,
      newId,
      ending,
      rules: new TextRules(this.#conversions, trial),
      promptLog: this.#promptLog,
      requests: this.#requests,
      admission: this.admission,
      bodies: this.#bodies,
      // llama.cpp's name of a build begins with a b too, which its clients check.
      fingerprint: () =>
        `b${(view.model?.digest ?? facts.modelConfig).slice(0, FINGERPRINT_DIGITS)}-${softwareVersion}`,
      of: (model) => this.#of(model),
      maxModelLen: () => Math.min(ownLength, view.maxModelLen ?? ownLength),
      pooling: config.pooling === 'mean' ? Pooling.MEAN : Pooling.LAST,
      targets: new RequestTargets(config),
      requestTimeoutMs: config.request_timeout_ms,
      stalledReaderMs: config.stalled_reader_ms,
      sseKeepAliveMs: config.sse_keep_alive_ms,
      newSeed: () => random.u32(),
      onGenerated: (prompt, generated, scope) => {
        this.#remember(name, codec.remember(prompt, generated, scopeNumber(scope)));
      },
    };
    this.#served.set(name, { facts, context, view, conductor, trial });
  }

  #openBodies(): Bodies {
    const { config, threads, fail } = this.#options;
    const [longest, limits] = [() => this.#longest, () => this.#limits()];
    return new Bodies(config.max_body_bytes, longest, limits, threads, bodyModule, fail);
  }

  /** Tells the other routers of an answer that a model's codec remembers, if it does. */
  #remember(model: string, remembered: ReturnType<TextCodec['remember']>): void {
    remembered.then(
      (answer) => {
        const message = answer && encodeAnswer({ model, ...answer });
        if (message) this.#options.bus.publish(subjects.answers, message);
      },
      // A rejection means that the tokenizer's thread has died, which ends the router by itself.
      () => undefined,
    );
  }

  /** Returns the longest context of all served models, in tokens. */
  get #longest(): number {
    return Math.max(0, ...[...this.#served.values()].map(({ facts }) => facts.maxModelLen));
  }

  #limits(): BodyLimits {
    const of = ({ facts, context }: Served): Pick<BodyLimits, 'vocabSize' | 'maxModelLen'> => ({
      vocabSize: facts.vocabSize,
      maxModelLen: context.maxModelLen(),
    });
    const [, ...others] = this.#served.values();
    return {
      ...of(this.#first),
      first: this.#first.facts.name,
      isStrict: this.#options.config.strict_parameters,
      ...(others.length > 0 ? { others: Object.fromEntries(others.map((one) => [one.facts.name, of(one)])) } : {}),
    };
  }

  /**
   * Returns the context of a model, or of the first model when the name is undefined or empty. @throws UnknownModel when the model is
   * not served here.
   */
  #of(model: string | undefined): ApiContext {
    return this.#servedOf(model).context;
  }

  #servedOf(model: string | undefined): Served {
    if (model === undefined || model === '') return this.#first;
    const found = this.#served.get(model);
    if (found) return found;
    throw new UnknownModel(model, [...this.#served.keys()]);
  }

  get names(): string[] {
    return [...this.#served.keys()];
  }

  /** Returns for each model whether its prefix index promises blocks that no instance has. */
  readonly indexAlarms = (): { readonly model: string; readonly isAlarmed: boolean }[] =>
    [...this.#served].map(([model, { context }]) => ({ model, isAlarmed: context.metrics.isIndexAlarmed }));

  /** Metrics of the models to list: the first, those in `given`, and others that have instances. */
  metrics(given: readonly string[]): readonly RouterMetrics[] {
    const { first, contexts } = this.shown(given);
    return [...new Set([first, ...contexts()])].map(({ metrics }) => metrics);
  }

  /** Stops serving a model that has no instances any more. */
  drop(name: string): void {
    const served = this.#served.get(name);
    if (!served) return;
    this.#served.delete(name);
    this.#options.core.drop(served.conductor);
    void served.context.codec.close();
    void served.trial?.close();
  }

  /**
   * Returns the first context, the contexts to list, and the logged decisions and number of open promises of all models. Models in
   * `given` are listed even without instances.
   */
  shown(given: readonly string[]): {
    readonly first: ApiContext;
    readonly contexts: () => ApiContext[];
    readonly decisions: () => readonly LoggedDecision[];
    readonly links: () => readonly LinkSnapshot[];
    readonly hardware: (model: string | undefined) => Record<string, unknown>;
    readonly numPromised: () => number;
  } {
    const isShown = ({ facts, view }: Served): boolean => given.includes(facts.name) || view.model !== undefined;
    return {
      first: this.#first.context,
      contexts: () => [...this.#served.values()].filter(isShown).map(({ context }) => context),
      decisions: () =>
        [...this.#served.values()].flatMap(({ conductor }) => conductor.log).sort((a, b) => a.atMs - b.atMs),
      links: () => [...this.#served.values()].flatMap(({ conductor }) => conductor.links.recent),
      hardware: (model) => {
        const { view, conductor } = this.#servedOf(model);
        return hardwareView(view, { ...conductor.links.mean, numLinks: conductor.links.size });
      },
      numPromised: () => [...this.#served.values()].reduce((sum, { conductor }) => sum + conductor.numPromised, 0),
    };
  }

  async close(): Promise<void> {
    const served = [...this.#served.values()];
    await Promise.all(served.map(({ context }) => context.codec.close()));
    for (const { trial } of served) await trial?.close();
    await this.#bodies?.close();
    await this.#conversions.close();
  }
}
