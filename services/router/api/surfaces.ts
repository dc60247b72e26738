/** The endpoints of a router: finds the one of a path, and answers its requests. Every error is sent in the form of the path's API. */
import { Failure, errorStatus } from '../../../shared/base/failure.ts';
import type { Caller } from '../access/caller.ts';
import type { RequestKind } from '../record/request_kind.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import { finishedHeaders, ignoredHeaders } from './answer_headers.ts';
import { writeAnswer } from './answer_writer.ts';
import { contextFor, type ApiContext } from './api_context.ts';
import { hasPrompts, type ParsedBody } from './body_kind.ts';
import type { ErrorForm } from './errors.ts';
import type { Exchange } from './exchange.ts';
import type { ReadPromptBody } from './prompt_tools.ts';
import { RequestScope } from './request_scope.ts';
import type { Path, Surface, SurfaceHost, SurfaceRoute } from './surface.ts';

/** An endpoint of a router, and what it keeps. */
interface Opened {
  readonly surface: Surface;
  readonly state: unknown;
  /** Kind of its requests, for the log and the counts. */
  readonly requestKind: RequestKind;
  /** Requests that are open, of an endpoint with bounds of its own. */
  numOpen: number;
}

/** A further route, with the state that it is about. */
export interface OpenedRoute extends Pick<SurfaceRoute, 'method' | 'path'> {
  readonly surface: Surface;
  readonly answer: (
    parameters: Readonly<Record<string, string>>,
    query: Readonly<Record<string, string | undefined>>,
    caller: Caller,
  ) => object;
}

/** The endpoints of a router. */
export class Surfaces {
  readonly #opened: readonly Opened[];
  readonly #byPath = new Map<string, Opened>();

  /** @throws Error naming a surface that has a path of another one, no form of errors, or a field of its body that no schema has */
  constructor(surfaces: readonly Surface[], host: SurfaceHost) {
    checkSurfaces(surfaces);
    this.#opened = surfaces.map((surface): Opened => {
      const { counts, operation, paths } = surface;
      const requestKind = { endpoint: paths[0], counts, operation };
      return { surface, requestKind, state: surface.open?.(host), numOpen: 0 };
    });
    for (const opened of this.#opened) for (const path of opened.surface.paths) this.#byPath.set(path, opened);
  }

  /** Paths of all endpoints with their surfaces: those of a versioned API first, then names that other servers have. */
  get paths(): readonly (readonly [path: Path, surface: Surface])[] {
    const all = this.#opened.flatMap(({ surface }) => surface.paths.map((path) => [path, surface] as const));
    const isVersioned = ([path]: readonly [Path, Surface]): boolean => /^\/v\d+\//.test(path);
    return [...all.filter(isVersioned), ...all.filter((one) => !isVersioned(one))];
  }

  /** Paths of the endpoints that are for clients. */
  get clientPaths(): ReadonlySet<string> {
    return new Set(this.paths.flatMap(([path, { audience }]) => (audience === undefined ? [path] : [])));
  }

  /** Routes about what endpoints keep. */
  get routes(): readonly OpenedRoute[] {
    return this.#opened.flatMap(({ surface, state }) =>
      (surface.routes ?? []).map((route): OpenedRoute => {
        const { method, path } = route;
        return { method, path, surface, answer: (...asked) => route.answer(state, ...asked) };
      }),
    );
  }

  /** Returns the form of the errors of a path, which may have a query: that of the surface below whose path it is, else the first one's. */
  errorFormOf(url: string): ErrorForm {
    const queryAt = url.indexOf('?');
    const path = queryAt < 0 ? url : url.slice(0, queryAt);
    let found: { readonly path: string; readonly surface: Surface } | undefined;
    for (const [own, { surface }] of this.#byPath) {
      const isOwn = path.startsWith(own) && (path.length === own.length || path[own.length] === '/');
      if (isOwn && own.length > (found?.path.length ?? 0)) found = { path: own, surface };
    }
    return found?.surface.errors ?? this.usualErrors;
  }

  /** Form of errors where no path says another. */
  get usualErrors(): ErrorForm {
    const [first] = this.#opened;
    if (!first) throw new Error('a router has at least one surface');
    return first.surface.errors;
  }

  /** Answers a request. Resolves when it has ended and nothing of it is left; never rejects. */
  async serve(context: ApiContext, path: Path, exchange: Exchange): Promise<void> {
    const opened = this.#byPath.get(path);
    if (!opened) throw new Error(`no surface has the path ${path}`);
    const { surface } = opened;
    const scope = new RequestScope(context, exchange, surface.bounds);
    const { sink, outcome } = exchange;
    let failure: unknown;
    try {
      await answer(context, opened, scope);
    } catch (error) {
      failure = scope.reason(error);
      if (scope.isGone) return;
      context.metrics.failed(failure);
      if (outcome) outcome.failure = failure;
      const { errors: form } = surface;
      // An error after the first event is sent as an event of its own, and ends the stream.
      if (sink.hasBegun) sink.end(form.event(failure, scope.requestId));
      else {
        sink.begin(errorStatus(failure), form.headers(failure, scope.requestId));
        sink.end(JSON.stringify(form.body(failure, scope.requestId)));
      }
    } finally {
      await scope.dispose(failure);
    }
  }
}

async function answer(all: ApiContext, opened: Opened, scope: RequestScope): Promise<void> {
  const { surface, state, requestKind } = opened;
  const { bounds } = surface;
  const open = (): RequestTrace => scope.open(requestKind);
  const trace = open();
  if (bounds && opened.numOpen >= bounds.maxOpen) throw new Failure('overloaded', bounds.full);
  opened.numOpen++;
  try {
    const bodyBytes = scope.body.bytes.length;
    const { body, failure, prompts, prefix } = await read(all, surface, scope);
    const context = contextFor(scope.caller, all, body.model);
    trace.emit({ kind: 'read', facts: { model: context.servedName } });
    scope.named(body.requestId);
    const headersOf = (own: Record<string, string>): Record<string, string> => ({
      ...own,
      ...surface.headers?.(trace.shownId),
    });
    let made;
    try {
      if (failure) throw new Failure(failure.code, failure.message);
      const request = { context, scope, trace, bodyBytes, body, prompts, prefix, openPrompt: open };
      made = await surface.answer(request, state);
    } catch (error) {
      throw surface.asOwn?.(error, body) ?? error;
    }
    const finished = (): Record<string, string> => headersOf(finishedHeaders(trace, body.ignored, scope.caller));
    if (typeof made !== 'string') {
      if (!surface.events) throw new Error(`${requestKind.endpoint} has no form of events`);
      await writeAnswer(scope, made, { events: surface.events, headers: finished });
      return;
    }
    trace.end('finished', 'stop');
    scope.answer(made, requestKind.counts === 'none' ? headersOf(ignoredHeaders(body.ignored)) : finished());
  } finally {
    opened.numOpen--;
  }
}

function read(all: ApiContext, { kind }: Surface, scope: RequestScope): Promise<ReadPromptBody> {
  const { body, caller } = scope;
  if (hasPrompts(kind)) return all.bodies.readPrompts(kind, body, contextFor(caller, all, undefined), scope);
  return all.bodies.read(kind, body, scope).then((parsed: ParsedBody) => ({ body: parsed, prompts: undefined }));
}

/** @throws Error naming a surface that cannot be served */
function checkSurfaces(surfaces: readonly Surface[]): void {
  const seen = new Set<string>();
  for (const { paths, kind, errors, describe, routes = [] } of surfaces) {
    const [name] = paths;
    const own = [...paths.map((path) => `POST ${path}`), ...routes.map(({ method, path }) => `${method} ${path}`)];
    for (const route of own) {
      if (seen.has(route)) throw new Error(`surface ${name}: ${route} is registered twice; give it another path`);
      seen.add(route);
    }
    // A value that no compiler has seen may lack it.
    if (!(errors as ErrorForm | undefined))
      throw new Error(`surface ${name}: it has no form of errors; set \`errors\``);
    const isField = (field: string): boolean =>
      Object.values(describe.schemas).some(({ shape }) => Object.hasOwn(shape, field));
    const unknown = (kind.fields ?? []).find((field) => !isField(field));
    if (unknown !== undefined)
      throw new Error(`surface ${name}: it reads the field ${unknown}, which its schemas lack; add it to one of them`);
  }
}
