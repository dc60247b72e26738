/** Limits of a request, and the failure that names the parameter that exceeds them. */
import { Failure, type FailureCode } from '../../../shared/base/failure.ts';
import type { CacheScope } from '../../../shared/kv/format.ts';

/** Upper bounds for a request's parameters, from the router's first model, and the limits of the other models. */
export interface BodyLimits {
  readonly vocabSize: number;
  readonly maxModelLen: number;
  /** Whether unknown keys are refused (`strict_parameters`). */
  readonly isStrict: boolean;
  /** Whether the request may state its priority; undefined: it may not. */
  readonly allowsPriority?: boolean | undefined;
  /** Samples of a request over all its prompts, by the limits of the caller's tenant; undefined: as many as the API takes. */
  readonly maxSamples?: number | undefined;
  /** Tenant in the scope of the caller's blocks; undefined or empty: it shares them. */
  readonly tenant?: string | undefined;
  /** Name of the router's first model. */
  readonly first?: string | undefined;
  /** Limits of the other served models, by name. */
  readonly others?: Readonly<Record<string, ModelLimits>>;
  /** Names of the models that the caller may use, the first of which is that of a body that names none; undefined: all. */
  readonly models?: readonly string[] | undefined;
}

type ModelLimits = Pick<BodyLimits, 'vocabSize' | 'maxModelLen'>;

/**
 * Returns the limits of the named model. An unknown model gets the limits of the first, because it is refused later. @throws UnknownModel for one
 * that the caller may not use, before anything is judged by what that model is like
 */
export function limitsOf(limits: BodyLimits, model: string | undefined): BodyLimits {
  const { others = {}, models, first } = limits;
  const name = models ? allowedModel(models, model) : model;
  return name !== undefined && name !== first && Object.hasOwn(others, name) ? { ...limits, ...others[name] } : limits;
}

/** Returns the model that a body names, or the first that its caller may use. @throws UnknownModel for one that it may not use */
export function allowedModel(models: readonly string[], model: string | undefined): string {
  const name = (model ?? '') === '' ? models[0] : model;
  if (name === undefined || !models.includes(name)) throw new UnknownModel(name ?? '', models);
  return name;
}

/** Returns the priority of a request: the wished one where requests may state it, else 0, and `ignored` names it. */
export function priorityOf(wished: number | undefined, { allowsPriority }: BodyLimits, ignored: string[]): number {
  if (wished === undefined || wished === 0) return 0;
  if (allowsPriority === true) return wished;
  ignored.push('priority');
  return 0;
}

/** Returns the scope of a request's blocks, by the salt that its body names. */
export function scopeOf(salt: string | undefined, { tenant = '' }: BodyLimits): CacheScope {
  return { adapter: '', tenant, salt: salt ?? '' };
}

/** A refused parameter: which one, for the `param` of the error object. */
export class ParameterFailure extends Failure {
  readonly param: string | null;

  constructor(message: string, param: string | null, code: FailureCode = 'invalid_request') {
    super(code, message);
    this.param = param;
  }
}

/** The model that a request names is not served here. */
export class UnknownModel extends ParameterFailure {
  constructor(model: string, served: readonly string[]) {
    super(
      `The model \`${model.slice(0, 200)}\` does not exist; this cluster serves ${served.map((name) => `\`${name}\``).join(', ')}`,
      'model',
      'model_not_found',
    );
  }
}

/** A ParameterFailure as plain data, which can cross threads. */
export interface Refusal {
  readonly message: string;
  readonly param: string | null;
  readonly code: FailureCode;
}

/** Returns a ParameterFailure as plain data. @throws `error` itself when it is anything else. */
export function refusalOf(error: unknown): Refusal {
  if (!(error instanceof ParameterFailure)) throw error;
  return { message: error.message, param: error.param, code: error.code };
}
