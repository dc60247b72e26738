/**
 * Checks of `penstock doctor` judge measurements: each fault has its sentence and its cure, and a sound measurement has none. What probes
 * measure on a real machine and cluster is seen by e2e/inspection. Budget: 2 s.
 */
import assert from 'node:assert/strict';
import { createServer, type AddressInfo } from 'node:net';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'vitest';
import {
  apiFindings,
  busServerFinding,
  hubFindings,
  lostFindings,
  memberFindings,
  type ApiMeasure,
  type MemberMeasure,
  type NodeFacts,
} from '../../../services/cli/doctor/cluster_checks.ts';
import { fastestMs, measureConnect } from '../../../services/cli/doctor/cluster_probes.ts';
import { deviceFindings } from '../../../services/cli/doctor/device_checks.ts';
import { diskFindings, type DiskMeasure } from '../../../services/cli/doctor/disk_checks.ts';
import { encryptionFindings } from '../../../services/cli/doctor/encryption_check.ts';
import { findingsText, problem, type Finding } from '../../../services/cli/doctor/finding.ts';
import {
  cpuFinding,
  memoryFinding,
  nodeFinding,
  openFilesFinding,
  portFinding,
  sameAddressFindings,
  sharedMemoryFinding,
} from '../../../services/cli/doctor/machine_checks.ts';
import {
  canShareMemory,
  measureCpu,
  measureDisk,
  measureMemory,
  measureOpenFiles,
  measurePort,
} from '../../../services/cli/doctor/machine_probes.ts';
import { temporaryFolder } from '../../support/cluster.ts';

const GIB = 2 ** 30;

/** One finding of `findings` with that level, whose sentence and cure match. */
function expectFinding(
  findings: Finding | readonly Finding[],
  level: Finding['level'],
  text: RegExp,
  cure?: RegExp,
): void {
  const found = [findings].flat().filter((one) => one.level === level && text.test(one.text));
  assert.equal(found.length, 1, `one ${level} that matches ${text}: ${JSON.stringify(findings)}`);
  if (cure) assert.match(found[0]?.cure ?? '', cure);
  else assert.equal(found[0]?.cure, undefined);
}

describe('the machine', () => {
  test('Node', () => {
    expectFinding(nodeFinding('v20.19.0'), 'ok', /v20\.19\.0 is new enough/);
    expectFinding(nodeFinding('v22.1.0'), 'ok', /new enough/);
    expectFinding(nodeFinding('v20.18.9'), 'problem', /too old: 20\.19 is needed/, /Install Node 20\.19/);
  });

  test('cores and the CPU quota', () => {
    expectFinding(cpuFinding({ usable: 8, quota: Infinity, offered: 8 }), 'ok', /8 cores are usable/);
    const short = { usable: 1, quota: 1.5, offered: 8 };
    expectFinding(cpuFinding(short), 'warning', /quota of 1\.5 leaves 1 of 8 cores/, /docker --cpus/);
    expectFinding(cpuFinding({ usable: 1, quota: Infinity, offered: 1 }), 'warning', /one core/, /at least 2 cores/);
  });

  test('memory and the limit of a container', () => {
    const plenty = { total: 16 * GIB, available: 8 * GIB, limit: Infinity };
    expectFinding(memoryFinding(plenty, GIB), 'ok', /8\.0 GiB of 16\.0 GiB memory are available\.$/);
    expectFinding(memoryFinding({ ...plenty, available: GIB }, GIB), 'warning', /takes 1\.5 GiB/, /--dram-bytes/);
    const limited = { ...plenty, limit: GIB / 4 };
    expectFinding(memoryFinding(limited, GIB), 'problem', /container's limit is 256 MiB/, /docker --memory/);
  });

  test('open files', () => {
    expectFinding(openFilesFinding(20_000, 16_384), 'ok', /20000 files/);
    expectFinding(openFilesFinding(4_096, 16_384), 'warning', /needs 16896/, /ulimit -n 16896/);
    expectFinding(openFilesFinding(256, 16_384), 'problem', /256 files/, /LimitNOFILE/);
    expectFinding(openFilesFinding(4_096, 1_000), 'ok', /4096/);
  });

  test('shared memory', () => {
    expectFinding(sharedMemoryFinding('linux', true), 'ok', /memfd/);
    expectFinding(sharedMemoryFinding('linux', false), 'warning', /could not be shared/, /seccomp/);
    expectFinding(sharedMemoryFinding('darwin', false), 'ok', /on darwin: .* sockets/);
  });

  test('ports: free, of Penstock, of others, not allowed', () => {
    const judge = (use: Parameters<typeof portFinding>[2]): Finding => portFinding('127.0.0.1:8000', '--bind', use);
    expectFinding(judge({ kind: 'free' }), 'ok', /127\.0\.0\.1:8000 \(--bind\) is free/);
    expectFinding(
      judge({ kind: 'used', pid: 7, title: 'penstock router r' }),
      'ok',
      /used by penstock router r \(process 7\)/,
    );
    expectFinding(
      judge({ kind: 'used', pid: 8, title: 'nginx: master' }),
      'problem',
      /process 8 \(nginx: master\)/,
      /--bind/,
    );
    const unseen = { kind: 'used', pid: undefined, title: undefined } as const;
    expectFinding(judge(unseen), 'problem', /a process that this user cannot see/, /End that process/);
    expectFinding(judge({ kind: 'refused', code: 'EACCES' }), 'problem', /may not listen/, /port from 1024/);
    expectFinding(
      judge({ kind: 'refused', code: 'EADDRNOTAVAIL' }),
      'problem',
      /no address of this machine/,
      /0\.0\.0\.0/,
    );
    const twice = sameAddressFindings([
      ['127.0.0.1:8000', '--bind'],
      ['127.0.0.1:8001', '--bulk-port'],
      ['127.0.0.1:8000', '--hub-bind'],
    ]);
    expectFinding(twice, 'problem', /--bind and --hub-bind both name 127\.0\.0\.1:8000/, /--hub-bind/);
    expectFinding(judge({ kind: 'refused', code: 'EINVAL' }), 'problem', /failed: EINVAL/, /another address/);
  });
});

describe('devices', () => {
  const auto = { device: 'wasm', reason: 'no WebGPU adapter' };
  const adapter = { device: 'webgpu:0', name: 'Radeon', isSoftware: false, notes: [] };

  test('a list that failed, an adapter with a note, a device without a driver', () => {
    expectFinding(deviceFindings('`penstock devices` ended with SIGSEGV', []), 'problem', /SIGSEGV/, /--device wasm/);
    const noted = { auto, adapters: [{ ...adapter, notes: ['the adapter cannot be used: lost'] }] };
    expectFinding(deviceFindings(noted, []), 'warning', /Radeon: the adapter cannot be used/, /Update the driver/);
    const software = { auto, adapters: [{ ...adapter, isSoftware: true }] };
    const findings = deviceFindings(software, ['/dev/nvidia0']);
    expectFinding(findings, 'warning', /\/dev\/nvidia0, but no WebGPU adapter/, /Vulkan driver/);
    expectFinding(findings, 'ok', /auto is wasm: no WebGPU adapter/);
  });

  test('an adapter that works, and a machine without any', () => {
    const works = deviceFindings({ auto, adapters: [adapter] }, ['/dev/dri/renderD128']);
    assert.deepEqual(
      works.map(({ level }) => level),
      ['ok', 'ok'],
    );
    assert.equal(deviceFindings({ auto, adapters: [] }, []).length, 1);
  });
});

describe('the disk of --data-dir', () => {
  const sound: DiskMeasure = { folder: '/data', magic: 0xef53, freeBytes: 100 * GIB, write: 0.4 };
  const judge = (change: Partial<DiskMeasure>, diskBytes = 4 * GIB): Finding[] =>
    diskFindings('/data/stores', { ...sound, ...change }, diskBytes);

  test('sound', () => {
    assert.deepEqual(
      judge({}).map(({ level, text }) => `${level}: ${text}`),
      [
        'ok: 100.0 GiB are free in /data; a store takes 4.0 GiB (--disk-bytes).',
        'ok: A write of 4 KiB with fsync takes 0.4 ms in /data.',
        'ok: /data is on a file system ext4.',
      ],
    );
  });

  test('room', () => {
    expectFinding(judge({ freeBytes: 4.5 * GIB }), 'warning', /less than the 5\.0 GiB/, /lower --disk-bytes/);
    expectFinding(judge({ freeBytes: 2 ** 20 }), 'problem', /1 MiB are free/, /another disk with --data-dir/);
    assert(judge({ freeBytes: 0 }, 0).every(({ level }) => level === 'ok'));
  });

  test('writes', () => {
    expectFinding(judge({ write: 45 }), 'warning', /takes 45 ms .* slowly/, /local SSD/);
    expectFinding(judge({ write: 'EACCES: permission denied' }), 'problem', /permission denied/, /Make \/data\/stores/);
    expectFinding(judge({ write: 'ENOSPC: no space left' }), 'problem', /no space left/, /^Free some space/);
    expectFinding(judge({ write: 'EROFS: read-only' }), 'problem', /read-only/, /^Mount the file system writable/);
    expectFinding(judge({ write: 'ENOTDIR: no directory' }), 'problem', /no directory/, /^Remove the file/);
  });

  test.each([
    [0x6969, 'problem', /NFS: LMDB maps/, /local disk/],
    [0xfe534d42, 'problem', /SMB 2/, /local disk/],
    [0x65735546, 'warning', /FUSE/, /mmap and locks/],
    [0x01021994, 'warning', /tmpfs/, /--disk-bytes 0/],
    [0x794c7630, 'warning', /overlayfs.* container/, /volume/],
    [0x1234, 'ok', /of type 0x1234/, undefined],
  ] as const)('file system 0x%s', (magic, level, text, cure) => {
    expectFinding(
      judge({ magic }).filter(({ check }) => check === 'file system'),
      level,
      text,
      cure,
    );
  });
});

describe('the cluster', () => {
  const node: NodeFacts = {
    name: 'decode-1',
    role: 'decode',
    address: '10.0.0.3:9000',
    epoch: 'e',
    state: 'alive',
    unreachable: null,
    fetched_bytes: { memory: 0, socket: 2 ** 30, call: 0 },
  };
  const answered: ApiMeasure & { kind: 'answered' } = {
    kind: 'answered',
    roundTripMs: 2,
    offsetMs: 30,
    uncertaintyMs: 1,
    pool: { nodes: [node], bus: { name: 'hub', connected: true, unverified: 0, replayed: 0 } },
  };
  const judge = (change: Partial<typeof answered>): Finding[] =>
    apiFindings('http://10.0.0.1:8000', true, { ...answered, ...change });

  test('sound', () => {
    assert(judge({}).every(({ level }) => level === 'ok'));
    expectFinding(judge({}), 'ok', /clock is 30 ms ahead of/);
  });

  test('a router that does not answer is a problem where its address was given', () => {
    const silent = { kind: 'silent', trouble: { why: 'ECONNREFUSED' } } as const;
    expectFinding(
      apiFindings('http://a:1', true, silent),
      'problem',
      /No router answers at http:\/\/a:1: ECONNREFUSED/,
      /--api/,
    );
    expectFinding(apiFindings('http://a:1', false, silent), 'ok', /no cluster was looked for/);
    const refused = { kind: 'refused', trouble: { why: 'it wants a key', cure: 'give one' } } as const;
    expectFinding(
      apiFindings('http://a:1', false, refused),
      'problem',
      /a:1 answers, but.*: it wants a key\./,
      /^Give one\.$/,
    );
    expectFinding(
      apiFindings('http://a:1', false, { kind: 'foreign', status: 404 }),
      'problem',
      /is no router/,
      /--api/,
    );
  });

  test('clocks, within what can be measured', () => {
    expectFinding(judge({ offsetMs: -5_000 }), 'warning', /5000 ms behind/, /chrony/);
    expectFinding(judge({ offsetMs: 1_400, uncertaintyMs: 500 }), 'ok', /± 500 ms/);
  });

  test('the bus', () => {
    const lost = { ...answered.pool, bus: { name: 'nats://a', connected: false, unverified: 3, replayed: 99 } };
    expectFinding(judge({ pool: lost }), 'problem', /lost the bus \(nats:\/\/a\)/, /NATS/);
    expectFinding(judge({ pool: lost }), 'warning', /dropped 3 messages/, /PENSTOCK_CLUSTER_TOKEN/);
    assert(!judge({ pool: lost }).some(({ text }) => text.includes('not new')));
    const replayed = { ...answered.pool, bus: { ...lost.bus, replayed: 100 } };
    expectFinding(
      judge({ pool: replayed }),
      'warning',
      /dropped 100 messages .* not new/,
      /account at the NATS servers/,
    );
    expectFinding(
      busServerFinding('a:4222', 'ECONNREFUSED'),
      'problem',
      /a:4222 accepts no connection/,
      /correct --bus/,
    );
    expectFinding(busServerFinding('a:4222', 1), 'ok', /accepts connections in 1\.0 ms/);
  });

  test('what crosses the network in clear', () => {
    const [here, away] = ['127.0.0.1:9000', '10.0.0.3:9000'];
    assert.deepEqual(encryptionFindings([], false), [], 'who answers nothing shows nothing');
    expectFinding(encryptionFindings([here, away], true), 'ok', /encrypted/);
    expectFinding(encryptionFindings([here], false), 'ok', /over the loopback/);
    expectFinding(
      encryptionFindings([here, away], false),
      'warning',
      /cross the network in clear: 10\.0\.0\.3:9000 answer without TLS/,
      /--tls-cert/,
    );
    const many = Array.from({ length: 5 }, (_, i) => `10.0.0.${i}:9000`);
    expectFinding(encryptionFindings(many, false), 'warning', /10\.0\.0\.2:9000 and 2 more answer/, /WireGuard/);
  });

  test('a cluster that generates nothing', () => {
    expectFinding(judge({ pool: { nodes: [] } }), 'problem', /no decode instance/, /penstock decode/);
    const dead = { nodes: [{ ...node, state: 'unreachable' }] };
    expectFinding(judge({ pool: dead }), 'problem', /No decode instance of the cluster is alive/, /see its log/);
  });

  test('the hub and the token', () => {
    expectFinding(hubFindings('a:1', true, { kind: 'answered', roundTripMs: 3 }, ''), 'ok', /takes the cluster token/);
    const refused = { kind: 'refused', reason: 'wrong cluster token' } as const;
    expectFinding(hubFindings('a:1', true, refused, 'set X'), 'problem', /refuses the cluster token/, /set X/);
    const silent = { kind: 'silent', reason: 'ECONNREFUSED' } as const;
    expectFinding(hubFindings('a:1', true, silent, ''), 'problem', /No hub answers/, /--router/);
    expectFinding(hubFindings('a:1', false, silent, ''), 'ok', /No hub answers/);
  });

  const sound: MemberMeasure = { connect: 1, call: 2, channel: { port: 9, connect: 1, isShared: false } };
  const judgeMember = (change: Partial<MemberMeasure>, facts: Partial<NodeFacts> = {}): Finding[] =>
    memberFindings({ ...node, ...facts }, { ...sound, ...change });

  test('the way to a member', () => {
    expectFinding(judgeMember({}), 'ok', /answers a call in 2\.0 ms; .* socket \(port 9\)/);
    expectFinding(judgeMember({ channel: { port: 9, connect: 1, isShared: true } }), 'ok', /shared memory/);
    expectFinding(judgeMember({ channel: undefined }), 'ok', /2\.0 ms\.$/);
    expectFinding(judgeMember({ channel: { code: 'not_found', message: '' } }), 'ok', /--transport grpc/);
    expectFinding(
      judgeMember({ connect: 'ECONNREFUSED' }),
      'problem',
      /No connection to 10\.0\.0\.3:9000/,
      /--advertise/,
    );
    const failed = (code: string): Partial<MemberMeasure> => ({ call: { code, message: 'm' } });
    expectFinding(judgeMember(failed('deadline_exceeded')), 'problem', /is stopped or hangs/, /kill -CONT/);
    expectFinding(judgeMember(failed('not_found')), 'problem', /Another process answers/, /different addresses/);
    expectFinding(judgeMember(failed('unauthenticated')), 'problem', /refuses the cluster token/, /same PENSTOCK/);
    expectFinding(judgeMember(failed('internal')), 'problem', /failed: m/, /log/);
    expectFinding(judgeMember({ call: 80 }), 'warning', /80 ms, which shows/, /one network/);
    const closed = { channel: { port: 9, connect: 'ETIMEDOUT', isShared: false } };
    expectFinding(judgeMember(closed), 'warning', /port 9 cannot be reached/, /--bulk-port/);
    const none = { channel: { code: 'internal', message: 'm' } };
    expectFinding(judgeMember(none), 'warning', /opens no data channel: m/, /over calls/);
  });

  test('the state of a member at its router', () => {
    const unreachable = { state: 'unreachable', unreachable: 'no route' };
    expectFinding(judgeMember({}, unreachable), 'problem', /cannot call it at .*: no route/, /--advertise/);
    expectFinding(judgeMember({}, { state: 'suspect' }), 'warning', /not heard of it/, /--silence-ms/);
    expectFinding(judgeMember({}, { state: 'draining' }), 'warning', /drains/, /another process/);
    const slow = { fetched_bytes: { memory: 0, socket: 2 ** 20, call: 2 ** 30 } };
    expectFinding(judgeMember({}, slow), 'warning', /over calls \(1024 MiB\)/, /--bulk-port/);
  });

  test('members that were lost and are not back', () => {
    const event = { kind: 'lost', node: 'decode-2', text: 'silent for 3 s.', at: 0 };
    const left = { ...event, kind: 'left', node: 'decode-3' };
    const events = [left, event, { ...event, node: 'decode-1' }, { ...event, node: 'decode-3' }];
    const found = lostFindings(events, [node]);
    assert.equal(found.length, 1);
    expectFinding(
      found,
      'warning',
      /decode-2 was lost at 1970-01-01T00:00:00\.000Z: silent for 3 s\.$/,
      /Start it again/,
    );
  });
});

test('text has a cure below each fault, and a count', () => {
  const lines = findingsText([nodeFinding('v22.0.0'), nodeFinding('v18.0.0')]).split('\n');
  assert.equal(lines.length, 4);
  assert.match(lines[1] ?? '', /^PROBLEM {2}node /);
  assert.match(lines[2] ?? '', /^ +→ Install Node/);
  assert.equal(lines[3], '2 checks, 1 problem, 0 warnings');
});

describe('probes of this machine', () => {
  test('memory, cores, files and shared memory have plausible values', () => {
    const { total, available, limit } = measureMemory();
    assert(available > 0 && available <= total && limit > 0);
    assert(measureCpu().usable >= 1);
    assert(measureOpenFiles() > 0);
    if (process.platform === 'linux') assert(canShareMemory());
  });

  test('a port is free, then used by this process', async () => {
    const server = createServer();
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    const bind = `127.0.0.1:${(server.address() as AddressInfo).port}`;
    const used = await measurePort(bind);
    assert(used.kind === 'used');
    if (process.platform === 'linux') assert.equal(used.pid, process.pid);
    assert.equal(typeof (await measureConnect(bind)), 'number');
    await new Promise((done) => server.close(done));
    assert.deepEqual(await measurePort(bind), { kind: 'free' });
    assert.equal(await measureConnect(bind), 'ECONNREFUSED');
  });

  test('a disk is measured in the nearest folder that exists, and nothing is left there', async () => {
    const folder = temporaryFolder();
    const measure = await measureDisk(join(folder.path, 'not', 'there'));
    assert.equal(measure.folder, folder.path);
    assert.equal(typeof measure.write, 'number');
    assert(measure.freeBytes > 0);
    assert.deepEqual(readdirSync(folder.path), []);
    assert(!existsSync(join(folder.path, 'not')));
    folder.remove();
  });
});

test('the fastest call counts: a machine that is busy for a moment is not a slow way, a slow way is', async () => {
  const measure = async (...ms: readonly number[]): Promise<[number, number]> => {
    let [nowMs, numCalls] = [0, 0];
    const call = (): Promise<void> => {
      nowMs += ms[Math.min(numCalls++, ms.length - 1)] ?? 0;
      return Promise.resolve();
    };
    return [await fastestMs(call, { nowMs: () => nowMs }), numCalls];
  };
  assert.deepEqual(await measure(66, 90, 70, 66, 80, 120, 3), [3, 7]);
  assert.deepEqual(await measure(3, 90, 70, 66, 80), [3, 5]);
  // Every call of a slow way is slow; the command does not ask for ever.
  assert.deepEqual(await measure(60), [60, 25]);
  assert.deepEqual(await measure(900), [900, 5]);
  await assert.rejects(() => fastestMs(() => Promise.reject(new Error('down')), { nowMs: () => 0 }), /down/);
});

test('what other processes say reaches the terminal without control characters', () => {
  const text = findingsText([problem('store a\x1b[2J', 'lost: \x1b]0;title\x07', 'Start it.')]);
  assert.ok(!text.includes('\x1b') && !text.includes('\x07'));
  assert.match(text, /^PROBLEM {2}store a\?\[2J {2}lost: \?\]0;title\?\n/);
});
