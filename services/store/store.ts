/** The store role: opens the disk tier, serves what survived, takes offers. */
import { join } from 'node:path';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { LateThread } from '../../shared/base/late_thread.ts';
import type { Log } from '../../shared/base/log.ts';
import { DONE } from '../../shared/base/signal.ts';
import type { Thread } from '../../shared/base/threads.ts';
import { liveAsMember, type ClusterSeat, type RoleBody } from '../../shared/node/member_life.ts';
import { channelsOf } from '../../shared/node/member_channels.ts';
import type { DataFolder, RoleContext, RunningRole } from '../../shared/node/role.ts';
import { Announcer } from '../../shared/node/announcer.ts';
import { FetchFlows } from '../../shared/net/fetch/flows.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { createFetchHandlers } from '../../shared/net/fetch/fetch_server.ts';
import { startTransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { forgetHandler } from '../../shared/net/forget_handler.ts';
import { answeringOnce } from '../../shared/net/network.ts';
import { holderId, subjects } from '../../shared/protocol/membership.ts';
import { readDiskKey } from './disk_key.ts';
import type { DiskReader, start as startReader } from './disk_reader.ts';
import { RECORDS, type DiskThread, type start } from './disk_thread.ts';
import { forgetTenant } from './forget_tenant.ts';
import { OfferIntake } from './offer_intake.ts';
import type { StoreConfig } from './options.ts';
import { StoreTiers } from './tiers.ts';

const SHUTDOWN_GRACE_MS = 2_000;
const OPEN_WAIT_MS = 3_000;
const CLOSE_WAIT_MS = 5_000;
/** Threads that read from disk. Two keep two cores busy while records are in the page cache; a disk needs more concurrent reads. */
const NUM_READERS = 4;
/**
 * Open fetch streams, at most (P1). A store serves every engine of its cluster; more streams than all their waiting sequences come
 * from a broken peer.
 */
const MAX_FETCH_STREAMS = 8_192;

/** Starts a store on a host. @throws Error when another process uses its data folder. */
export async function startStore(context: RoleContext<StoreConfig>): Promise<RunningRole> {
  const { config, folders } = context;
  // The name comes from the configuration, not from the bound address, so that the next start finds the same folder.
  const folderName = config.name || `store@${config.advertise || config.bind || '127.0.0.1:0'}`;
  // Two stores with one folder are a configuration mistake, which ends the start. Any other problem with the folder may pass, so the
  // store starts without its disk.
  if (config.disk_bytes > 0) folders.refuseShared(config.data_dir, folderName);
  return liveAsMember(context, SHUTDOWN_GRACE_MS, (seat) => build(context, seat, folderName));
}

/** Returns the reader threads, each of which starts with its first call. */
function readersOf(
  { config, threads, fail }: RoleContext<StoreConfig>,
  diskKey: Uint8Array | undefined,
): LateThread<DiskReader>[] {
  const module = { url: new URL('./disk_reader.js', import.meta.url), createsFewObjects: true };
  const open = (): Thread<DiskReader> => threads.spawn<typeof startReader>(module, { diskKey }, { onDeath: fail });
  return Array.from({ length: config.disk_bytes > 0 ? NUM_READERS : 0 }, () => new LateThread(open));
}

/** Opens the environment in a folder. A disk key that is not that of its records ends the store: an operator has to give another. */
async function openDisk(
  worker: Thread<DiskThread>,
  of: Parameters<DiskThread['open']>[0],
  fail: (error: Error) => void,
): ReturnType<DiskThread['open']> {
  const opened = await worker.call('open', of);
  if (opened.hasKeyFault) fail(new ConfigError(opened.fault ?? ''));
  return opened;
}

async function build(
  context: RoleContext<StoreConfig>,
  { member, publish }: ClusterSeat,
  folderName: string,
): Promise<RoleBody> {
  const { config, network, threads, folders, clock, random, log, fail, kill } = context;
  const diskKey = readDiskKey(config.disk_key, log);
  const diskPid = new Int32Array(new SharedArrayBuffer(4));
  const url = new URL('./disk_worker.js', import.meta.url);
  const worker = threads.spawn<typeof start>({ url }, { pid: diskPid }, { onDeath: fail });
  const readers = readersOf(context, diskKey);
  const transferThread = startTransferThread(threads, fail, context.tls);
  let folder: DataFolder | undefined;
  const environment = (): string => join(folder?.path ?? '', 'lmdb');
  const stopped = new AbortController();
  const announcer = new Announcer(
    holderId(member),
    (batch) => {
      publish(subjects.blocks, batch);
    },
    clock,
    stopped.signal,
  );
  const tiers = new StoreTiers({
    worker,
    readers,
    transferThread,
    dramBytes: config.dram_bytes,
    diskBytes: config.disk_bytes,
    announcer,
    clock,
    log,
    isShared: config.transport === 'auto',
    openDisk: async () => {
      folder ??= reported(await folders.claim(config.data_dir, folderName, fail), log);
      return openDisk(worker, { path: environment(), budgetBytes: config.disk_bytes, diskKey }, fail);
    },
    records: () => join(environment(), RECORDS),
    signal: stopped.signal,
  });
  const dataChannels = channelsOf(config, transferThread, context, stopped.signal);
  // A configured port must be free: bind it now, so that the start fails otherwise.
  if (config.bulk_port > 0) await dataChannels?.host.bind();
  const [moved, flows] = [nothingMoved(), new FetchFlows()];
  const intake = new OfferIntake(
    tiers,
    {
      network,
      clock,
      random,
      transferThread,
      channels: dataChannels?.channels,
      moved,
      flows,
      limits: context.limits?.transfer,
    },
    log,
    config.disk_writes,
  );
  let isDraining = false;
  const { counters, ...blocks } = createFetchHandlers(() => tiers, {
    maxStreams: MAX_FETCH_STREAMS,
    channels: dataChannels?.host,
    limits: context.limits?.transfer,
  });
  // Records that are put into the slab before every thread has attached it would be lost.
  await tiers.attached;
  const opened = tiers.disk.start().then(() => {
    log.info({ recovered: tiers.disk.size }, 'open');
  });
  return {
    handlers: {
      ...blocks,
      forget: forgetHandler((tenant, signal) => forgetTenant(tiers, tenant, clock, signal)),
      offer: answeringOnce<'offer'>((request, { signal }) => intake.accept(request, signal)),
    },
    // A disk that opens slowly, or hangs, must not delay what DRAM can serve.
    ready: Promise.race([opened, clock.sleep(OPEN_WAIT_MS, stopped.signal)]),
    heartbeatStatus: () => ({
      load: {
        running: counters.openStreams,
        openStreams: counters.openStreams,
        waiting: intake.numOpen,
        lent: tiers.numSlotsInTransit,
        divergent: tiers.numDivergent,
        fetched: { ...moved },
        links: flows.report(),
        isDraining,
        preemptions: 0,
        lastStepMs: 0,
        tiers: tiers.tiers(),
      },
      blocks: announcer.sequence,
      seen: {},
    }),
    finish: async (untilMs) => {
      isDraining = true;
      const draining = new AbortController();
      await Promise.race([intake.drained(draining.signal), clock.sleep(untilMs - clock.nowMs(), draining.signal)]);
      draining.abort(DONE);
    },
    close: async () => {
      stopped.abort();
      await endThreads(context, worker, [transferThread, ...readers]);
      // A disk process that hangs does not notice that its store is gone.
      const pid = Atomics.load(diskPid, 0);
      if (pid > 0) kill(pid);
      folder?.release();
    },
  };
}

/** Closes the disk tier, then ends the threads. Waits CLOSE_WAIT_MS at most for each of the two. */
async function endThreads(
  { clock, log }: RoleContext<StoreConfig>,
  worker: Thread<DiskThread>,
  others: readonly Pick<Thread<unknown>, 'close'>[],
): Promise<void> {
  // Committed records survive without an orderly close, but not a reboot of the machine: then only a closed environment is trusted.
  await Promise.race([
    worker.call('close', undefined).catch((error: unknown) => {
      log.warn(
        { error: messageOf(error) },
        'the disk tier was not closed cleanly: it will start empty if the machine reboots first',
      );
    }),
    clock.sleep(CLOSE_WAIT_MS),
  ]);
  // A thread that hangs in the kernel does not end.
  const ended = Promise.all([worker, ...others].map((thread) => thread.close()));
  await Promise.race([ended, clock.sleep(CLOSE_WAIT_MS)]);
}

/** Warns in the log where other users could use a data folder, or still can. Returns the folder. */
function reported(folder: DataFolder, log: Log): DataFolder {
  const { path, narrowed, open } = folder;
  if (narrowed.length > 0)
    log.warn(
      { folder: path, paths: narrowed.length },
      'other users could read the data folder: it is for this user alone now',
    );
  const [first] = open;
  if (first)
    log.warn(
      { ...first, paths: open.length },
      'other users can read the data folder, from which prompts and answers can be computed: keep them from it where its volume is set up',
    );
  return folder;
}
