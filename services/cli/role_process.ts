/**
 * Runs one role as a process: builds its host, starts the role, reports when it is ready, and drains on SIGTERM, SIGINT or SIGHUP. A
 * failure prints one line and exits with a non-zero code. Under `penstock up` the process reports to its parent over IPC, and ends
 * when the parent dies.
 */
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { newBusEpoch, newId } from '../../shared/base/identity.ts';
import { createLog } from '../../shared/base/log.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { entropySeed, Random } from '../../shared/base/random.ts';
import { DONE } from '../../shared/base/signal.ts';
import { endStart } from '../../shared/base/start_heap.ts';
import type { Tracing } from '../../shared/base/tracing/tracing.ts';
import { endThreads, workerThreads } from '../../shared/base/worker_threads.ts';
import type { OpenBus } from '../../shared/bus/bus.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { Host, Ready, RunningRole, StartRole } from '../../shared/node/role.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { openAppender } from './appended_file.ts';
import { openBusOf } from './bus_servers.ts';
import { dataFolders } from './data_folders.ts';
import { serveMetrics } from './metrics_server.ts';
import { clearTextWarning, refuseOpenPorts } from './open_ports.ts';
import { ProgressLine } from './progress_line.ts';
import { renewSecrets, secretsOf, type Secrets } from './secrets.ts';
import { watchFilesWith } from './watched_files.ts';

/** Message of a role's process to `penstock up`: how many bytes of the model's weights are loaded. */
export interface LoadingMessage {
  readonly kind: 'loading';
  readonly doneBytes: number;
  readonly totalBytes: number;
}

/** Message of a router's process to `penstock up`: it can answer requests. */
export interface ServingMessage {
  readonly kind: 'serving';
}

/** Message of a role's process to `penstock up`: the role is ready. */
export interface ReadyMessage extends Omit<Ready, 'serves'> {
  readonly kind: 'ready';
  readonly role: Role;
  readonly pid: number;
}

/** Milliseconds for which a router waits for instances before it says that it is ready without. */
const SERVES_MS = 2_500;
/** Milliseconds between two messages about the same refused machine, and machines that are remembered (P1). */
const REFUSED_SAID_MS = 60_000;
const MAX_REFUSED = 256;
const EXIT_REFUSED = 1;
const EXIT_USAGE = 2;

/**
 * Runs a role in this process; resolves when the role is ready. A failed start prints the error and ends the process, with code 2 for
 * a ConfigError and 1 for any other. A signal drains the role and ends the process with code 0; a second signal kills the process at
 * once.
 */
export async function runRole(role: Role, config: ProcessConfig, start: StartRole<ProcessConfig>): Promise<void> {
  const print = (line: string): void => {
    process.stderr.write(`penstock ${role}: ${line}\n`);
  };
  const fail = (error: unknown): void => {
    print(messageOf(error));
    process.exit(error instanceof ConfigError ? EXIT_USAGE : EXIT_REFUSED);
  };
  let running: RunningRole | undefined;
  let isEnding = false;
  let closeTracing: () => Promise<void> | undefined = () => undefined;
  const end = async (): Promise<void> => {
    if (isEnding) endNow();
    isEnding = true;
    await running?.drain();
    await closeTracing();
    // One that has just been started may be loading a library, and would take the process down.
    await endThreads();
    process.exit(0);
  };
  // A second drain request over the network changes nothing; a second signal ends the process at once.
  const drain = (): void => {
    if (!isEnding) void end();
  };
  process.on('SIGTERM', () => void end());
  process.on('SIGINT', () => void end());
  // A closed terminal, or a supervisor that asks for a reload: running requests are finished.
  process.on('SIGHUP', () => void end());
  // The parent has died, so no other process would end this one.
  process.on('disconnect', endNow);
  try {
    process.title = `penstock ${role} ${config.name}`.trim();
    refuseOpenPorts(config);
    const log = createLog(config.name || role, config.log_level);
    const inClear = clearTextWarning(role, config);
    if (inClear !== undefined) log.warn(inClear);
    const secrets = secretsOf(config);
    renewSecrets(secrets, config, { clock: systemClock, log });
    const tracing = await tracingOf(role, config, log);
    closeTracing = () => tracing?.close();
    const host = { ...realHost(config, log, await openBusOf(role, config, log), secrets), tracing };
    running = await start({ ...host, role, config, fail, drain });
    const { serves, ...ready } = running.ready;
    const message: ReadyMessage = { kind: 'ready', role, pid: process.pid, ...ready };
    const waited = new AbortController();
    endStart();
    if (process.send) {
      process.send(message);
      await serves?.(waited.signal);
      if (serves && process.connected) process.send({ kind: 'serving' } satisfies ServingMessage);
      return;
    }
    // A router of a running cluster hears of its instances within moments: it is ready when it can serve.
    const late = systemClock.sleep(SERVES_MS, waited.signal).then(() => false);
    const canServe = serves ? await Promise.race([serves(waited.signal).then(() => true), late]) : true;
    waited.abort(DONE);
    const where = ready.url ? `${ready.url}, ${ready.bus}` : ready.address;
    const lack = canServe ? '' : ' (no decode instance has joined yet, and /health says so)';
    process.stdout.write(`penstock ${role} ${ready.name} ready: ${where}${lack}\n`);
  } catch (error) {
    fail(error);
  }
}

/** Returns the host of a real process, with the system's clock, threads, network and entropy. */
export function realHost(
  config: ProcessConfig,
  log: Host['log'],
  openBus: OpenBus | undefined,
  secrets: Secrets = secretsOf(config),
): Host {
  const clock = systemClock;
  const { tls, clusterTokens } = secrets;
  return {
    clock,
    log,
    newId,
    openBus,
    die: endNow,
    folders: dataFolders,
    threads: workerThreads,
    watchFiles: watchFilesWith(clock, log),
    openAppender,
    serveMetrics,
    random: new Random(entropySeed()),
    network: new GrpcNetwork(clusterTokens, clock, tls, refusedClients(log)),
    ...secrets,
    busEpoch: newBusEpoch(),
    identity: { pid: process.pid, epoch: newId() },
    showLoading: showLoading(config),
    kill: (pid) => {
      try {
        process.kill(pid, 'SIGKILL');
      } catch {
        // The process has already ended.
      }
    },
  };
}

/**
 * Returns a function that sends loading progress to the parent process, or shows it as a bar on a terminal. Without either it does
 * nothing, because the log has the progress.
 */
function showLoading(config: ProcessConfig): (doneBytes: number, totalBytes: number) => void {
  if (process.send) {
    return (doneBytes, totalBytes) => {
      const message: LoadingMessage = { kind: 'loading', doneBytes, totalBytes };
      process.send?.(message);
    };
  }
  if (!process.stderr.isTTY) return () => undefined;
  const line = new ProgressLine(process.stderr, () => systemClock.nowMs());
  return (doneBytes, totalBytes) => {
    line.show({ file: `weights of ${config.name || 'the model'}`, doneBytes, totalBytes });
  };
}

/**
 * Opens tracing where --otlp-endpoint, or a variable that OpenTelemetry defines for it, names a collector; its libraries are loaded only
 * then. @throws ConfigError for a variable that is no URL, or where --otlp-endpoint is given
 * and the libraries are not installed
 */
async function tracingOf(role: Role, config: ProcessConfig, log: Host['log']): Promise<Tracing | undefined> {
  const { env } = process;
  const traces = env['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'] ?? '';
  const endpoint = config.otlp_endpoint || traces || (env['OTEL_EXPORTER_OTLP_ENDPOINT'] ?? '');
  if (endpoint === '' || env['OTEL_SDK_DISABLED'] === 'true') return undefined;
  if (!/^https?:/.test(endpoint) || !URL.canParse(endpoint))
    throw new ConfigError(
      `${endpoint} is no URL of a collector: set --otlp-endpoint to http://HOST:PORT or https://HOST:PORT`,
    );
  const { openTracing } = await import('../../shared/base/tracing/otlp_tracing.ts');
  const name = config.name || role;
  return openTracing({ endpoint, ratio: config.trace_ratio, role, name, clock: systemClock, newId, log }).catch(
    (error: unknown) => {
      // A variable may be set for all programs of a machine: it ends none that can do without.
      if (config.otlp_endpoint !== '' || !(error instanceof ConfigError)) throw error;
      log.warn({ reason: error.message }, 'no traces');
      return undefined;
    },
  );
}

/** Returns what is done about clients whose certificate is refused: each machine and reason is said once a minute. */
function refusedClients(log: Host['log']): (from: string, why: string) => void {
  const said = new Map<string, number>();
  return (from, why) => {
    const key = `${from.replace(/:\d+$/, '')} ${why}`;
    const nowMs = systemClock.nowMs();
    if (nowMs - (said.get(key) ?? -Infinity) < REFUSED_SAID_MS) return;
    if (said.size >= MAX_REFUSED) said.clear();
    said.set(key, nowMs);
    log.warn({ from, why }, 'refused a connection of another process');
  };
}

/** Ends this process at once, without destructors: an ordinary exit aborts while the GPU still computes. */
function endNow(): void {
  process.kill(process.pid, 'SIGKILL');
}
