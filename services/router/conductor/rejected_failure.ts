/** The failure of a request that is refused before anything is computed for it. */
import { Failure, type FailureCode } from '../../../shared/base/failure.ts';
import type { Rejection } from '../../../shared/placement/policy.ts';

/** Why a request is refused: a rule about its targets, a bound of the router, no instance that could run it, or a limit of its tenant. */
export type RejectionReason = Rejection['reason'] | 'draining' | 'max_requests' | 'no_instance' | 'rate_limit';

interface RejectionFacts {
  readonly reason: RejectionReason;
  readonly retryAfterMs?: number | undefined;
  /** Whether the same request will be refused again, however long its client waits; undefined: it may be served later. */
  readonly isFinal?: boolean | undefined;
}

/** A request is refused; the reason goes into the metrics. */
export class RejectedFailure extends Failure {
  readonly reason: RejectionReason;
  readonly isFinal: boolean;

  constructor(code: FailureCode, message: string, { reason, retryAfterMs, isFinal = false }: RejectionFacts) {
    super(code, message, { retryAfterMs });
    this.reason = reason;
    this.isFinal = isFinal;
  }
}
