/** Properties of the cards of one request. */
import type { RequestDetail } from '../../../../shared/protocol/request_detail.ts';

/** A request, and when it was read, on the router's clock. */
export interface RequestCard {
  readonly request: RequestDetail;
  readonly at: number | undefined;
}
