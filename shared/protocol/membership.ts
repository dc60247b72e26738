/** What processes say on the bus about themselves: registration, heartbeat, the list of members. JSON, so that people can read it. */
import { z } from 'zod';
import { Failure } from '../base/failure.ts';

export const subjects = {
  /** A process looks for routers: each says soon that it is there. */
  hello: 'cluster.hello',
  /** Every second, by every router. */
  router: 'cluster.router',
  /** By a router among whose stores one has come or gone. */
  stores: 'cluster.stores',
  /** By a router that ends. */
  routerGone: 'cluster.router.gone',
  heartbeat: 'cluster.heartbeat',
  goodbye: 'cluster.goodbye',
  blocks: 'blocks.events',
  /** By a router whose request ended with tokens that its tokenizer would not have. */
  answers: 'texts.answers',
  /** Served by the router of that epoch: what keeps a process out, before it has loaded anything. */
  inquire: (router: string) => `cluster.inquire.${router}`,
  /** Served by the router of that epoch. */
  register: (router: string) => `cluster.register.${router}`,
  /** To the process of that epoch, by a router that hears it and does not count it among its members. */
  unknownMember: (epoch: string) => `cluster.stranger.${epoch}`,
  /** To the process of that epoch: a router can call it at its address, or not. */
  reach: (epoch: string) => `cluster.reach.${epoch}`,
} as const;

const roles = ['router', 'prefill', 'decode', 'store'] as const;
export type Role = (typeof roles)[number];

const memberSchema = z.object({
  name: z.string(),
  role: z.enum(roles),
  /** Where its gRPC services listen, HOST:PORT. */
  address: z.string(),
  pid: z.int(),
  /** One incarnation of the process. */
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
      /** As it is asked for; absent: the cluster has one model. */
      modelName: z.string().optional(),
      device: z.string(),
    })
    .optional(),
});
export type Registration = z.infer<typeof registrationSchema>;

const inquirySchema = z.object({
  member: memberSchema,
  protocolVersion: z.int(),
  /** Of an engine, what its configuration says before its model is loaded. */
  engine: z.object({ blockSize: z.int() }).optional(),
});
export type Inquiry = z.infer<typeof inquirySchema>;

const tierSchema = z.object({
  blocks: z.int(),
  bytes: z.number(),
  capacityBytes: z.number(),
  hits: z.int(),
  misses: z.int(),
  evictions: z.int(),
  dedupFactor: z.number(),
  /** By format: those with the most bytes. */
  formats: z.record(z.string(), z.object({ blocks: z.int(), bytes: z.number() })).optional(),
  /** Why the tier cannot be used now. */
  fault: z.string().optional(),
});
export type TierStats = z.infer<typeof tierSchema>;

const loadSchema = z.object({
  running: z.int(),
  waiting: z.int(),
  preemptions: z.int(),
  lastStepMs: z.number(),
  /** Device blocks in use, of all: 0 to 1; absent for stores. */
  kvUsage: z.number().optional(),
  /** Fetches that are open here. */
  openStreams: z.int().optional(),
  /** Slots of host memory that hold blocks on their way into the device. */
  arriving: z.int().optional(),
  /** Slots of host memory without a record: those of arrivals, and what the engine was lent for exports. */
  lent: z.int().optional(),
  /** Blocks that were offered with other bytes than those that are held, by the same numerics; absent for instances. */
  divergent: z.int().optional(),
  /** Bytes of records that were fetched from others, by what they came by. */
  fetched: z.object({ memory: z.number(), socket: z.number(), call: z.number() }).optional(),
  isDraining: z.boolean(),
  tiers: z.partialRecord(z.enum(['device', 'dram', 'disk']), tierSchema),
});
export type InstanceLoad = z.infer<typeof loadSchema>;

const heartbeatStatusSchema = z.object({
  load: loadSchema,
  /** The number of the last batch of block events that went out before. */
  blocks: z.int(),
  /** By router: the number of the last placement that came from it. */
  seen: z.record(z.string(), z.int()),
});
/** What a member says of itself again and again. */
export type HeartbeatStatus = z.infer<typeof heartbeatStatusSchema>;

const heartbeatSchema = z.object({ name: z.string(), epoch: z.string(), ...heartbeatStatusSchema.shape });
type Heartbeat = z.infer<typeof heartbeatSchema>;

/** `router` is an epoch; `version` counts the changes of the stores that it knows. */
const routerSchema = z.object({ router: z.string(), name: z.string(), version: z.int() });
export type RouterNotice = z.infer<typeof routerSchema>;

/** What has changed since the version before. */
const storesSchema = z.object({
  ...{ router: z.string(), version: z.int() },
  came: z.array(memberSchema),
  gone: z.array(memberSchema),
});
type StoresNotice = z.infer<typeof storesSchema>;

const unknownMemberSchema = z.object({ router: z.string() });
type UnknownMemberNotice = z.infer<typeof unknownMemberSchema>;

/** `unreachable`: why the router cannot call the process at its address; null: it can. */
const reachSchema = z.object({ router: z.string(), unreachable: z.string().nullable() });
type ReachNotice = z.infer<typeof reachSchema>;

const goodbyeSchema = z.object({ name: z.string(), epoch: z.string() });
type Goodbye = z.infer<typeof goodbyeSchema>;

const registrationReplySchema = z.discriminatedUnion('kind', [
  /** `unreachable`: it is a member, and does not count before it can be called at its address. */
  z.object({
    kind: z.literal('accepted'),
    version: z.int(),
    stores: z.array(memberSchema),
    unreachable: z.string().optional(),
  }),
  z.object({ kind: z.literal('refused'), reason: z.string() }),
  /** Not yet: asked again, it may be accepted. */
  z.object({ kind: z.literal('wait'), reason: z.string(), patienceMs: z.int().optional() }),
]);
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
    if (!result.success) throw new Failure('invalid_request', `a bus message is off: ${z.prettifyError(result.error)}`);
    return result.data;
  };
}

export const readRegistration = reader(registrationSchema);
export const readInquiry = reader(inquirySchema);
export const readReach = reader(reachSchema);
export const readRegistrationReply = reader(registrationReplySchema);
export const readHeartbeat = reader(heartbeatSchema);
export const readRouter = reader(routerSchema);
export const readStores = reader(storesSchema);
export const readUnknownMember = reader(unknownMemberSchema);
export const readGoodbye = reader(goodbyeSchema);

type Message =
  | Inquiry
  | Registration
  | RegistrationReply
  | Heartbeat
  | RouterNotice
  | StoresNotice
  | UnknownMemberNotice
  | ReachNotice
  | Goodbye;

export function toBytes(message: Message): Buffer {
  return Buffer.from(JSON.stringify(message));
}

/** A holder in block events: a name may come back with another epoch, and its old blocks are gone then. */
export function holderId(member: Pick<Member, 'name' | 'epoch'>): string {
  return `${member.name}/${member.epoch}`;
}
