/**
 * The models that a router serves: configured models, read from local files, and models of engines that register later, whose
 * facts the router requests from the engine's instance.
 *
 *   an engine registers ──► the model is known ──► admitted to it
 *                      └──► the model is unknown ──► its instance is asked for the model's facts (wait) ──► known
 */
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import { ask, type Network } from '../../../shared/net/network.ts';
import type { Registration } from '../../../shared/protocol/membership.ts';
import { readFacts, type ModelFacts } from '../../../shared/protocol/model_facts.ts';

/** Result of a registration: the model it is admitted to, why it is refused, or why it must wait and for how many milliseconds at most. */
export type Admitted =
  { readonly model: string } | { readonly refused: string } | { readonly wait: string; readonly patienceMs: number };

/** Upper bound of served models, models being requested included (P1). */
const MAX_MODELS = 64;
const ASK_MS = 30_000;
/** Milliseconds an engine keeps retrying its registration while the router requests the model's facts (ASK_MS) and loads the tokenizer. */
const PATIENCE_MS = 90_000;

/** Dependencies of {@link Models}. */
export interface ModelsOptions {
  readonly network: Network;
  readonly log: Log;
  readonly signal: AbortSignal;
  /** Begins to serve a model. Rejects with an Error when the model cannot be served. */
  readonly open: (facts: ModelFacts) => Promise<void>;
}

/** Fields of a model that a registration is compared with. */
export type KnownModel = Pick<ModelFacts, 'name' | 'vocabSize' | 'modelConfig'> & {
  /** Model name in its files, when the model is served under another name; engines register under the name in the files. */
  readonly filesName?: string;
};

/** The models a router serves, and the admission of engines to them. An engine of an unknown model is asked for the model's facts. */
export class Models {
  readonly #options: ModelsOptions;
  /** Known models by name, in the order in which they were added. An engine that names no model joins the first. */
  readonly #known = new Map<string, KnownModel>();
  /** Names of models whose facts are being requested from an instance. */
  readonly #asking = new Set<string>();
  /**
   * Why a model cannot be served, by name. An entry refuses one registration and is then deleted, so that the next registration
   * requests the facts again.
   */
  readonly #failed = new Map<string, string>();

  constructor(options: ModelsOptions) {
    this.#options = options;
  }

  /** Removes a model that has no instances any more. A later registration requests the model's facts again. */
  forget(name: string): void {
    this.#known.delete(name);
  }

  add({ name, vocabSize, modelConfig, filesName }: KnownModel): void {
    this.#known.set(name, { name, vocabSize, modelConfig, ...(filesName === undefined ? {} : { filesName }) });
  }

  admit({ member, engine }: Registration): Admitted {
    if (!engine) return { refused: `${member.name} has no engine` };
    const { modelName } = engine;
    const all = [...this.#known.values()];
    // Look the model up by name first: models with different weights may have the same shape.
    const known =
      modelName === undefined
        ? all[0]
        : (all.find(({ filesName }) => filesName === modelName) ?? this.#known.get(modelName));
    if (known) return admitTo(known, { member, engine });
    return this.#ask(modelName ?? '', member);
  }

  #ask(name: string, { address, name: member }: Registration['member']): Admitted {
    const why = this.#failed.get(name);
    if (why !== undefined) {
      this.#failed.delete(name);
      return { refused: `${member} serves ${name}, which this router cannot: ${why}` };
    }
    if (this.#known.size + this.#asking.size >= MAX_MODELS && !this.#asking.has(name))
      return { refused: `this router serves at most ${MAX_MODELS} models` };
    if (!this.#asking.has(name)) {
      this.#asking.add(name);
      void this.#learn(name, address).finally(() => {
        this.#asking.delete(name);
      });
    }
    return { wait: `the router asks ${member} for the tokenizer of ${name}`, patienceMs: PATIENCE_MS };
  }

  async #learn(name: string, address: string): Promise<void> {
    const { network, log, signal, open } = this.#options;
    try {
      const facts = await readFacts(ask(network, address, 'describe', {}, { signal, timeoutMs: ASK_MS }));
      if (facts.name !== name) throw new Failure('internal', `it reports model ${facts.name}`);
      await open(facts);
      this.add(facts);
      log.info({ model: name, address }, 'serving another model');
    } catch (error) {
      this.#failed.set(name, messageOf(error));
      log.warn({ model: name, address, error: messageOf(error) }, 'a model cannot be served');
    }
  }
}

/**
 * Admits an engine to a model with the engine's model name. Refuses an engine whose vocabulary size or model config differs, since it
 * serves another model.
 */
export function admitTo(
  { name, vocabSize, modelConfig }: KnownModel,
  { member, engine }: Pick<Registration, 'member' | 'engine'>,
): Admitted {
  if (engine?.vocabSize !== vocabSize) {
    return {
      refused: `${member.name} serves another model: vocabulary ${engine?.vocabSize}, the router's model has ${vocabSize}`,
    };
  }
  if (engine.modelConfig !== modelConfig) {
    return {
      refused: `${member.name} serves another model: its config.json says something else than that of the router's ${name}`,
    };
  }
  return { model: name };
}
