/**
 * Series of a router's requests by tenant. MAX_TENANTS tenants have series under their own names, all others together under OTHER: the first ones
 * of the file of keys, and later ones while there is room. A name that was shown stays until the router ends, so that no series breaks off.
 */
import { Registry } from 'prom-client';
import { CollectedMetric } from '../../../shared/node/metrics/collected_metric.ts';
import type { PrefillEvent, RequestEvent } from '../record/request_events.ts';
import type { RequestListener } from '../record/request_listener.ts';
import type { RequestRecord } from '../record/request_record.ts';
import type { EngineCharges } from './engine_charges.ts';

/** Tenants with series of their own (P1). */
export const MAX_TENANTS = 64;
/** Name of all further tenants together. */
export const OTHER = 'other';

const TOO_MANY_REQUESTS = 429;

const series = {
  promptTokens: [
    'counter',
    'penstock_tenant_prompt_tokens_total',
    'tokens of prompts of a tenant that were placed; a prompt with several samples counts once',
  ],
  cachedTokens: [
    'counter',
    'penstock_tenant_cached_tokens_total',
    'prompt tokens of a tenant that were not computed for their request',
  ],
  outputTokens: [
    'counter',
    'penstock_tenant_output_tokens_total',
    'tokens generated for a tenant, counted as they come',
  ],
  throttled: [
    'counter',
    'penstock_tenant_throttled_total',
    'requests of a tenant that were answered with 429: over a limit, or refused for their targets',
  ],
  waiting: ['gauge', 'penstock_tenant_waiting', 'prompts of a tenant that were accepted and have no first token yet'],
  engineMs: [
    'counter',
    'penstock_tenant_engine_ms_total',
    'milliseconds of engines that requests of a tenant took: rows, attended pairs and KV read, by the step times that instances have fitted, and an equal part of the constant of a step; hits cost nothing',
  ],
} as const satisfies Record<string, readonly [type: 'counter' | 'gauge', name: string, help: string]>;

type SeriesName = keyof typeof series;

/** Values of one tenant, or of all others. */
class TenantValues {
  readonly counts: Record<SeriesName, number> = {
    promptTokens: 0,
    cachedTokens: 0,
    outputTokens: 0,
    throttled: 0,
    waiting: 0,
    engineMs: 0,
  };
  /** Requests by status class, such as `2xx`. */
  readonly statuses = new Map([['2xx', 0]]);
}

/** Counts of the requests of each tenant. */
export class TenantSeries implements RequestListener {
  readonly registry = new Registry();
  readonly #listed: () => Iterable<string>;
  readonly #charges: Pick<EngineCharges, 'tokenMs' | 'promptMs'>;
  readonly #named = new Map<string, TenantValues>();
  #others: TenantValues | undefined;

  /** `listed`: the tenants that there are, in the order in which they get series; empty where a router asks for no keys. */
  constructor(listed: () => Iterable<string>, charges: Pick<EngineCharges, 'tokenMs' | 'promptMs'>) {
    [this.#listed, this.#charges] = [listed, charges];
    for (const [key, [type, name, help]] of Object.entries(series))
      new CollectedMetric(this.registry, type, { name, help, labelNames: ['tenant'] }, () =>
        this.#all().map(([tenant, { counts }]) => ({ labels: { tenant }, value: counts[key as SeriesName] })),
      );
    const name = 'penstock_tenant_requests_total';
    const help =
      'HTTP requests of a tenant to the API, by status class; 4xx are refused ones, and those whose client left first';
    new CollectedMetric(this.registry, 'counter', { name, help, labelNames: ['tenant', 'status'] }, () =>
      this.#all().flatMap(([tenant, { statuses }]) =>
        [...statuses].map(([status, value]) => ({ labels: { tenant, status }, value })),
      ),
    );
  }

  /** Whether the router knows tenants. */
  get isEmpty(): boolean {
    return this.#all().length === 0;
  }

  /** Counts an HTTP request to the API, which has ended. */
  answered(tenant: string, status: number): void {
    const values = this.#of(tenant);
    if (!values) return;
    const { statuses, counts } = values;
    const statusClass = `${Math.floor(status / 100)}xx`;
    statuses.set(statusClass, (statuses.get(statusClass) ?? 0) + 1);
    if (status === TOO_MANY_REQUESTS) counts.throttled++;
  }

  on(record: RequestRecord, event: RequestEvent): void {
    const values = this.#of(record.facts.names.tenant);
    if (!values) return;
    const { counts } = values;
    switch (event.kind) {
      case 'token':
        counts.outputTokens++;
        counts.engineMs += this.#tokenMs(record);
        break;
      case 'opened':
        counts.waiting += awaitsToken(record);
        break;
      case 'firstToken':
        if (event.isFirst) counts.waiting -= awaitsToken(record);
        counts.engineMs += this.#ownPromptMs(record);
        break;
      case 'prefill':
        counts.engineMs += this.#prefillMs(event);
        break;
      case 'ended':
        if (record.ttftMs === undefined) counts.waiting -= awaitsToken(record);
        countPrompt(counts, record);
        break;
      // These count nothing.
      case 'read':
      case 'placing':
      case 'expected':
      case 'waiting':
      case 'rejected':
      case 'placed':
      case 'missed':
      case 'reasoningToken':
      case 'attempt':
      case 'lost':
      case 'rewritten':
    }
  }

  #tokenMs({ facts, counts }: RequestRecord): number {
    const instance = counts.attempts.at(-1)?.decode ?? '';
    return this.#charges.tokenMs(instance, facts.promptTokens + counts.outputTokens - 1);
  }

  /** Milliseconds of the rows that the instance which generates computed before its first token. */
  #ownPromptMs({ facts, counts, kind }: RequestRecord): number {
    const { decode = '', report } = counts.attempts.at(-1) ?? {};
    const numComputed = report?.computedTokens ?? 0;
    const start = Math.max(0, facts.promptTokens + counts.outputTokens - numComputed);
    // The last row gives a token, and is charged with it.
    return this.#charges.promptMs(decode, { start, count: numComputed - (kind.counts === 'embedding' ? 0 : 1) });
  }

  /** Milliseconds of a prefill when it ends: of the rows that it has reported. */
  #prefillMs({ entry }: PrefillEvent): number {
    const { name, outcome, readyTokens, computedTokens: count } = entry;
    if (outcome === 'running') return 0;
    return this.#charges.promptMs(name, { start: Math.max(0, readyTokens - count), count });
  }

  /** Returns the values of a tenant; undefined for none. */
  #of(tenant: string | undefined): TenantValues | undefined {
    if (tenant === undefined || tenant === '') return undefined;
    const known = this.#named.get(tenant);
    if (known) return known;
    if (this.#named.size < MAX_TENANTS) this.#name();
    return this.#named.get(tenant) ?? (this.#others ??= new TenantValues());
  }

  /** Gives tenants series while there is room. */
  #name(): void {
    for (const tenant of this.#listed()) {
      if (this.#named.size >= MAX_TENANTS) return;
      if (tenant !== OTHER && !this.#named.has(tenant)) this.#named.set(tenant, new TenantValues());
    }
  }

  #all(): readonly (readonly [tenant: string, values: TenantValues])[] {
    if (this.#named.size < MAX_TENANTS) this.#name();
    return [...this.#named, ...(this.#others ? [[OTHER, this.#others] as const] : [])];
  }
}

/** 1 for a prompt that gets a first token or an embedding, 0 for other requests and for further samples of a prompt. */
function awaitsToken({ kind, sampleOf }: RequestRecord): 0 | 1 {
  return kind.counts === 'none' || sampleOf !== undefined ? 0 : 1;
}

/** Counts the tokens of a prompt that was placed, with the first of its samples. */
function countPrompt(values: TenantValues['counts'], { counts, facts, sampleOf }: RequestRecord): void {
  if (sampleOf !== undefined || counts.attempts.length === 0) return;
  values.promptTokens += facts.promptTokens;
  values.cachedTokens += Math.min(facts.promptTokens, counts.tokens.cached);
}
