/** Start-up and drain of a store: open the disk tier, listen, join, announce what survived. */
import { Worker } from 'node:worker_threads';
import type { handleUnaryCall } from '@grpc/grpc-js';
import { HealthImplementation } from 'grpc-health-check';
import { messageOf } from '../../shared/base/failure.ts';
import { newId } from '../../shared/base/identity.ts';
import { WorkerCalls } from '../../shared/base/worker_calls.ts';
import { ClusterMember } from '../../shared/instance/cluster_member.ts';
import type { RoleContext, RunningRole } from '../../shared/instance/role_process.ts';
import { startMover } from '../../shared/kv/mover.ts';
import { Announcer } from '../../shared/net/announcer.ts';
import { createFetchHandlers } from '../../shared/net/fetch_server.ts';
import { holderId, subjects, type Member } from '../../shared/protocol/membership.ts';
import { PROTOCOL_VERSION, type OfferReply, type OfferRequest } from '../../shared/protocol/messages.ts';
import { abortOnCancel } from '../../shared/protocol/open_call.ts';
import { createServer, listen, Peers, services, shutDown, toStatus } from '../../shared/protocol/rpc.ts';
import { claimDataFolder, refuseSharedFolder, type DataFolder } from './data_folder.ts';
import type { DiskTierOptions } from './disk_tier.ts';
import type { DiskMethods } from './disk_worker.ts';
import { OfferIntake } from './offer_intake.ts';
import { StoreTiers } from './tiers.ts';

const SHUTDOWN_GRACE_MS = 2_000;
const OPEN_WAIT_MS = 3_000;
const CLOSE_WAIT_MS = 5_000;
/** A store serves every engine of its cluster: more than all their waiting sequences would be a broken peer's (P1). */
const MAX_FETCH_STREAMS = 8_192;

export async function startStore({ config, clock, log, fail, drain }: RoleContext): Promise<RunningRole> {
  const bind = config.bind || '127.0.0.1:0';
  const diskPid = new Int32Array(new SharedArrayBuffer(4));
  const worker = new WorkerCalls<DiskMethods>(
    new Worker(new URL('./disk_worker.js', import.meta.url), { workerData: { pid: diskPid } }),
    fail,
  );
  const mover = startMover(fail);
  // Before the address is known: the folder must be the same at the next start.
  const folderName = config.name || `store@${config.advertise || bind}`;
  let folder: DataFolder | undefined;
  const openDisk: DiskTierOptions['open'] = async () => {
    folder ??= claimDataFolder(config.data_dir, folderName);
    return worker.call('open', folder.environmentPath);
  };
  // Two stores over one folder are a mistake in the configuration; whatever else is wrong with it may pass.
  if (config.disk_bytes > 0) refuseSharedFolder(config.data_dir, folderName);

  const peers = new Peers(config.cluster_token, clock);
  const stopped = new AbortController();
  const server = createServer(config.cluster_token);
  const health = new HealthImplementation({ '': 'NOT_SERVING' });
  // The tiers exist once the process has its address and so its name; nobody knows the address before.
  let tiers: StoreTiers | undefined;
  let intake: OfferIntake | undefined;
  let isDraining = false;
  const { fetch, snapshot, counters } = createFetchHandlers(() => ready(tiers), {
    maxStreams: MAX_FETCH_STREAMS,
    clock,
  });
  const offer: handleUnaryCall<OfferRequest, OfferReply> = (call, reply) => {
    ready(intake)
      .take(call.request, abortOnCancel(call))
      .then(
        (answer) => {
          reply(null, answer);
        },
        (error: unknown) => {
          reply(toStatus(error));
        },
      );
  };
  const drainNow: handleUnaryCall<object, object> = (_call, reply) => {
    reply(null, {});
    drain();
  };
  server.addService(services.blocks, { fetch, snapshot, offer });
  server.addService(services.admin, { drain: drainNow });
  health.addToServer(server);
  const port = await listen(server, bind);

  const address = config.advertise || `${bind.replace(/:\d+$/, '')}:${port}`;
  const member: Member = {
    name: config.name || `store@${address}`,
    role: 'store',
    address,
    pid: process.pid,
    epoch: newId(),
  };
  const cluster = new ClusterMember({
    join: config.join,
    registration: { member, protocolVersion: PROTOCOL_VERSION },
    load: () => ({
      running: counters.openStreams,
      openStreams: counters.openStreams,
      waiting: intake?.numOpen ?? 0,
      preemptions: 0,
      lastStepMs: 0,
      isDraining,
      tiers: ready(tiers).tiers(),
    }),
    ...{ peers, clock, log },
    onJoined: () => {
      hasJoined();
    },
    onRefused: fail,
  });
  let hasJoined: () => void = () => undefined;
  const joined = new Promise<void>((resolve) => {
    hasJoined = resolve;
  });
  const announcer = new Announcer(
    holderId(member),
    (batch) => {
      cluster.bus.publish(subjects.blocks, batch);
    },
    clock,
    stopped.signal,
  );
  const { dram_bytes: dramBytes, disk_bytes: diskBytes } = config;
  tiers = new StoreTiers({
    ...{ worker, mover, dramBytes, diskBytes, announcer, openDisk, clock, log },
    signal: stopped.signal,
  });
  intake = new OfferIntake(tiers, mover, peers, log);
  // A disk that is slow to open, or hangs, keeps nobody from what DRAM can serve.
  await Promise.race([tiers.disk.start(), clock.sleep(OPEN_WAIT_MS, stopped.signal)]);
  log.info({ address, hub: config.join, recovered: tiers.disk.size }, 'open, joining');
  await joined;
  health.setStatus('', 'SERVING');

  return {
    ready: { name: member.name, address },
    drain: async () => {
      isDraining = true;
      health.setStatus('', 'NOT_SERVING');
      cluster.leave();
      await shutDown(server, clock, SHUTDOWN_GRACE_MS);
      stopped.abort();
      // What is committed is on disk without a word of farewell; without it the next boot does not trust it.
      await Promise.race([
        worker.call('close', undefined).catch((error: unknown) => {
          log.warn({ error: messageOf(error) }, 'the disk tier was not closed in order');
        }),
        clock.sleep(CLOSE_WAIT_MS),
      ]);
      await Promise.all([worker.close(), mover.close()]);
      // One that hangs does not hear that its store is gone.
      endDiskProcess(Atomics.load(diskPid, 0));
      folder?.release();
      peers.close();
    },
  };
}

function endDiskProcess(pid: number): void {
  try {
    if (pid > 0) process.kill(pid, 'SIGKILL');
  } catch {
    // It has ended in order.
  }
}

function ready<T>(part: T | undefined): T {
  if (part === undefined) throw new Error('the store is still starting');
  return part;
}
