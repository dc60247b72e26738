/** The transfer thread: checksums of records that lie in a shared slab, and the sockets that carry them. */
import { systemClock, type Clock } from '../../base/clock.ts';
import { availableCores } from '../../base/cpu_quota.ts';
import { Current } from '../../base/current.ts';
import type { MethodsOf, Thread } from '../../base/threads.ts';
import { workerThreads } from '../../base/worker_threads.ts';
import type { BlockHash, Digest } from '../../kv/block_key.ts';
import { encodeFrameHeader } from '../../kv/frame_header.ts';
import { kindOf, recordShapeOf, sealRecord, verifyRecord, type RecordLayout } from '../../kv/record.ts';
import type { SlabMemory } from '../../kv/slab.ts';
import type { TlsTexts } from '../tls_texts.ts';
import { systemMemory, type HostMemory, type OwnMemory } from './host_memory.ts';
import type { start as startCopier } from './copy_worker.ts';
import type { CopyHelper } from './memory_reads.ts';
import { ChannelClient, type ChannelClientEvent, type WantedRecords } from './channel_client.ts';
import { ChannelServer, type OfferedRecords, type ChannelServerEvent } from './channel_server.ts';
import type { Sockets } from './sockets.ts';
import { tcpSockets } from './tcp_sockets.ts';

/** Events of the transfer thread: data channels that it serves, and data channels that it reads. */
export type TransferThreadEvent = ChannelServerEvent | ChannelClientEvent;

/** A block in its slot. */
export interface SlottedBlock {
  readonly hash: BlockHash;
  readonly slot: number;
}

/** Methods of the transfer thread, called by the control thread. */
export interface TransferThreadMethods {
  /** Attaches the slab before it holds records. `isShared`: processes of the same host may read it in place. */
  attach: (slab: { memory: SlabMemory; isShared: boolean }) => void;
  /**
   * Writes the preamble of a record whose payload the engine put in place. `headers` are those of its frames when they exist already,
   * else empty. @returns the content hash.
   */
  seal: (job: { layout: RecordLayout; slot: number; hash: BlockHash; headers: readonly Uint8Array[] }) => bigint;
  /** Returns the headers of one frame of in-flight records, one per block; the engine has put the frame's bytes in place. */
  frameHeaders: (job: { layout: RecordLayout; frame: number; blocks: readonly SlottedBlock[] }) => Uint8Array[];
  /** Verifies a record in its slot (K2). @returns undefined when it is the wanted block and undamaged, else the reason why not. */
  verify: (job: { slot: number; bytes: number; want: { format: Digest; digest: Digest } }) => string | undefined;
  /** Listens for data channels. @returns the port. */
  listen: (at: { host: string; port: number }) => Promise<number>;
  /** Returns the id of the host this process runs on; processes with equal ids may share memory. */
  host: () => string;
  /**
   * Admits an asker to a data channel by its token. @returns the name under which an asker on `host` opens this process's shared
   * memory, empty when there is none.
   */
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

/** {@link TransferThreadMethods} over sockets whose certificates are renewed. */
export interface TcpTransferMethods extends TransferThreadMethods {
  /** Takes renewed certificates, which hold for connections that begin then. */
  renew: (tls: TlsTexts) => void;
}

/** `tls`: data channels are encrypted. */
export function start(tls: TlsTexts | undefined, emit: (event: TransferThreadEvent) => void): TcpTransferMethods {
  const current = tls && new Current(tls);
  return {
    ...transferThreadOn(tcpSockets(current), systemMemory, systemClock, emit, copyThread),
    renew: (texts) => {
      current?.replace(texts);
    },
  };
}

/** Returns a helper whose copy thread starts at first use; undefined where there is only one core. */
function copyThread(memory: () => SlabMemory): CopyHelper | undefined {
  if (availableCores() < 2) return undefined;
  let begun: Thread<MethodsOf<typeof startCopier>> | undefined;
  const thread = (): Thread<MethodsOf<typeof startCopier>> => {
    if (begun) return begun;
    begun = workerThreads.spawn<typeof startCopier>(copyModule, undefined, {
      onDeath: (error) => {
        // The slots that the copy thread was writing are unknown, so the transfer thread ends too.
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

function bytesOf({ spec }: RecordLayout, hash: BlockHash): number {
  return recordShapeOf(spec, kindOf(hash)).slotBytes;
}

const copyModule = { url: new URL('./copy_worker.js', import.meta.url), createsFewObjects: true };

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
  const serverChannel = new ChannelServer(sockets, hostMemory, own, emit);
  const clientChannel = new ChannelClient(
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
    seal: ({ layout, slot, hash, headers }) => sealRecord(record(slot, bytesOf(layout, hash)), layout, hash, headers),
    frameHeaders({ layout, frame, blocks }) {
      const spec = layout.spec.frames[frame];
      if (!spec) throw new Error(`records of this format have no frame ${frame}`);
      return blocks.map(({ slot, hash }) =>
        encodeFrameHeader(record(slot + spec.slotOffset, spec.rawBytes), spec, hash.digest),
      );
    },
    verify: ({ slot, bytes, want }) => verifyRecord(record(slot, bytes), want),
    listen: ({ host, port }) => serverChannel.listen(host, port),
    host: () => hostMemory.host,
    admit: ({ channel, token, host }) => serverChannel.admit(channel, token, host),
    dismiss(channel) {
      serverChannel.dismiss(channel);
    },
    offer({ channel, stream, records }) {
      serverChannel.offer(channel, stream, records);
    },
    retract({ channel, stream }) {
      serverChannel.retract(channel, stream);
    },
    cut(channel) {
      serverChannel.cut(channel);
    },
    connect({ channel, host, port, token, memory }) {
      void clientChannel.connect(channel, host, port, token, memory);
    },
    ask({ channel, stream, format, records }) {
      clientChannel.ask(channel, stream, format, records);
    },
    drop({ channel, stream }) {
      clientChannel.drop(channel, stream);
    },
    close(channel) {
      clientChannel.close(channel);
    },
  };
}
