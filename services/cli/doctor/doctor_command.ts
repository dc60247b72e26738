/** `penstock doctor`: checks this machine, and the cluster of a router that answers; each fault comes with a cure. */
import { messageOf } from '../../../shared/base/failure.ts';
import { optionsHelp, type CommandLine, type OptionTable } from '../../../shared/base/options.ts';
import { clusterTokens } from '../lease_process.ts';
import { tlsOf } from '../tls_files.ts';
import {
  apiFindings,
  busServerFinding,
  hubFindings,
  lostFindings,
  memberFindings,
  type NodeFacts,
} from './cluster_checks.ts';
import { ClusterCalls, measureApi, measureConnect, readEvents } from './cluster_probes.ts';
import { deviceFindings } from './device_checks.ts';
import { diskFindings } from './disk_checks.ts';
import type { DoctorConfig } from './doctor_options.ts';
import { encryptionFindings } from './encryption_check.ts';
import { findingsText, warning, type Finding } from './finding.ts';
import {
  cpuFinding,
  memoryFinding,
  nodeFinding,
  openFilesFinding,
  portFinding,
  sameAddressFindings,
  sharedMemoryFinding,
} from './machine_checks.ts';
import {
  canShareMemory,
  deviceFiles,
  measureCpu,
  measureDevices,
  measureDisk,
  measureMemory,
  measureOpenFiles,
  measurePort,
} from './machine_probes.ts';

const HELP =
  'penstock doctor: checks this machine and the cluster of a router, and says what to do. Exit status 1: there are problems.';

/** Members that are checked at the same time. */
const WIDTH = 8;
/** Members that are checked at most (P1). */
const MAX_MEMBERS = 1_024;

/** Runs `penstock doctor`, prints its findings, and ends the process: with code 1 where there is a problem, else 0. */
export async function runDoctor(
  { config, isSet, isHelp, isJson }: CommandLine<OptionTable>,
  table: OptionTable,
): Promise<void> {
  if (isHelp) {
    process.stdout.write(`${HELP}\n\n${optionsHelp(table)}\n`);
    return;
  }
  const own = config as unknown as DoctorConfig;
  // The cluster second: a trial of a port listens on it, and load would show in the times of calls.
  const findings = [...(await machineFindings(own)), ...(await clusterFindings(own, isSet))];
  const text = isJson ? JSON.stringify({ findings }) : findingsText(findings);
  process.exitCode = findings.some(({ level }) => level === 'problem') ? 1 : 0;
  process.stdout.write(`${text}\n`);
}

/** Runs one check; a probe that throws gives a warning that names the error, never a finding without a measurement. */
async function attempt(
  check: string,
  run: () => Finding | Finding[] | Promise<Finding | Finding[]>,
): Promise<Finding[]> {
  try {
    return [await run()].flat();
  } catch (error) {
    return [
      warning(
        check,
        `This could not be checked: ${messageOf(error)}.`,
        'Run the command as the user of the processes.',
      ),
    ];
  }
}

async function machineFindings(config: DoctorConfig): Promise<Finding[]> {
  const { data_dir: dataDir, disk_bytes: diskBytes } = config;
  const parts = [
    attempt('node', () => nodeFinding(process.version)),
    attempt('cpu', () => cpuFinding(measureCpu())),
    attempt('memory', () => memoryFinding(measureMemory(), config.dram_bytes)),
    attempt('open files', () => openFilesFinding(measureOpenFiles(), config.max_connections)),
    attempt('shared memory', () => sharedMemoryFinding(process.platform, canShareMemory())),
    attempt('devices', async () => deviceFindings(await measureDevices(), deviceFiles())),
    attempt('disk', async () => diskFindings(dataDir, await measureDisk(dataDir), diskBytes)),
    attempt('port', async () => {
      const addresses = addressesOf(config);
      const findings: Finding[] = [];
      // One after the other: the trial of an address listens on it.
      for (const [bind, flag] of addresses) findings.push(portFinding(bind, flag, await measurePort(bind)));
      return [...findings, ...sameAddressFindings(addresses)];
    }),
  ];
  return (await Promise.all(parts)).flat();
}

/** Returns the addresses that processes of the configuration listen on, with the option of each. */
function addressesOf({ bind, hub_bind: hubBind, bulk_port: bulkPort }: DoctorConfig): [bind: string, flag: string][] {
  const http = bind || '127.0.0.1:8000';
  const channels: [string, string] = [`${http.slice(0, http.lastIndexOf(':'))}:${bulkPort}`, '--bulk-port'];
  return [[http, '--bind'], [hubBind || '127.0.0.1:8001', '--hub-bind'], ...(bulkPort === 0 ? [] : [channels])];
}

async function clusterFindings(config: DoctorConfig, isSet: ReadonlySet<string>): Promise<Finding[]> {
  const { router: hubAddress, bus } = config;
  const servers = bus === '' ? [] : bus.split(',');
  const busServers = servers.map((url) =>
    attempt('bus', async () => {
      const { hostname, port } = new URL(url);
      return busServerFinding(`${hostname}:${port || '4222'}`, await measureConnect(`${hostname}:${port || '4222'}`));
    }),
  );
  const found = isSet.has('cluster_token') ? undefined : clusterTokens.find(hubAddress);
  const calls = new ClusterCalls(found?.token ?? config.cluster_token, tlsOf(config));
  try {
    const [api, hub] = await Promise.all([measureApi(config), calls.measureHub(hubAddress)]);
    const hint = found?.hint ?? 'set PENSTOCK_CLUSTER_TOKEN to the token of the cluster';
    const isHubExpected = isSet.has('router') || api.kind === 'answered';
    const findings = [
      ...(await Promise.all(busServers)).flat(),
      ...apiFindings(config.api, isSet.has('api'), api),
      ...hubFindings(hubAddress, isHubExpected, hub, hint),
    ];
    if (api.kind !== 'answered') return findings;
    const nodes = (api.pool.nodes ?? []).slice(0, MAX_MEMBERS);
    findings.push(...lostFindings(await readEvents(config), nodes));
    const queue = [...nodes.entries()];
    const results: Finding[][] = [];
    const answered: string[] = [];
    const work = async (): Promise<void> => {
      for (let next = queue.shift(); next; next = queue.shift())
        results[next[0]] = await memberPart(calls, next[1], answered);
    };
    await Promise.all(Array.from({ length: WIDTH }, work));
    return [...findings, ...encryptionFindings(answered.sort(), config.tls_cert !== ''), ...results.flat()];
  } finally {
    calls.close();
  }
}

/** Checks a member. Its address is added to `answered` if it answers a call. */
function memberPart(calls: ClusterCalls, node: NodeFacts, answered: string[]): Promise<Finding[]> {
  return attempt(`${node.role} ${node.name}`, async () => {
    const measure = await calls.measureMember(node);
    if (typeof measure.call === 'number') answered.push(node.address);
    return memberFindings(node, measure);
  });
}
