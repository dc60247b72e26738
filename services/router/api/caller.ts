/**
 * Who sends a request. Made once, before the body is read; whatever a router does for a request takes tenant, salt, targets and limits from
 * here.
 */
import type { Targets } from '../../../shared/placement/policy.ts';

/** Limits of a caller's requests. */
interface CallerLimits {
  /** Prompts of its tenant in flight (P1); undefined: as many as the router takes. */
  readonly maxRequests: number | undefined;
  /** Whether its requests may state their priority. */
  readonly allowsPriority: boolean;
}

/** Who sends a request. */
export interface Caller {
  /** Name of the tenant, which instances are told; '' where a router has only one. */
  readonly tenant: string;
  /**
   * Salt of all its prompts: a request's own `cache_salt` is joined to it, and never replaces it. '' where a router has one tenant; where it
   * has several, a secret each, since whoever knows another's salt can share its blocks.
   */
  readonly salt: string;
  /** Added to the priority that a request states; the lower is served first. */
  readonly priority: number;
  /** Targets of all its requests, which their headers may tighten; undefined: those of the configuration. */
  readonly targets: Targets | undefined;
  readonly limits: CallerLimits;
  /** Share of its tenant where requests of several tenants wait, relative to 1 of others; undefined: 1. */
  readonly weight?: number;
  /**
   * Most levels of priority by which its requests go before those of other tenants; undefined: 0, so that a priority orders requests
   * within their tenant only.
   */
  readonly maxPriority?: number;
}

/** Returns who sends a request with these headers. @throws Failure for a client that may send none */
export type ResolveCaller = (headers: Readonly<Record<string, string | readonly string[] | undefined>>) => Caller;

/** Returns the caller of a router that has one tenant. */
export function oneCaller({ allow_priority: allowsPriority }: { readonly allow_priority: boolean }): ResolveCaller {
  const caller: Caller = {
    tenant: '',
    salt: '',
    priority: 0,
    targets: undefined,
    limits: { maxRequests: undefined, allowsPriority },
  };
  return () => caller;
}

/** Returns the salt of a request's cache scope: its own, joined to that of its caller. Two pairs never make the same one. */
export function joinedSalt(salt: string, own: string): string {
  return salt === '' ? own : JSON.stringify([salt, own]);
}
