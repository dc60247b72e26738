/** Listeners of the events of requests: the log, metrics, spans, history and rates. */
import type { RequestEvent } from './request_events.ts';
import type { RequestRecord } from './request_record.ts';

/** Is told of the events of requests. */
export interface RequestListener {
  /** Called after each event with the request as the event leaves it. `atMs`: when it happened, on the router's clock. */
  readonly on: (record: RequestRecord, event: RequestEvent, atMs: number) => void;
}
