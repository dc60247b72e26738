/**
 * Parts that a prefill and a decode instance share: the engine thread, the transfer thread, host memory between device and network.
 *
 *   control (this) ◄─events─ engine thread        slab: one SharedArrayBuffer of record slots, owned here
 *          │                                       ├─ arrivals (bounded window) ─► device
 *          └──► transfer thread (checksums)        └─ outbox ◄─ device
 *
 * A service adds its policy: which sequences it submits, and how it handles their events.
 */
import { setMaxListeners } from 'node:events';
import type { Current } from '../base/current.ts';
import type { Threads } from '../base/threads.ts';
import { EngineHost } from '../engine/engine_host.ts';
import type { SequenceEvent } from '../engine/engine_events.ts';
import type { EngineInfo, EngineWorkerData, LoopEvent } from '../engine/engine_messages.ts';
import type { SequenceRequest } from '../engine/sequence_request.ts';
import type { Forgotten } from '../net/forget_handler.ts';
import { KeyChain, type AnchoredHash, type Digest, type TenantId } from '../kv/block_key.ts';
import { Slab, slotLength } from '../kv/slab.ts';
import { stateHashOf } from '../kv/record.ts';
import { FetchFlows } from '../net/fetch/flows.ts';
import { nothingMoved } from '../net/fetch/transfer.ts';
import type { ChannelHost } from '../net/channel_host.ts';
import { startTransferThread, type TransferThread } from '../net/transfer_thread/transfer_thread.ts';
import type { TlsTexts } from '../net/tls_texts.ts';
import type { InstanceLoad, HeartbeatStatus } from '../protocol/membership.ts';
import type { RequestContext } from '../protocol/messages.ts';
import type { BlockFetcher } from './block_fetcher.ts';
import { channelsOf, type MemberChannels } from '../node/member_channels.ts';
import type { MemberConfig } from '../node/options.ts';
import { engineLoad } from './engine_load.ts';
import { connectParts, type Attachment, type InstanceHost, type InstanceParts } from './instance_parts.ts';
import type { Outbox } from './outbox.ts';
import { RoutersSeen } from '../node/routers_seen.ts';
import { watch } from './watchdog.ts';

/** Least record slots: with fewer, a chunk's exports and a fetch's arrivals would wait for each other. */
const MIN_SLOTS = 16;
/** Least slots for recurrent states: one on its way out, one on its way in, and room for blocks next to them. */
const MIN_STATE_SLOTS = 8;

/** Engine, memory, network and callbacks of an instance. */
export interface EngineInstanceOptions extends InstanceHost {
  readonly engine: Omit<EngineWorkerData, 'heartbeat'>;
  readonly dramBytes: number;
  readonly transfer: Pick<MemberConfig, 'transport' | 'bind' | 'bulk_port'>;
  /** Certificate, key and authority of encrypted data channels, in PEM; undefined when channels are not encrypted. */
  readonly tls: Current<TlsTexts> | undefined;
  readonly newId: () => string;
  /** A turn of the engine's loop that takes longer is a device that hangs. */
  readonly stepTimeoutMs: number;
  readonly threads: Threads;
  /** The engine is gone; the process cannot go on. */
  readonly onDeath: (error: Error) => void;
  readonly onLoading?: (doneBytes: number, totalBytes: number) => void;
  /** Called when the engine thread is alive and makes no progress; nobody should wait for it. */
  readonly onHang: (error: Error) => void;
}

/** One engine with its transfer thread, slab and data channels, as a member of a cluster. */
export class EngineInstance {
  readonly info: EngineInfo;
  readonly #options: EngineInstanceOptions;
  readonly #host: EngineHost;
  readonly #transferThread: TransferThread;
  readonly #slab: Slab;
  readonly #channels: MemberChannels | undefined;
  readonly #listeners = new Map<number, (event: SequenceEvent) => void>();
  readonly #stopped = new AbortController();
  #attached: InstanceParts | undefined;
  #nextId = 1;
  isDraining = false;
  readonly #seen = new RoutersSeen();
  readonly #moved = nothingMoved();
  readonly #flows = new FetchFlows();
  #onLoadChanged: () => void = () => undefined;

  private constructor(options: EngineInstanceOptions, host: EngineHost, transferThread: TransferThread, slab: Slab) {
    this.#options = options;
    this.#host = host;
    // One listener per offer and timer that is under way, taken away when it ends.
    setMaxListeners(0, this.#stopped.signal);
    this.#transferThread = transferThread;
    this.#slab = slab;
    this.#channels = channelsOf(options.transfer, transferThread, options, this.#stopped.signal);
    this.info = host.info;
  }

  /** Loads the model. @throws Error with the model's, the device's or the budget's message, before anything listens. */
  static async start(options: EngineInstanceOptions): Promise<EngineInstance> {
    const { dramBytes, log, onDeath } = options;
    const engine: EngineWorkerData = { ...options.engine, heartbeat: new SharedArrayBuffer(8) };
    let onEvent: (event: LoopEvent) => void = () => undefined;
    const startMs = options.clock.nowMs();
    const host = await EngineHost.start(options.threads, engine, {
      onLoading: (doneBytes, totalBytes) => {
        const seconds = (options.clock.nowMs() - startMs) / 1_000;
        log.info(
          {
            percent: Math.floor((100 * doneBytes) / totalBytes),
            gigabytesPerSecond: Number((doneBytes / 1e9 / seconds).toFixed(2)),
            secondsLeft: Math.ceil(((totalBytes - doneBytes) / doneBytes) * seconds),
          },
          'loading weights',
        );
        options.onLoading?.(doneBytes, totalBytes);
      },
      onEvent: (event) => {
        onEvent(event);
      },
      onDeath,
    });
    const { layout } = host.info;
    const slotSize = slotLength(layout.spec.slotBytes);
    const numSlots = Math.floor(dramBytes / slotSize);
    if (numSlots < MIN_SLOTS) {
      await host.stop(options.clock);
      throw new Error(
        `--dram-bytes ${dramBytes} holds ${numSlots} records of ${slotSize} bytes; at least ${MIN_SLOTS * slotSize} are needed for this model`,
      );
    }
    const { state } = layout.spec;
    const stateSize = state ? slotLength(state.slotBytes) : 0;
    if (numSlots * slotSize < MIN_STATE_SLOTS * stateSize) {
      await host.stop(options.clock);
      throw new Error(
        `--dram-bytes ${dramBytes} is too little for the recurrent states of this model, of ${stateSize} bytes each; at least ${MIN_STATE_SLOTS * stateSize} are needed`,
      );
    }
    const slab = new Slab(numSlots * slotSize);
    const transferThread = startTransferThread(options.threads, onDeath, options.tls);
    await transferThread.call('attach', { memory: slab.memory, isShared: options.transfer.transport === 'auto' });
    host.attach(slab.memory);
    const instance = new EngineInstance(options, host, transferThread, slab);
    const { clock, stepTimeoutMs, onHang } = options;
    watch(new Int32Array(engine.heartbeat), { clock, stepTimeoutMs, onHang, signal: instance.#stopped.signal });
    onEvent = (event) => {
      instance.#receive(event);
    };
    // A port that --bulk-port names must be bound, else the start fails.
    if (options.transfer.bulk_port > 0) await instance.#channels?.host.bind();
    return instance;
  }

  /**
   * Most Fetch streams open at once (P1): twice the sequences that may wait or run, and twice that where layers have attention
   * windows, since a fetch then has two streams. With many decode instances some streams are refused and retried.
   */
  get maxFetchStreams(): number {
    const { maxWaiting, model } = this.#options.engine;
    const numStreams = this.info.layout.spec.frames.some(({ window }) => window > 0) ? 2 : 1;
    return 2 * numStreams * (maxWaiting + model.maxNumSeqs);
  }

  /** Connects the instance's parts under the name and address of `member`, and grants the engine its first slots for exports. */
  attach(attachment: Attachment): void {
    this.#onLoadChanged = attachment.onLoadChanged;
    const { outbox } = (this.#attached = connectParts(this.#options, attachment, {
      layout: this.info.layout,
      slab: this.#slab,
      transferThread: this.#transferThread,
      channels: this.#channels,
      moved: this.#moved,
      flows: this.#flows,
      sendToEngine: this.#host.send.bind(this.#host),
      signal: this.#stopped.signal,
    }));
    outbox.grantSlots();
  }

  get #parts(): InstanceParts {
    if (!this.#attached) throw new Error('the instance is not attached to its cluster yet');
    return this.#attached;
  }

  get outbox(): Outbox {
    return this.#parts.outbox;
  }

  get fetcher(): BlockFetcher {
    return this.#parts.fetcher;
  }

  /** Host of the data channels over which others fetch from this instance. */
  get channelHost(): ChannelHost | undefined {
    return this.#channels?.host;
  }

  get numSequences(): number {
    return this.#listeners.size;
  }

  /** Returns the hashes of the full blocks before the tail, and the bits of a block key, with which the sequence continues the chain. */
  async chainOf(
    root: Digest,
    tokens: Uint32Array,
    tenant: TenantId,
  ): Promise<Pick<SequenceRequest, 'hashes' | 'keyBits'>> {
    const { clock, limits } = this.#options;
    const keyBits = limits?.keyBits;
    const chain = new KeyChain(root, this.info.layout.spec.blockSize, [], keyBits, tenant);
    return { hashes: await chain.prefillHashes(tokens, clock), keyBits };
  }

  /** Returns how many leading blocks of `hashes` are in the device. */
  numLocal(hashes: readonly AnchoredHash[]): number {
    const missing = hashes.findIndex(({ key }) => !this.#parts.announcer.has('device', key));
    return missing < 0 ? hashes.length : missing;
  }

  /**
   * Returns how many leading blocks of `hashes` a sequence can begin after without a fetch: those in the device, for a model with
   * recurrent state up to the last at whose end a state is.
   */
  numUsable(hashes: readonly AnchoredHash[]): number {
    const numLocal = this.numLocal(hashes);
    if (!this.info.layout.spec.state) return numLocal;
    const { announcer } = this.#parts;
    const hasState = (hash: AnchoredHash): boolean => announcer.has('device', stateHashOf(hash).key);
    return 1 + hashes.slice(0, numLocal).findLastIndex(hasState);
  }

  /** @returns the sequence's id. Its events come until it is finished, refused or cancelled. */
  submit(request: Omit<SequenceRequest, 'id'>, listener: (event: SequenceEvent) => void): number {
    const id = this.#nextId++;
    this.#listeners.set(id, listener);
    this.#host.submit({ ...request, id });
    return id;
  }

  /** No more blocks come for the sequence; with `admission`, for that admission of a preempted one. */
  proceed(id: number, admission?: number): void {
    this.#host.send({ kind: 'proceed', id, admission });
  }

  /** R2: nothing of the sequence stays in any batch; a second call does nothing. */
  cancel(id: number): void {
    if (!this.#listeners.delete(id)) return;
    this.#host.send({ kind: 'cancel', id });
    this.#onLoadChanged();
  }

  #receive(event: LoopEvent): void {
    switch (event.kind) {
      case 'stored':
      case 'removed':
      case 'frame':
      case 'exported':
      case 'export_failed':
        this.#parts.outbox.onEngineEvent(event);
        return;
      case 'forgotten':
        this.#parts.forgetting.onForgotten(event);
        return;
      case 'consumed':
        this.#parts.fetchSlots.release(event.slot);
        return;
      case 'admitted':
      case 'preempted':
      case 'progress':
      case 'prompt':
        this.#listeners.get(event.id)?.(event);
        this.#parts.fetchSlots.pump();
        return;
      case 'token':
      case 'prefilled':
      case 'embedded':
      case 'refused': {
        const listener = this.#listeners.get(event.id);
        if (event.kind !== 'token' || event.finish) this.#listeners.delete(event.id);
        // A report comes with the first token: the prompt is computed.
        if (event.kind !== 'token' || event.finish || event.report) this.#onLoadChanged();
        listener?.(event);
        return;
      }
    }
  }

  /** Records the placement that a call carries, and reports the load to the cluster membership. */
  saw(context: RequestContext): void {
    if (context.router === '') return;
    this.#seen.saw(context);
    this.#onLoadChanged();
  }

  heartbeatStatus(openStreams: number): HeartbeatStatus {
    const { fetchSlots, outbox, announcer } = this.#parts;
    const load: InstanceLoad = {
      ...engineLoad(this.info, this.#host.load, outbox.cache, this.#slab.numBytes),
      isDraining: this.isDraining,
      arriving: fetchSlots.numInUse,
      fetched: { ...this.#moved },
      openStreams,
      links: this.#flows.report(),
    };
    return { load, blocks: announcer.sequence, seen: this.#seen.placements };
  }

  /** Deletes the blocks of a tenant that nothing running uses, in the device and in the outbox. */
  forget(tenant: TenantId, signal: AbortSignal): Promise<Forgotten> {
    return this.#parts.forgetting.forget(tenant, signal);
  }

  /** Resolves when every computed block has been offered to its home store, or given up. */
  offersDrained(): Promise<void> {
    return this.#parts.offers.drained();
  }

  async stop(): Promise<void> {
    this.#stopped.abort();
    await Promise.all([this.#host.stop(this.#options.clock), this.#transferThread.close()]);
  }
}
