/** Routes of the request log: pages of requests that are searched, and one request as a whole. */
import type { RequestDetail } from '../../../shared/protocol/request_detail.ts';
import type { FastifyInstance } from 'fastify';
import { ParameterFailure } from '../api/parameter_failure.ts';
import { isChosen, PHASES, rowOf, type RequestChoice } from '../observe/request_row.ts';
import { requestJson } from '../record/request_json.ts';
import type { LoggedRequest } from '../record/logged_request.ts';
import type { RequestLog } from '../record/request_log.ts';
import type { HttpApp } from '../router.ts';
import { compressed } from './compressed.ts';
import { choicesOf, integerOf, refuseUnknown, switchOf, textOf, type Query } from './query.ts';
import { adminRoute } from './route_access.ts';

const DEFAULT_LISTED = 100;
/** Requests of one page; a page of full entries takes a tenth of a second of this process. */
const MAX_LISTED = 1_000;

const views = ['full', 'rows'];
const parameters = [
  ...[
    'limit',
    'view',
    'cursor',
    'phase',
    'model',
    'tenant',
    'node',
    'endpoint',
    'min_ttft_ms',
    'error',
    'reason',
    'since',
    'q',
  ],
  'slowest',
];

/** Adds `/api/requests` and `/api/requests/{id}`. */
export function addRequestRoutes(app: FastifyInstance, { context, observer }: HttpApp): void {
  const { requests, promptLog, clock } = context;
  app.get<{ Querystring: Query }>('/api/requests', { ...compressed, ...adminRoute }, ({ query }) => {
    refuseUnknown(query, parameters);
    return { as_of: observer.now.wallMs, ...pageOf(requests, query, clock.nowMs()) };
  });
  app.get<{ Params: { id: string } }>('/api/requests/:id', adminRoute, ({ params }, reply): RequestDetail => {
    const found = requests.all().find(({ id }) => id === params.id);
    if (found)
      return { as_of: observer.now.wallMs, ...requestJson(found.record, clock.nowMs()), ...promptLog?.of(found.id) };
    void reply.status(404);
    throw new ParameterFailure(
      `no request ${JSON.stringify(params.id.slice(0, 128))} is kept: its id stands in \`id\` of /api/requests and in the header x-penstock-request`,
      'id',
      'not_found',
    );
  });
}

/** Returns the page of requests that a query asks for, at `nowMs` on the router's clock. @throws ParameterFailure for a parameter that is not allowed. */
export function pageOf(
  requests: Pick<RequestLog, 'all'>,
  query: Query,
  nowMs: number,
): { readonly requests: readonly object[]; readonly next: string | null; readonly kept: number } {
  const limit = integerOf(query, 'limit', DEFAULT_LISTED, { least: 1, most: MAX_LISTED });
  const [view = 'full', second] = choicesOf(query, 'view', views) ?? [];
  if (second !== undefined) throw new ParameterFailure('view: full or rows', 'view');
  const before = integerOf(query, 'cursor', Infinity, { least: 1 });
  const isSlowest = switchOf(query, 'slowest');
  if (isSlowest && before !== Infinity)
    throw new ParameterFailure('cursor: the slowest requests have one page only', 'cursor');
  const choice = choiceOf(query);
  const all = requests.all();
  const chosen = all.filter((request) => request.sequence < before && isChosen(request, choice));
  if (isSlowest) chosen.sort((a, b) => slowness(b, nowMs) - slowness(a, nowMs));
  const page = chosen.slice(0, limit);
  const last = page.at(-1);
  return {
    requests: page.map(({ record }) => (view === 'rows' ? rowOf : requestJson)(record, nowMs)),
    next: !isSlowest && last && chosen.length > page.length ? String(last.sequence) : null,
    kept: all.length,
  };
}

function choiceOf(query: Query): RequestChoice {
  return {
    phases: choicesOf(query, 'phase', PHASES),
    model: textOf(query, 'model'),
    tenant: textOf(query, 'tenant'),
    node: textOf(query, 'node'),
    endpoint: textOf(query, 'endpoint'),
    minTtftMs: integerOf(query, 'min_ttft_ms', undefined, { least: 0 }),
    error: textOf(query, 'error'),
    reason: textOf(query, 'reason'),
    since: integerOf(query, 'since', undefined, { least: 0 }),
    id: textOf(query, 'q'),
  };
}

/** Returns the milliseconds by which a request counts as slow: to its first token, or in all when it had none. */
function slowness(request: LoggedRequest, nowMs: number): number {
  return request.ttftMs ?? request.totalMs ?? request.record.elapsedMs(nowMs);
}
