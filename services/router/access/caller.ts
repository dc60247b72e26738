/**
 * Who sends a request. Made once, before the body is read; whatever a router does for a request takes tenant, models, targets and limits from
 * here.
 */
import type { Targets } from '../../../shared/placement/policy.ts';

/** Longest target of a request in milliseconds: a day. */
export const MAX_TARGET_MS = 86_400_000;

/** Limits of a caller's requests. Those of a tenant hold for all its keys together, and are divided among the routers of a cluster. */
export interface CallerLimits {
  /** Requests of its tenant in a minute; undefined: any number. */
  readonly requestsPerMinute?: number | undefined;
  /** Tokens of its tenant in a minute, of prompts and answers, cached ones included; undefined: any number. */
  readonly tokensPerMinute?: number | undefined;
  /** Requests of its tenant in flight (P1); undefined: as many as the router takes. */
  readonly maxRequests: number | undefined;
  /** Samples of one request, over all its prompts; undefined: as many as the API takes. */
  readonly maxSamples: number | undefined;
  /** Whether its requests may state their priority. */
  readonly allowsPriority: boolean;
}

/** Who sends a request. */
export interface Caller {
  /** Name of its key; '' where a router asks for none. */
  readonly key: string;
  /** Name of the tenant, which instances are told; '' where a router asks for no keys. */
  readonly tenant: string;
  /** Tenant in the scope of its blocks and of all that is remembered of its requests; '' for one that shares them. */
  readonly cacheTenant: string;
  /** Whether it may use metrics, `/api/*` and the dashboard, and see where its requests ran. */
  readonly isAdmin: boolean;
  /** Names of the models that it may use, at least one; undefined: all. */
  readonly models: readonly string[] | undefined;
  /** Targets of all its requests, which their headers may tighten; undefined: those of the configuration. */
  readonly targets: Targets | undefined;
  readonly limits: CallerLimits;
  /** Share of its tenant where requests of several tenants wait, relative to 1 of others; undefined: 1. */
  readonly weight?: number | undefined;
  /**
   * Most levels of priority by which its requests go before those of other tenants; undefined: 0, so that a priority orders requests
   * within their tenant only.
   */
  readonly maxPriority?: number | undefined;
  /** Aborts, with the failure that its streams end with, when its key is removed; undefined: they are finished. */
  readonly revoked?: AbortSignal | undefined;
}

/** Headers of a request, by their names in lower case. */
export type AskingHeaders = Readonly<Record<string, string | readonly string[] | undefined>>;

/** The part of a request that says who sends it. */
export interface Asking {
  /** Path and query. */
  readonly url: string;
  readonly headers: AskingHeaders;
}

/** Returns who sends a request. @throws Failure `invalid_api_key` for a client that may send none */
export type ResolveCaller = (asking: Asking) => Caller;

/** Returns the caller of a router that asks for no keys: everybody may use everything. */
export function oneCaller({ allow_priority: allowsPriority }: { readonly allow_priority: boolean }): ResolveCaller {
  const caller: Caller = {
    key: '',
    tenant: '',
    cacheTenant: '',
    isAdmin: true,
    models: undefined,
    targets: undefined,
    limits: { maxRequests: undefined, maxSamples: undefined, allowsPriority },
  };
  return () => caller;
}
