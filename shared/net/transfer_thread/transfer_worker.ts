/** The transfer thread: checksums of records that lie in a shared slab, and the sockets that carry them. */
import { systemClock, type Clock } from '../../base/clock.ts';
import { availableCores } from '../../base/cpu_quota.ts';
import type { MethodsOf, Thread } from '../../base/threads.ts';
import { workerThreads } from '../../base/worker_threads.ts';
import type { BlockHash, Digest } from '../../kv/block_key.ts';
import { encodeFrameHeader } from '../../kv/frame_header.ts';
import { sealRecord, verifyRecord, type RecordLayout } from '../../kv/record.ts';
import type { SlabMemory } from '../../kv/slab.ts';
import type { TlsTexts } from '../tls_texts.ts';
import { systemMemory, type HostMemory, type OwnMemory } from './host_memory.ts';
import type { start as startCopier } from './copy_worker.ts';
import type { CopyHelper } from './memory_reads.ts';
import { ChannelClient, type PulledEvent, type WantedRecords } from './channel_client.ts';
import { ChannelServer, type OfferedRecords, type ServedEvent } from './channel_server.ts';
import type { Sockets } from './sockets.ts';
import { tcpSockets } from './tcp_sockets.ts';

/** Events of the transfer thread: data channels that it serves, and data channels that it reads. */
export type TransferThreadEvent = ServedEvent | PulledEvent;

/** A block in its slot. */
export interface SlottedBlock {
  readonly hash: BlockHash;
  readonly slot: number;
}

/** Methods of the transfer thread, called by the control thread. */
export interface TransferThreadMethods {
  /** Before anything is in it. `isShared`: processes of the same host may read it where it is. */
  attach: (slab: { memory: SlabMemory; isShared: boolean }) => void;
  /** Writes the preamble of a record whose payload the engine put in place; `headers`: of its frames, where they were made before. @returns its content hash. */
  seal: (job: { layout: RecordLayout; slot: number; hash: BlockHash; headers: readonly Uint8Array[] }) => bigint;
  /** The headers of one frame of records that are not whole yet; the engine put the frame's bytes in place. */
  frameHeaders: (job: { layout: RecordLayout; frame: number; blocks: readonly SlottedBlock[] }) => Uint8Array[];
  /** Verifies a record in its slot (K2). @returns undefined when it is the wanted block and undamaged, else the reason why not. */
  verify: (job: { slot: number; bytes: number; want: { format: Digest; digest: Digest } }) => string | undefined;
  /** Listens for data channels. @returns the port. */
  listen: (at: { host: string; port: number }) => Promise<number>;
  /** Returns the id of the host this process runs on; processes with equal ids may share memory. */
  host: () => string;
  /** @returns how one who is on `host` finds memory to share; empty: there is none. */
  admit: (of: { channel: number; token: string; host: string }) => string;
  dismiss: (channel: number) => void;
  offer: (of: { channel: number; stream: number; records: OfferedRecords }) => void;
  retract: (of: { channel: number; stream: number }) => void;
  cut: (channel: number) => void;
  connect: (to: { channel: number; host: string; port: number; token: string; memory: string }) => void;
  ask: (of: { channel: number; stream: number; format: Digest; records: WantedRecords }) => void;
  drop: (of: { channel: number; stream: number }) => void;
  close: (channel: number) => void;
}

/** `tls`: data channels are encrypted. */
export function start(tls: TlsTexts | undefined, emit: (event: TransferThreadEvent) => void): TransferThreadMethods {
  return transferThreadOn(tcpSockets(tls), systemMemory, systemClock, emit, copyThread);
}

/** Begun when there is something to copy, where there is a core for it. */
function copyThread(memory: () => SlabMemory): CopyHelper | undefined {
  if (availableCores() < 2) return undefined;
  let begun: Thread<MethodsOf<typeof startCopier>> | undefined;
  const thread = (): Thread<MethodsOf<typeof startCopier>> => {
    if (begun) return begun;
    begun = workerThreads.spawn<typeof startCopier>(copyModule, undefined, {
      onDeath: (error) => {
        // Nobody knows which slots it writes.
        throw error;
      },
    });
    begun.notify('attach', memory());
    return begun;
  };
  return {
    open: (channel, name) => thread().call('open', { channel, name }),
    close: (channel) => thread().call('close', channel),
    copy: (jobs) => thread().call('copy', jobs),
  };
}

const copyModule = { url: new URL('./copy_worker.js', import.meta.url) };

/**
 * Returns the transfer thread's methods over the given sockets, memory and clock. Methods that use the slab throw Error before
 * `attach`. `helperOf` creates the copy helper; the default has none.
 */
export function transferThreadOn(
  sockets: Sockets,
  hostMemory: HostMemory,
  clock: Pick<Clock, 'turn' | 'sleep'>,
  emit: (event: TransferThreadEvent) => void,
  helperOf: (own: () => SlabMemory) => CopyHelper | undefined = () => undefined,
): TransferThreadMethods {
  let attached: { readonly memory: SlabMemory; readonly own: OwnMemory } | undefined;
  const slab = (): NonNullable<typeof attached> => {
    if (!attached) throw new Error('the transfer thread has no slab yet');
    return attached;
  };
  const own = (): OwnMemory => slab().own;
  const record = (slot: number, bytes: number): Uint8Array => own().bytes(slot, bytes);
  const served = new ChannelServer(sockets, hostMemory, own, emit);
  const pulled = new ChannelClient(
    sockets,
    hostMemory,
    clock,
    own,
    emit,
    helperOf(() => slab().memory),
  );
  return {
    attach({ memory, isShared }) {
      attached = { memory, own: hostMemory.attach(memory, isShared) };
    },
    seal: ({ layout, slot, hash, headers }) => sealRecord(record(slot, layout.spec.slotBytes), layout, hash, headers),
    frameHeaders({ layout, frame, blocks }) {
      const spec = layout.spec.frames[frame];
      if (!spec) throw new Error(`records of this format have no frame ${frame}`);
      return blocks.map(({ slot, hash }) =>
        encodeFrameHeader(record(slot + spec.slotOffset, spec.rawBytes), spec, hash.digest),
      );
    },
    verify: ({ slot, bytes, want }) => verifyRecord(record(slot, bytes), want),
    listen: ({ host, port }) => served.listen(host, port),
    host: () => hostMemory.host,
    admit: ({ channel, token, host }) => served.admit(channel, token, host),
    dismiss(channel) {
      served.dismiss(channel);
    },
    offer({ channel, stream, records }) {
      served.offer(channel, stream, records);
    },
    retract({ channel, stream }) {
      served.retract(channel, stream);
    },
    cut(channel) {
      served.cut(channel);
    },
    connect({ channel, host, port, token, memory }) {
      void pulled.connect(channel, host, port, token, memory);
    },
    ask({ channel, stream, format, records }) {
      pulled.ask(channel, stream, format, records);
    },
    drop({ channel, stream }) {
      pulled.drop(channel, stream);
    },
    close(channel) {
      pulled.close(channel);
    },
  };
}
