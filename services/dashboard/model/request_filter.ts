/** Filters of the list of requests: as a query of `/api/requests`, and applied to a row that the stream brings. */
import type { RequestRow } from '../../../shared/protocol/router_api.ts';

/** Order of the list. */
type RequestOrder = 'newest' | 'slowest';

/** Filters of the list; an empty text filters nothing. */
export interface RequestFilter {
  /** Part of the id or of the client's id. */
  readonly text: string;
  readonly phase: string;
  readonly model: string;
  readonly tenant: string;
  /** Name of an instance that computed the prompt or generated. */
  readonly node: string;
  readonly order: RequestOrder;
}

/** Filter that all requests pass. */
export const NO_FILTER: RequestFilter = { text: '', phase: '', model: '', tenant: '', node: '', order: 'newest' };

/** Phases that a filter can name, in the order of a request's life. */
export const PHASES = [
  ...['tokenizing', 'placing', 'waiting', 'prefilling', 'loading', 'decoding', 'finished', 'failed', 'cancelled'],
] as const;

/** Phases in which a request has ended. */
const ENDED: ReadonlySet<string> = new Set(['finished', 'failed', 'cancelled']);

/** Whether nothing of the request changes any more. */
export function hasEnded({ phase }: { readonly phase: string }): boolean {
  return ENDED.has(phase);
}

/** Returns the path of a page of rows. `cursor` is that of the page before; null for the first page. */
export function queryOf(filter: RequestFilter, limit: number, cursor: string | null): string {
  const query = new URLSearchParams({ view: 'rows', limit: String(limit) });
  if (filter.text.trim() !== '') query.set('q', filter.text.trim());
  if (filter.phase !== '') query.set('phase', filter.phase);
  if (filter.model !== '') query.set('model', filter.model);
  if (filter.tenant !== '') query.set('tenant', filter.tenant);
  if (filter.node !== '') query.set('node', filter.node);
  if (filter.order === 'slowest') query.set('slowest', '1');
  if (cursor !== null) query.set('cursor', cursor);
  return `api/requests?${query.toString()}`;
}

/** Whether a row passes the filter, as the router decides it. */
export function passes(filter: RequestFilter, row: RequestRow): boolean {
  const text = filter.text.trim();
  const names = [row.id, row.client_id ?? ''];
  if (text !== '' && !names.some((name) => name.includes(text))) return false;
  if (filter.phase !== '' && row.phase !== filter.phase) return false;
  if (filter.model !== '' && row.model !== filter.model) return false;
  if (filter.tenant !== '' && row.tenant !== filter.tenant) return false;
  return filter.node === '' || row.decode === filter.node || row.prefill === filter.node;
}
