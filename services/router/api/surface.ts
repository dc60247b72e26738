/**
 * An endpoint of an API as a value: everything that a router knows of it. Routes, threads that read bodies, the description of the API, forms
 * of errors, counts and rates come from these values.
 */
import type { z } from 'zod';
import type { Clock } from '../../../shared/base/clock.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import type { Caller } from '../access/caller.ts';
import type { RequestKind } from '../record/request_kind.ts';
import type { RequestTrace } from '../record/request_trace.ts';
import type { AnswerWriters } from './answer_writer.ts';
import type { ApiContext } from './api_context.ts';
import type { BodyKind, ParsedBody, PromptBodyKind } from './body_kind.ts';
import type { ErrorForm } from './errors.ts';
import type { EventForm } from './event_stream.ts';
import type { LimitHeaders } from './limit_headers.ts';
import type { RequestScope, ScopeBounds } from './request_scope.ts';

/** A path of the API. */
export type Path = `/${string}`;

/** Parts of a router that an endpoint may keep things with. */
export interface SurfaceHost {
  readonly clock: Clock;
  readonly index: PrefixIndex;
  readonly view: MembersView;
}

/** A request whose body is read. */
export interface SurfaceRequest<B extends ParsedBody = ParsedBody> {
  /** Context of the model that the body names. */
  readonly context: ApiContext;
  readonly scope: RequestScope;
  /** Trace of the first prompt. */
  readonly trace: RequestTrace;
  /** Bytes that the body had. */
  readonly bodyBytes: number;
  readonly body: B;
  /** Token ids of each prompt; undefined where no thread has encoded them. */
  readonly prompts: readonly Uint32Array[] | undefined;
  /** End of a chat's prompt that belongs to the answer. */
  readonly prefix?: string | undefined;
  /** Opens the trace of a further prompt. @throws Failure `overloaded` when too many are in flight */
  readonly openPrompt: () => RequestTrace;
}

/** A further route, about what an endpoint keeps for its clients. */
export interface SurfaceRoute<S = unknown> {
  readonly method: 'GET' | 'DELETE';
  /** Path with the names of its parameters in braces. */
  readonly path: Path;
  /** Returns the answer to this caller: a value, or JSON as bytes. @throws Failure for what is not there, not its own, or not allowed */
  answer(
    state: S,
    parameters: Readonly<Record<string, string>>,
    query: Readonly<Record<string, string | undefined>>,
    caller: Caller,
  ): object;
}

/** Bounds of an endpoint that takes no place of requests. */
interface SurfaceBounds extends ScopeBounds {
  /** Requests at the same time (P1); further ones are refused. */
  readonly maxOpen: number;
  /** Error of a request over `maxOpen`. */
  readonly full: string;
}

/** An endpoint. `B` is its parsed body, `S` what it keeps from one request to another. */
export interface Surface<B extends ParsedBody = ParsedBody, S = unknown> {
  /** Its paths: the first is its name in logs and counts, the others are names that other servers have for it. */
  readonly paths: readonly [Path, ...Path[]];
  readonly kind: BodyKind<B> | PromptBodyKind<B>;
  readonly counts: RequestKind['counts'];
  readonly operation?: RequestKind['operation'];
  /** Whom it is for: `operators` are those who look at the cluster, whose paths are closed to pages of other origins and to keys of clients. Left out: clients. */
  readonly audience?: 'operators';
  readonly errors: ErrorForm;
  /** Form of the headers about limits of its tenant; left out: OpenAI's. */
  readonly limitHeaders?: LimitHeaders;
  /** Form of its streams; left out where no answer is streamed. */
  readonly events?: EventForm;
  readonly describe: {
    /** One sentence on it, for the description of the API. */
    readonly summary: string;
    /** Schemas of its bodies, by the names that the description has for them: those that requests are checked with. */
    readonly schemas: Readonly<Record<string, z.ZodObject>>;
    /** Description of its further routes. */
    readonly routes?: string;
  };
  readonly routes?: readonly SurfaceRoute<S>[];
  /** Left out: those of requests. */
  readonly bounds?: SurfaceBounds;
  /** Creates what the endpoint keeps. */
  open?(host: SurfaceHost): S;
  /** Returns further headers of its answers. */
  headers?(requestId: string): Readonly<Record<string, string>>;
  /** Returns an error of the request as its client knows the parameters. */
  asOwn?(error: unknown, body: B): unknown;
  /** Returns the whole answer as JSON, or the writers of generated output. @throws Failure when the request is refused or cannot be finished */
  answer(request: SurfaceRequest<B>, state: S): Promise<string | AnswerWriters>;
}
