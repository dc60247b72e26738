/**
 * Schemas of the parts of `/api/*` that commands read (`penstock top`, `penstock doctor`); the page has the types of router_api.ts alone, and loads
 * no zod. A reader is lenient: a field that an older router lacks, or that has another type, has its stand-in. A field that the router
 * does not write, or writes with another type, does not compile here.
 */
import { z } from 'zod';
import { poolFields, type PoolLoad } from './load_fields.ts';
import type { ClusterEvent, EventPage, NodeView, PoolBody, TierView } from './router_api.ts';

/** Values that a schema may return for a value of the router: parts of it, and any text where the router chooses among some. */
type Part<Value> = Value extends string
  ? string
  : Value extends readonly (infer One)[]
    ? readonly Part<One>[]
    : Value extends object
      ? { readonly [Name in keyof Value]?: Part<Value[Name]> | undefined }
      : Value;

type Shape<Body> = { readonly [Name in keyof Body]?: z.ZodType<Part<Body[Name]> | undefined> };

/** Returns a function that makes the schema of a part of `Body` from the schemas of its fields. */
function partOf<Body>() {
  return <Fields extends Shape<Body>>(fields: Fields & Record<Exclude<keyof Fields, keyof Body>, never>) =>
    z.object<Fields>(fields);
}

/** Returns a schema that reads anything but an object as an empty one. */
function orEmpty<Schema extends z.ZodType>(schema: Schema) {
  const isObject = (value: unknown): boolean => typeof value === 'object' && value !== null && !Array.isArray(value);
  return z.preprocess((value) => (isObject(value) ? value : {}), schema);
}

const text = z.union([z.string(), z.number().transform(String)]).catch('');
const count = z.number().catch(0);

/** The plain values of a load, each with its stand-in. */
const loadShape = Object.fromEntries(
  poolFields.map(({ name, absent }) => [
    name,
    z
      .number()
      .nullable()
      .catch(absent)
      .transform((value) => value ?? absent),
  ]),
) as unknown as { readonly [Name in keyof PoolLoad]: z.ZodType<PoolLoad[Name]> };

const tierSchema = partOf<TierView>()({ bytes: count, capacity_bytes: count, hits: count, misses: count });

const nodeSchema = partOf<NodeView>()({
  name: text,
  epoch: text,
  role: text,
  model: text,
  state: text,
  address: text,
  unreachable: z.string().nullable().catch(null),
  ...loadShape,
  tiers: z.record(z.string(), orEmpty(tierSchema)).catch({}),
  fetched_bytes: z.record(z.string(), count).catch({}),
});
/** One process of the cluster, as commands read it. */
export type ReadNode = z.infer<typeof nodeSchema>;

const poolSchema = partOf<PoolBody>()({
  as_of: z.number().optional().catch(undefined),
  health: orEmpty(partOf<PoolBody['health']>()({ problems: z.array(text).catch([]) })),
  bus: partOf<PoolBody['bus']>()({
    name: text,
    connected: z.boolean().catch(false),
    unverified: count,
    replayed: count,
  })
    .optional()
    .catch(undefined),
  policy: orEmpty(partOf<PoolBody['policy']>()({ places_by: text })),
  index_keys: count,
  router: orEmpty(partOf<PoolBody['router']>()({ requests: count })),
  nodes: z.array(orEmpty(nodeSchema)).optional().catch(undefined),
});
/** Body of `/api/pool`, as commands read it. `nodes` is undefined for a body of something else. */
export type ReadPool = z.infer<typeof poolSchema>;

const eventSchema = partOf<ClusterEvent>()({ at: count, kind: text, text, node: z.string().nullable().catch(null) });
/** One event of the cluster, as commands read it. */
export type ReadEvent = z.infer<typeof eventSchema>;

const eventPageSchema = partOf<EventPage>()({ events: z.array(orEmpty(eventSchema)).catch([]) });

/** Reads a body of `/api/pool`, and its first `maxNodes` nodes. */
export function readPool(body: unknown, maxNodes = Infinity): ReadPool {
  const pool = body as { readonly nodes?: unknown } | null | undefined;
  const nodes = Array.isArray(pool?.nodes) ? pool.nodes.slice(0, maxNodes) : undefined;
  return orEmpty(poolSchema).parse(nodes ? { ...pool, nodes } : body);
}

/** Returns the events of a body of `/api/events`; none for a body of something else. */
export function readEventPage(body: unknown): readonly ReadEvent[] {
  return orEmpty(eventPageSchema).parse(body).events;
}
