/**
 * What a prefill and a decode instance share: the engine thread, the mover thread, host memory between device and network.
 *
 *   control (this) ◄─events─ engine thread        slab: one SharedArrayBuffer of record slots, owned here
 *          │                                       ├─ arrivals (bounded window) ─► device
 *          └──► mover thread (checksums)           └─ outbox ◄─ device
 *
 * A service adds its policy: what it submits, and what it does with the events.
 */
import { setMaxListeners } from 'node:events';
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { Random } from '../base/random.ts';
import type { Threads } from '../base/threads.ts';
import { EngineHost } from '../engine/engine_host.ts';
import type { SequenceEvent } from '../engine/engine_events.ts';
import type { EngineInfo, EngineWorkerData, LoopEvent } from '../engine/engine_messages.ts';
import type { SequenceRequest } from '../engine/sequence.ts';
import { KeyChain, type AnchoredHash, type Digest } from '../kv/block_key.ts';
import { newTierCounters } from '../kv/tier_counters.ts';
import { numericsId } from '../kv/record.ts';
import { Slab, slotLength } from '../kv/slab.ts';
import { Announcer } from '../node/announcer.ts';
import { nothingMoved } from '../net/fetch/transfer.ts';
import type { LaneHost } from '../net/lane_host.ts';
import { startMover, type Mover } from '../net/mover/mover.ts';
import type { Network } from '../net/network.ts';
import type { TlsTexts } from '../net/tls_texts.ts';
import { holderId, type Load, type Member, type Pulse } from '../protocol/membership.ts';
import type { RequestContext } from '../protocol/messages.ts';
import { tierStats } from '../protocol/tier_stats.ts';
import { ArrivalWindow } from './arrival_window.ts';
import { BlockFetcher } from './block_fetcher.ts';
import { lanesOf, type MemberLanes } from '../node/member_lanes.ts';
import { Offers } from './offers.ts';
import type { MemberConfig } from '../node/options.ts';
import type { HostLimits } from '../node/role.ts';
import { Outbox } from './outbox.ts';
import { RoutersSeen } from '../node/routers_seen.ts';
import { watch } from './watchdog.ts';

/** Below this a chunk's exports and a fetch's arrivals would wait for each other. */
const MIN_SLOTS = 16;
/** Arrivals may hold a quarter of host memory, but no more than this many records. */
const MAX_WINDOW = 256;
export interface EngineInstanceOptions {
  readonly engine: Omit<EngineWorkerData, 'pulse'>;
  readonly dramBytes: number;
  readonly transfer: Pick<MemberConfig, 'transport' | 'bind' | 'bulk_port'>;
  /** What lanes show others, where they are encrypted. */
  readonly tls: TlsTexts | undefined;
  readonly newId: () => string;
  /** A turn of the engine's loop that takes longer is a device that hangs. */
  readonly stepTimeoutMs: number;
  readonly network: Network;
  readonly threads: Threads;
  readonly random: Random;
  readonly limits?: HostLimits | undefined;
  readonly clock: Clock;
  readonly log: Log;
  /** The engine is gone; the process cannot go on. */
  readonly onDeath: (error: Error) => void;
  readonly onLoading?: (doneBytes: number, totalBytes: number) => void;
  /** The engine is there and does not move: nothing can be waited for. */
  readonly onHang: (error: Error) => void;
}

/** What is known only once the process listens. */
export interface Attachment {
  readonly member: Member;
  readonly publishBlocks: (batch: Buffer) => void;
  readonly stores: () => readonly Member[];
  /** A router has placed something here. */
  readonly onPlaced: () => void;
}

interface Parts {
  readonly outbox: Outbox;
  readonly fetcher: BlockFetcher;
  readonly window: ArrivalWindow;
  readonly offers: Offers;
  readonly announcer: Announcer;
}

export class EngineInstance {
  readonly info: EngineInfo;
  readonly #options: EngineInstanceOptions;
  readonly #host: EngineHost;
  readonly #mover: Mover;
  readonly #slab: Slab;
  readonly #lanes: MemberLanes | undefined;
  readonly #listeners = new Map<number, (event: SequenceEvent) => void>();
  readonly #stopped = new AbortController();
  #attached: Parts | undefined;
  #nextId = 1;
  isDraining = false;
  readonly #seen = new RoutersSeen();
  readonly #moved = nothingMoved();
  #onPlaced: () => void = () => undefined;

  private constructor(options: EngineInstanceOptions, host: EngineHost, mover: Mover, slab: Slab) {
    this.#options = options;
    this.#host = host;
    // One listener per offer and timer that is under way, taken away when it ends.
    setMaxListeners(0, this.#stopped.signal);
    this.#mover = mover;
    this.#slab = slab;
    this.#lanes = lanesOf(options.transfer, mover, options, this.#stopped.signal);
    this.info = host.info;
  }

  /** Loads the model. @throws Error with the model's, the device's or the budget's message, before anything listens. */
  static async start(options: EngineInstanceOptions): Promise<EngineInstance> {
    const { dramBytes, log, onDeath } = options;
    const engine: EngineWorkerData = { ...options.engine, pulse: new SharedArrayBuffer(8) };
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
    const slab = new Slab(numSlots * slotSize);
    const mover = startMover(options.threads, onDeath, options.tls);
    await mover.call('attach', { memory: slab.memory, isShared: options.transfer.transport === 'auto' });
    host.attach(slab.memory);
    const instance = new EngineInstance(options, host, mover, slab);
    const { clock, stepTimeoutMs, onHang } = options;
    watch(new Int32Array(engine.pulse), { clock, stepTimeoutMs, onHang, signal: instance.#stopped.signal });
    onEvent = (event) => {
      instance.#receive(event);
    };
    // A port that was named is one that must be had.
    if (options.transfer.bulk_port > 0) await instance.#lanes?.host.bind();
    return instance;
  }

  /**
   * Fetches that may wait here (P1): as many as sequences may, twice, and where layers have windows each has two streams; with more decode
   * instances than that some ask again.
   */
  get maxFetchStreams(): number {
    const { maxWaiting, model } = this.#options.engine;
    const numStreams = this.info.layout.spec.frames.some(({ window }) => window > 0) ? 2 : 1;
    return 2 * numStreams * (maxWaiting + model.maxNumSeqs);
  }

  /** Goes to work under the name and address of `member`. */
  attach({ member, publishBlocks, stores, onPlaced }: Attachment): void {
    this.#onPlaced = onPlaced;
    const { network, clock, random, log } = this.#options;
    const { layout } = this.info;
    const bytes = layout.spec.slotBytes;
    const numSlots = Math.floor(this.#slab.numBytes / slotLength(bytes));
    const sendToEngine = this.#host.send.bind(this.#host);
    const announcer = new Announcer(holderId(member), publishBlocks, clock, this.#stopped.signal);
    const offers = new Offers({
      ...{ network, clock, log, stores, signal: this.#stopped.signal },
      format: layout.format,
      numerics: numericsId(layout.numericsClass),
      recordBytes: bytes,
      source: member.address,
    });
    const outbox = new Outbox({
      ...{ layout, slab: this.#slab, numSlots, mover: this.#mover, announcer, clock, log, sendToEngine },
      onReady: (hash, content) => {
        offers.add(hash, content);
      },
      onSlotFree: () => {
        window.pump();
      },
    });
    const windowSize = Math.min(MAX_WINDOW, Math.floor(numSlots / 4));
    const window = new ArrivalWindow(outbox.cache, bytes, windowSize);
    const fetcher = new BlockFetcher({
      ...{
        line: {
          ...{ network, clock, random, mover: this.#mover, lanes: this.#lanes?.lanes, moved: this.#moved },
          limits: this.#options.limits?.transfer,
        },
        slab: this.#slab,
        layout,
        window,
        outbox,
        sendToEngine,
        log,
      },
      ownAddress: member.address,
    });
    this.#attached = { outbox, fetcher, window, offers, announcer };
    outbox.grantSlots();
  }

  get #parts(): Parts {
    if (!this.#attached) throw new Error('the instance is not attached to its cluster yet');
    return this.#attached;
  }

  get outbox(): Outbox {
    return this.#parts.outbox;
  }

  get fetcher(): BlockFetcher {
    return this.#parts.fetcher;
  }

  /** For those who fetch from here. */
  get laneHost(): LaneHost | undefined {
    return this.#lanes?.host;
  }

  get numSequences(): number {
    return this.#listeners.size;
  }

  /** Hashes of the full blocks before the tail, and the bits of a key, with which a sequence goes on. */
  async chainOf(root: Digest, tokens: Uint32Array): Promise<Pick<SequenceRequest, 'hashes' | 'keyBits'>> {
    const { clock, limits } = this.#options;
    const keyBits = limits?.keyBits;
    const chain = new KeyChain(root, this.info.layout.spec.blockSize, [], keyBits);
    return { hashes: await chain.prefillHashes(tokens, clock), keyBits };
  }

  /** So many of them lead the run that is in the device already. */
  numLocal(hashes: readonly AnchoredHash[]): number {
    const missing = hashes.findIndex(({ key }) => !this.#parts.announcer.has('device', key));
    return missing < 0 ? hashes.length : missing;
  }

  /** @returns the sequence's id. Its events come until it is finished, refused or cancelled. */
  submit(request: Omit<SequenceRequest, 'id'>, listener: (event: SequenceEvent) => void): number {
    const id = this.#nextId++;
    this.#listeners.set(id, listener);
    this.#host.submit({ ...request, id });
    return id;
  }

  proceed(id: number): void {
    this.#host.send({ kind: 'proceed', id });
  }

  /** R2: nothing of the sequence stays in any batch; a second call does nothing. */
  cancel(id: number): void {
    if (this.#listeners.delete(id)) this.#host.send({ kind: 'cancel', id });
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
      case 'consumed':
        this.#parts.window.give(event.slot);
        return;
      case 'admitted':
      case 'preempted':
      case 'progress':
      case 'prompt':
        this.#listeners.get(event.id)?.(event);
        this.#parts.window.pump();
        return;
      case 'token':
      case 'prefilled':
      case 'refused': {
        const listener = this.#listeners.get(event.id);
        if (event.kind !== 'token' || event.finish) this.#listeners.delete(event.id);
        listener?.(event);
        return;
      }
    }
  }

  /** A call of that router's has come. */
  saw(context: RequestContext): void {
    if (context.router === '') return;
    this.#seen.saw(context);
    this.#onPlaced();
  }

  pulse(openStreams: number): Pulse {
    const load = { ...this.#load(), openStreams };
    return { load, blocks: this.#parts.announcer.sequence, seen: this.#seen.placements };
  }

  #load(): Load {
    const { info } = this;
    const engine = this.#host.load;
    const payload = info.layout.spec.payloadBytes;
    const device = tierStats(
      engine?.counters ?? newTierCounters(),
      engine?.numKeyed ?? 0,
      payload,
      info.numBlocks * payload,
    );
    const { cache } = this.#parts.outbox;
    const record = info.layout.spec.slotBytes;
    return {
      running: engine?.numRunning ?? 0,
      waiting: engine?.numWaiting ?? 0,
      preemptions: engine?.numPreemptions ?? 0,
      lastStepMs: engine?.lastStepMs ?? 0,
      kvUsage: engine ? 1 - engine.numAvailable / info.numBlocks : 0,
      isDraining: this.isDraining,
      arriving: this.#parts.window.numInUse,
      lent: cache.numLent,
      fetched: { ...this.#moved },
      tiers: { device, dram: tierStats(cache.counters, cache.size, record, this.#slab.numBytes) },
    };
  }

  /** Blocks computed here are with their home stores, or given up. */
  offersSettled(): Promise<void> {
    return this.#parts.offers.settled();
  }

  async stop(): Promise<void> {
    this.#stopped.abort();
    await Promise.all([this.#host.stop(this.#options.clock), this.#mover.close()]);
  }
}
