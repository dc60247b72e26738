/**
 * A holder of blocks that is a member of a real cluster and lies: it announces the blocks it is told to, and serves them as its
 * `Lie` says. Real engines and stores must use none of it (K2).
 */
import { systemClock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import type { BlockHash, BlockKey, Digest } from '../../shared/kv/block_key.ts';
import { contentHashOf, sealRecord, type RecordLayout } from '../../shared/kv/record.ts';
import { WantedKeys } from '../../shared/kv/wanted_keys.ts';
import type { BlockSource } from '../../shared/net/block_source.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { Handler } from '../../shared/net/network.ts';
import { noFrame } from '../../shared/protocol/messages.ts';
import type { Member } from '../../shared/protocol/membership.ts';
import { hubOf, joinAsFake } from './fake_member.ts';
import { copySource } from './borrowing.ts';
import { evenSpec } from './kv.ts';

/** How it serves what it has announced. */
export type Lie =
  | 'nothing but the truth'
  | 'another digest'
  | 'another format'
  | 'a flipped bit in the payload'
  | 'a flipped bit in the header'
  | 'nothing at all'
  | 'one block too few'
  | 'half a record'
  | 'records of another size'
  | 'the wrong block'
  | 'silence'
  | 'always busy'
  | 'a failure in the middle';

export const lies: readonly Lie[] = [
  ...(['another digest', 'another format', 'a flipped bit in the payload', 'a flipped bit in the header'] as const),
  ...(['nothing at all', 'one block too few', 'half a record', 'records of another size', 'the wrong block'] as const),
  ...(['silence', 'always busy', 'a failure in the middle'] as const),
];

/** Payload of one block of the harbour model at a block size of 32 in f16. */
const PAYLOAD_BYTES = 65_536;
const NUM_LAYERS = 4;

export interface FakeHolder {
  readonly member: Member;
  readonly recordBytes: number;
  /** Content hash of every true record of the holder, as in record.ts. */
  readonly contentHash: bigint;
  readonly numFetches: () => number;
  lie(lie: Lie): void;
  announce(hashes: readonly BlockHash[]): void;
  /** Serves these blocks as those of the tenants that the hashes name; all others are shared. */
  own(hashes: readonly BlockHash[]): void;
  close(): Promise<void>;
}

export async function joinFakeHolder(hub: string, token: string, format: Digest, name = 'liar'): Promise<FakeHolder> {
  let lie: Lie = 'another digest';
  let numFetches = 0;
  const owned = new Map<Digest, BlockHash>();
  const layout: RecordLayout = {
    format,
    numericsClass: 'fake',
    spec: evenSpec({ numLayers: NUM_LAYERS, blockSize: 32, payloadBytes: PAYLOAD_BYTES }),
  };
  const size = layout.spec.slotBytes;
  const network = new GrpcNetwork(token, systemClock);
  const stopped = new AbortController();
  const source: BlockSource = {
    wanted: new WantedKeys(),
    ...copySource((hash) => Promise.resolve(recordFor(lie, layout, owned.get(hash.digest) ?? hash))),
    snapshot: () => announcer.snapshot(),
  };
  const { fetch: serve, snapshot } = createFetchHandlers(() => source, { maxStreams: 64 });
  const fetch: Handler<'fetch'> = async function* (requests, call) {
    numFetches++;
    const data = Buffer.alloc(4_096);
    if (lie === 'silence') await new Promise((resolve) => call.signal.addEventListener('abort', resolve));
    else if (lie === 'always busy') throw new Failure('overloaded', 'busy');
    else if (lie === 'nothing at all') return;
    else if (lie === 'half a record') yield { index: 0, offset: 0, totalBytes: size, data, numReady: 0, ...noFrame };
    else if (lie === 'records of another size')
      yield { index: 0, offset: 0, totalBytes: 4_096, data, numReady: 0, ...noFrame };
    else if (lie === 'a failure in the middle') {
      yield { index: 0, offset: 0, totalBytes: size, data, numReady: 0, ...noFrame };
      throw new Failure('internal', 'no more');
    } else yield* serve(requests, call);
  };
  const epoch = 'e';
  const listener = await network.listen('127.0.0.1:0', { fetch, snapshot }, epoch);
  const { address } = listener;
  const member: Member = { name, role: 'store', address, pid: process.pid, epoch };
  let joined: () => void = () => undefined;
  const hasJoined = new Promise<void>((resolve) => {
    joined = resolve;
  });
  const { cluster, announcer } = joinAsFake({
    member,
    clock: systemClock,
    openBus: hubOf(hub, token, network, systemClock),
    signal: stopped.signal,
    onJoined: () => {
      joined();
    },
  });
  await hasJoined;
  return {
    member,
    recordBytes: size,
    contentHash: contentHashOf(recordFor('nothing but the truth', layout, someHash) ?? Buffer.alloc(0)),
    numFetches: () => numFetches,
    lie: (next) => {
      lie = next;
    },
    announce: (hashes) => {
      for (const hash of hashes) announcer.stored('dram', hash);
    },
    own: (hashes) => {
      for (const hash of hashes) owned.set(hash.digest, hash);
    },
    close: async () => {
      cluster.leave();
      stopped.abort();
      await listener.close(100);
      network.close();
    },
  };
}

const someHash: BlockHash = { key: 1n as BlockKey, parent: 0n as BlockKey, digest: '01'.repeat(16) as Digest };

function recordFor(lie: Lie, layout: RecordLayout, hash: BlockHash): Buffer | undefined {
  const record = Buffer.alloc(layout.spec.slotBytes, 0x2b);
  const seal = (as: BlockHash, within = layout): Buffer => {
    sealRecord(record, within, as);
    return record;
  };
  const other = 'ef'.repeat(16) as Digest;
  switch (lie) {
    case 'nothing but the truth':
      return seal(hash);
    case 'another digest':
      return seal({ ...hash, digest: other });
    case 'another format':
      return seal(hash, { ...layout, format: other });
    case 'a flipped bit in the payload':
      seal(hash);
      record[record.length - 7] = (record.at(-7) ?? 0) ^ 4;
      return record;
    case 'a flipped bit in the header':
      seal(hash);
      record[41] = (record[41] ?? 0) ^ 1;
      return record;
    case 'the wrong block':
      return seal({ ...hash, key: hash.parent, digest: hash.digest.split('').reverse().join('') as Digest });
    case 'one block too few':
      return undefined;
    case 'nothing at all':
    case 'half a record':
    case 'records of another size':
    case 'silence':
    case 'always busy':
    case 'a failure in the middle':
      return undefined;
  }
}
