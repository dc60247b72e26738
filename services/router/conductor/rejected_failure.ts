/** The failure of a request that is refused before anything is computed for it. */
import { Failure, type FailureCode } from '../../../shared/base/failure.ts';
import type { Rejection } from '../../../shared/placement/policy.ts';

/** Why a request is refused: a rule about its targets, a bound of the router, or no instance that could run it. */
export type RejectionReason = Rejection['reason'] | 'draining' | 'max_requests' | 'no_instance';

/** A request is refused; the reason goes into the metrics. */
export class RejectedFailure extends Failure {
  readonly reason: RejectionReason;

  constructor(
    code: FailureCode,
    message: string,
    { reason, retryAfterMs }: { readonly reason: RejectionReason; readonly retryAfterMs?: number | undefined },
  ) {
    super(code, message, { retryAfterMs });
    this.reason = reason;
  }
}
