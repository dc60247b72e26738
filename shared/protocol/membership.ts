/** Bus messages of processes about themselves: registration, heartbeat, the list of members. JSON, so that people can read them. */
import { z } from 'zod';
import { Failure } from '../base/failure.ts';
import { bucketSchema, residencySchema } from './engine_histograms.ts';
import { workSchema } from './instance_work.ts';
import { loadFields, type LOAD_FIELDS, type LoadName } from './load_fields.ts';

/** Subjects of the bus messages, without the cluster's name. */
export const subjects = {
  /** Published by a process that looks for routers; every router answers with its notice. */
  hello: 'cluster.hello',
  /** Published by every router once a second. */
  router: 'cluster.router',
  /** Published by a router when a store has joined or left. */
  stores: 'cluster.stores',
  /** Published by a router at which the placement policy was set. */
  policy: 'cluster.policy',
  /** Published by a router when it shuts down. */
  routerGone: 'cluster.router.gone',
  heartbeat: 'cluster.heartbeat',
  goodbye: 'cluster.goodbye',
  blocks: 'blocks.events',
  /** Published by a router when a request ended with tokens that its tokenizer would not make of their text. */
  answers: 'texts.answers',
  /** Served by the router with that epoch: answers, before a process has loaded its model, whether it would be accepted. */
  inquire: (router: string) => `cluster.inquire.${router}`,
  /** Served by the router with that epoch: makes a process a member. */
  register: (router: string) => `cluster.register.${router}`,
  /** Published to the process with that epoch by a router that gets its heartbeats and does not have it as a member. */
  unknownMember: (epoch: string) => `cluster.unknown_member.${epoch}`,
  /** Published to the process with that epoch by a router: whether the router can call it at its address. */
  reach: (epoch: string) => `cluster.reach.${epoch}`,
  /** Published to the end of the bus with that epoch by another end, which asks whether it lives or answers that it does (cluster_bus.ts). */
  alive: (end: string) => `bus.alive.${end}`,
} as const;

const roles = ['router', 'prefill', 'decode', 'store'] as const;
/** Role of a process in the cluster. */
export type Role = (typeof roles)[number];

const memberSchema = z.object({
  name: z.string(),
  role: z.enum(roles),
  /** Address of the process's gRPC services, HOST:PORT. */
  address: z.string(),
  pid: z.int(),
  /** Random id of one incarnation of the process: a restarted process has another. */
  epoch: z.string(),
});

/** One process of the cluster. */
export type Member = z.infer<typeof memberSchema>;

const formatSchema = z.object({
  model: z.string(),
  weightFormat: z.string(),
  kvDtype: z.enum(['f16', 'f32']),
  layoutVersion: z.int(),
  blockSize: z.int(),
  numerics: z.string(),
  kv: z.string(),
});

const registrationSchema = z.object({
  member: memberSchema,
  protocolVersion: z.int(),
  /** Absent for stores, which hold any model's blocks. */
  engine: z
    .object({
      format: formatSchema,
      /** SHA-256 of the model's configuration, which the router has too. */
      modelConfig: z.string(),
      numericsClass: z.string(),
      maxModelLen: z.int(),
      vocabSize: z.int(),
      /** Bytes of the record of a recurrent state; absent for a model without recurrent layers. */
      stateBytes: z.int().optional(),
      /** Name under which clients request the model; absent where the cluster has one model. */
      modelName: z.string().optional(),
      device: z.string(),
    })
    .optional(),
});
/** A process's request to become a member of the cluster. */
export type Registration = z.infer<typeof registrationSchema>;

const inquirySchema = z.object({
  member: memberSchema,
  protocolVersion: z.int(),
  /** Properties that an engine's configuration determines before its model is loaded; absent for a process without an engine. */
  engine: z.object({ blockSize: z.int() }).optional(),
});
/** A process's question, before it loads its model, whether a router would accept its registration. */
export type Inquiry = z.infer<typeof inquirySchema>;

const tierSchema = z.object({
  blocks: z.int(),
  bytes: z.number(),
  capacityBytes: z.number(),
  hits: z.int(),
  misses: z.int(),
  evictions: z.int(),
  dedupFactor: z.number(),
  /** Blocks and bytes of the formats that hold the most bytes, by format digest. */
  formats: z.record(z.string(), z.object({ blocks: z.int(), bytes: z.number() })).optional(),
  /** Why the tier cannot be used now. */
  fault: z.string().optional(),
});
/** Counts and capacity of a tier, as a heartbeat reports them. */
export type TierStats = z.infer<typeof tierSchema>;

const stateSlotsSchema = z.object({
  slots: z.int(),
  /** Slots with a saved state that no sequence uses now. */
  saved: z.int(),
  /** Slots that sequences use: for their own states, and saved ones that they read. The others are free. */
  used: z.int(),
  /** Sequences that began with a saved state. */
  hits: z.int(),
  /** Saved states that gave their slots to others. */
  evictions: z.int(),
});
/** Slots of a device for recurrent states; hits and evictions since the engine's start. */
export type StateSlots = z.infer<typeof stateSlotsSchema>;

const flowSchema = z.object({
  /** Address of the holder's Blocks service. */
  from: z.string(),
  /** Way by which the records came: `memory`, `socket` or `call`. */
  way: z.string(),
  bytes: z.number(),
  records: z.int(),
  /** Milliseconds in which the bytes moved. */
  ms: z.number(),
  /** Calls that broke or were given up, and records that could not be used. */
  failures: z.int(),
});
/** Records that a process has fetched from one holder over one way, since it started or began to count them. */
export type Flow = z.infer<typeof flowSchema>;

type PlainShape = {
  readonly [Name in LoadName]: (typeof LOAD_FIELDS)[Name] extends { readonly isRequired: true }
    ? z.ZodNumber
    : z.ZodOptional<z.ZodNumber>;
};
const plainShape = Object.fromEntries(
  loadFields.map(([name, { type, isRequired }]) => {
    const value = type === 'int' ? z.int() : z.number();
    return [name, isRequired ? value : value.optional()];
  }),
) as unknown as PlainShape;

const loadSchema = z.object({
  ...plainShape,
  /** Sequences by the stage of the fetch of their blocks, as vLLM names the stages; absent for stores. */
  kvFetch: z.object({ waiting_to_start: z.int(), in_progress: z.int(), completed_waiting: z.int() }).optional(),
  /** Blocks that the device and the host memory of an instance have room for; absent for stores. */
  kv: z.object({ blocks: z.int(), hostBlocks: z.int() }).optional(),
  /** Tokens of the engine's steps since its start; absent for stores, and before the engine's first report. */
  iterationTokens: bucketSchema.optional(),
  /** How long device blocks stayed; absent for stores, and before the engine's first report. */
  residency: residencySchema.optional(),
  /** Bytes of fetched records by transport: shared memory, socket of a data channel, or gRPC call. */
  fetched: z.object({ memory: z.number(), socket: z.number(), call: z.number() }).optional(),
  /** Flows that have changed since an earlier heartbeat, and some that have not; a router keeps the latest of each. */
  links: z.array(flowSchema).optional(),
  isDraining: z.boolean(),
  /** Work that the engine has left, and the time that it takes; absent for stores, and from instances of versions that do not say it. */
  work: workSchema.optional(),
  /** Slots for recurrent states; absent for models without recurrent layers, and for stores. */
  states: stateSlotsSchema.optional(),
  tiers: z.partialRecord(z.enum(['device', 'dram', 'disk']), tierSchema),
});
/** Load of an instance or a store, as a heartbeat reports it; its plain values are described in load_fields.ts. */
export type InstanceLoad = z.infer<typeof loadSchema>;

const heartbeatStatusSchema = z.object({
  load: loadSchema,
  /** Number of the last batch of block events that was published before this heartbeat. */
  blocks: z.int(),
  /** Number of the last placement seen of each router, by the router's epoch. */
  seen: z.record(z.string(), z.int()),
});
/** Content of a heartbeat, without the sender's name and epoch. */
export type HeartbeatStatus = z.infer<typeof heartbeatStatusSchema>;

const heartbeatSchema = z.object({ name: z.string(), epoch: z.string(), ...heartbeatStatusSchema.shape });
type Heartbeat = z.infer<typeof heartbeatSchema>;

const policySchema = z.object({
  /** Name of a placement policy. */
  policy: z.string(),
  /** Number of the change: one more than the highest that its router had heard of. */
  version: z.int(),
  /** Epoch and name of the router at which it was set. */
  router: z.string(),
  routerName: z.string(),
});
/** A change of the placement policy of all routers. */
export type PolicyNotice = z.infer<typeof policySchema>;

/** Amount by which a tenant used more in the last minute than the router's share of its limit. */
const overSchema = z.object({ requests: z.number(), tokens: z.number() });

const givenSchema = z.object({
  /** Part of each limit that the router gives, 0 to 1; 0 for one that has just started, and listens first. */
  share: z.number(),
  /** Tenants that used more than the router's share, which shrinks when another router joins, and when it leaves. */
  over: z.record(z.string(), overSchema),
});
/** A router's part in the limits of tenants. */
export type GivenLimits = z.infer<typeof givenSchema>;

const limitsSchema = z.object({
  ...givenSchema.shape,
  /** Other routers that count, by epoch, for one that never heard them; with how long ago they were. */
  others: z.record(z.string(), z.object({ ...givenSchema.shape, agoMs: z.number(), hasLeft: z.boolean() })),
});
/** Notice of a router that asks clients for keys, about the limits of their tenants. */
export type LimitsNotice = z.infer<typeof limitsSchema>;

/**
 * `router` is the router's epoch; `version` counts the changes of its list of stores. `policy` is the last change of the placement
 * policy; absent while there was none. `limits` is absent from a router that asks for no keys.
 */
const routerSchema = z.object({
  router: z.string(),
  name: z.string(),
  version: z.int(),
  policy: policySchema.optional(),
  limits: limitsSchema.optional(),
});
/** A router's announcement that it is alive, once a second. */
export type RouterNotice = z.infer<typeof routerSchema>;

/** Stores that joined and left between `version` - 1 and `version` of one router's list of stores. */
const storesSchema = z.object({
  router: z.string(),
  version: z.int(),
  came: z.array(memberSchema),
  gone: z.array(memberSchema),
});
type StoresNotice = z.infer<typeof storesSchema>;

const unknownMemberSchema = z.object({ router: z.string() });
type UnknownMemberNotice = z.infer<typeof unknownMemberSchema>;

/** `unreachable` is the reason why the router cannot call the process at its address; null when it can. */
const reachSchema = z.object({ router: z.string(), unreachable: z.string().nullable() });
type ReachNotice = z.infer<typeof reachSchema>;

const goodbyeSchema = z.object({ name: z.string(), epoch: z.string() });
type Goodbye = z.infer<typeof goodbyeSchema>;

const registrationReplySchema = z.discriminatedUnion('kind', [
  /** The process is a member. With `unreachable` it gets no requests until the router can call it at its address. */
  z.object({
    kind: z.literal('accepted'),
    version: z.int(),
    stores: z.array(memberSchema),
    unreachable: z.string().optional(),
  }),
  z.object({ kind: z.literal('refused'), reason: z.string() }),
  /** The process may be accepted later and should retry; `patienceMs` bounds the wait in milliseconds. */
  z.object({ kind: z.literal('wait'), reason: z.string(), patienceMs: z.int().optional() }),
]);
/** Answer of a router to a registration or an inquiry. */
export type RegistrationReply = z.infer<typeof registrationReplySchema>;

function reader<T>(schema: z.ZodType<T>): (bytes: Buffer) => T {
  return (bytes) => {
    let value: unknown;
    try {
      value = JSON.parse(bytes.toString('utf8'));
    } catch (cause) {
      throw new Failure('invalid_request', 'a bus message is not JSON', { cause });
    }
    const result = schema.safeParse(value);
    if (!result.success)
      throw new Failure('invalid_request', `a bus message has wrong fields: ${z.prettifyError(result.error)}`);
    return result.data;
  };
}

/** Parses a registration. @throws Failure `invalid_request` for bytes that are none. */
export const readRegistration = reader(registrationSchema);
/** Parses an inquiry. @throws Failure `invalid_request` for bytes that are none. */
export const readInquiry = reader(inquirySchema);
/** Parses a notice of whether a router can call a process at its address. @throws Failure `invalid_request` for bytes that are none. */
export const readReach = reader(reachSchema);
/** Parses the answer to a registration or an inquiry. @throws Failure `invalid_request` for bytes that are none. */
export const readRegistrationReply = reader(registrationReplySchema);
/** Parses a heartbeat. @throws Failure `invalid_request` for bytes that are none. */
export const readHeartbeat = reader(heartbeatSchema);
/** Parses a router's announcement. @throws Failure `invalid_request` for bytes that are none. */
export const readRouter = reader(routerSchema);
/** Parses a change of the placement policy. @throws Failure `invalid_request` for bytes that are none. */
export const readPolicy = reader(policySchema);
/** Parses a notice of stores that came and went. @throws Failure `invalid_request` for bytes that are none. */
export const readStores = reader(storesSchema);
/** Parses a notice that a router does not count a process among its members. @throws Failure `invalid_request` for bytes that are none. */
export const readUnknownMember = reader(unknownMemberSchema);
/** Parses the goodbye of a process that ends. @throws Failure `invalid_request` for bytes that are none. */
export const readGoodbye = reader(goodbyeSchema);

type Message =
  | Inquiry
  | Registration
  | RegistrationReply
  | Heartbeat
  | RouterNotice
  | PolicyNotice
  | StoresNotice
  | UnknownMemberNotice
  | ReachNotice
  | Goodbye;

/** Returns a message as JSON in UTF-8. */
export function toBytes(message: Message): Buffer {
  return Buffer.from(JSON.stringify(message));
}

/** Returns the name of a holder in block events. The epoch is part of it, because the blocks of an earlier incarnation are gone. */
export function holderId(member: Pick<Member, 'name' | 'epoch'>): string {
  return `${member.name}/${member.epoch}`;
}
