/**
 * Every block of commands in the pages, run as it stands but for its addresses, ports and folders. A block that has no run here fails, and
 * so does a run whose block is gone. Real processes. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, describe, test } from 'vitest';
import { Authority } from '../support/certificates.ts';
import { Cluster, harbour, run, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { sized } from '../support/long.ts';
import { freePort } from '../support/free_ports.ts';
import { NatsServer } from '../support/nats_server.ts';
import { commandBlocksOf, pages, pageText } from '../support/pages.ts';
import { projectPath } from '../support/project.ts';
import { until } from '../support/until.ts';

const blocks = pages().flatMap((page) => commandBlocksOf(pageText(page)).map((block) => ({ page, block })));
const runs = new Set<string>();

/** The block of that page which begins so; it counts as run. */
function blockOf(page: string, beginning: string): string {
  const found = blocks.filter((one) => one.page === page && one.block.startsWith(beginning));
  assert.equal(found.length, 1, `${page} has one block that begins with ${beginning}`);
  const { block } = found[0]!;
  runs.add(block);
  return block;
}

const children: ChildProcess[] = [];
const folder = temporaryFolder();
/** The file of keys that the pages name, and the last key that was made for it. */
const keysFile = join(folder.path, 'keys.yaml');
let key = '';
afterAll(async () => {
  for (const child of children.toReversed()) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill('SIGTERM');
    await once(child, 'exit');
  }
  folder.remove();
});

/** Runs a command in a shell. @returns what it prints */
async function shell(command: string, environment: Record<string, string> = {}): Promise<string> {
  const { stdout } = await promisify(execFile)('sh', ['-c', command], {
    cwd: projectPath('.'),
    env: { ...process.env, ...environment },
  });
  return stdout;
}

/** Runs every `penstock` line of a block in the background, with what its `export` lines set. */
async function startAll(block: string, replace: (line: string) => string): Promise<void> {
  const lines = block.split('\n').map((line) => line.replace(/\s+#.*$/, ''));
  const exports = lines.filter((line) => line.startsWith('export '));
  const environment: Record<string, string> = {};
  for (const line of exports) {
    const name = /^export (\w+)=/.exec(line)?.[1];
    assert(name);
    environment[name] = (await shell(`${line}; printenv ${name}`)).trim();
    assert(environment[name].length > 0);
  }
  for (const line of lines.filter((one) => !exports.includes(one))) {
    const [command, ...args] = replace(line).replaceAll('keys.yaml', keysFile).split(/\s+/);
    assert.equal(command, 'penstock');
    if (args[0] === 'key') await makeKey(args);
    else children.push(run(args, environment));
  }
}

/** Makes a key that may use everything, and its entry in the file. */
async function makeKey(args: readonly string[]): Promise<void> {
  const { output, code, errors } = await runToEnd([...args, '--admin']);
  assert.equal(code, 0, errors);
  key = output.trim();
}

/** Asks for a completion until there is one. */
async function answers(url: string): Promise<void> {
  await until(`${url} answers`, async () => {
    const response = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-api-key': key },
      body: JSON.stringify({ model: 'harbour', prompt: 'The Heron', max_tokens: 4 }),
    }).catch(() => undefined);
    return response?.status === 200;
  });
}

describe('README', () => {
  test('npm start serves, and the curl beneath it has the answer that the page says', async () => {
    const start = blockOf('README.md', 'npm ci --omit=dev && npm start');
    const curl = blockOf('README.md', 'curl ');
    const [port, hub] = [await freePort(), await freePort()];
    // Dependencies are there already.
    const command = start.replace('npm ci --omit=dev && ', '');
    const options = `--bind 127.0.0.1:${port} --hub-bind 127.0.0.1:${hub} --data-dir ${join(folder.path, 'start')}`;
    const child = spawn('sh', ['-c', `exec ${command} -- ${options}`], { cwd: projectPath('.'), stdio: 'ignore' });
    children.push(child);
    await answers(`http://127.0.0.1:${port}`);
    const { choices } = JSON.parse(await shell(curl.replace(':8000/', `:${port}/`))) as {
      choices: { message: { content: string } }[];
    };
    const said = /`"content": "([^"]+)"`/.exec(pageText('README.md'))?.[1];
    assert.equal(choices[0]?.message.content, said);
    const [shows, sets] = blockOf('services/router/PLACEMENT.md', 'npx penstock policy')
      .split('\n')
      .map(
        (line) =>
          `${line.replace('npx penstock', 'node dist/services/cli/main.js').replace(/ +#.*/, '')} --router 127.0.0.1:${hub}`,
      );
    assert(shows && sets);
    assert.match(await shell(shows), /priced/);
    assert.match(await shell(sets), /mooncake/);
    child.kill('SIGTERM');
    await once(child, 'exit');
  });

  test('both commands are what continuous integration runs', () => {
    const tests = blockOf('README.md', 'npm ci && npm test');
    const ci = readFileSync(projectPath('.ci/run'), 'utf8').split('\n');
    for (const command of tests.split(' && ')) assert(ci.includes(command), command);
  });

  test('the processes of several machines find each other', async () => {
    const block = blockOf('README.md', 'export PENSTOCK_CLUSTER_TOKEN');
    const [http, hub, member] = [await freePort(), await freePort(), await freePort()];
    await startAll(block, (line) =>
      line
        .replaceAll(/10\.0\.0\.(\d)/g, '127.0.0.$1')
        .replaceAll(':8000', `:${http}`)
        .replaceAll(':8001', `:${hub}`)
        .replaceAll(':9000', `:${member}`)
        .replace('DIR', harbour)
        .replace('/var/lib/penstock', join(folder.path, 'machines')),
    );
    const url = `http://127.0.0.1:${http}`;
    await answers(url);
    const roles = await until('all four have joined', async () => {
      const { nodes } = (await (await fetch(`${url}/api/pool`, { headers: { 'x-api-key': key } })).json()) as {
        nodes: { role: string; state: string }[];
      };
      const members = nodes.filter(({ role, state }) => role !== 'router' && state === 'alive');
      const alive = members.map(({ role }) => role);
      return alive.length === 3 && alive;
    });
    assert.deepEqual(roles.toSorted(), ['decode', 'prefill', 'store']);
  });
});

describe('services', () => {
  test('several routers over NATS serve with the same instances', async () => {
    const block = blockOf('services/README.md', 'export PENSTOCK_CLUSTER_TOKEN');
    const server = await NatsServer.start();
    await makeKey(['key', 'of-this-test', '--tenant', 'tests', '--append', keysFile]);
    const [http, member] = [await freePort(), await freePort()];
    await startAll(block, (line) =>
      line
        .replaceAll(/nats:\/\/10\.0\.0\.\d:4222/g, server.url)
        .replaceAll(/10\.0\.0\.(\d)/g, '127.0.0.$1')
        .replaceAll(':8000', `:${http}`)
        .replaceAll(':9000', `:${member}`)
        .replace('DIR', harbour),
    );
    for (const host of ['127.0.0.1', '127.0.0.2']) await answers(`http://${host}:${http}`);
    for (const child of children.splice(-3)) {
      child.kill('SIGTERM');
      await once(child, 'exit');
    }
    await server.kill();
  });

  test('a router serves HTTPS, and top knows its authority', async () => {
    const [routerLine = '', topLine = ''] = blockOf('services/README.md', 'penstock router --bind 10.0.0.1:8443').split(
      '\n',
    );
    const authority = new Authority();
    authority.issue('https');
    await makeKey(['key', 'of-https', '--tenant', 'tests', '--append', keysFile]);
    const [http, hub] = [await freePort(), await freePort()];
    const own = (line: string): string[] =>
      line
        .replaceAll('10.0.0.1:8443', `127.0.0.1:${http}`)
        .replace('https.crt', authority.file('https.pem'))
        .replace('https.key', authority.file('https.key'))
        .replace('keys.yaml', keysFile)
        .replace('DIR', harbour)
        .replace('KEY', key)
        .split(' ');
    const router = run([...own(routerLine).slice(1), '--hub-bind', `127.0.0.1:${hub}`]);
    children.push(router);
    const [, , ...top] = own(topLine);
    assert.match(topLine, /^NODE_EXTRA_CA_CERTS=ca\.pem penstock top /);
    const trusted = { NODE_EXTRA_CA_CERTS: authority.file('ca.pem') };
    const shown = await until('the router is shown', async () => {
      const { code, output } = await runToEnd([...top, '--once'], trusted);
      return code === 0 && output;
    });
    assert.match(shown, /router/);
    assert.equal((await runToEnd([...top, '--once'])).code, 1, 'nobody else trusts it');
    children.pop();
    router.kill('SIGTERM');
    await once(router, 'exit');
    authority.remove();
  });

  test('the commands do what the page says', async () => {
    const lines = blockOf('services/README.md', 'npx penstock').split('\n');
    const argsOf = (beginning: string): string[] => {
      const line = lines.find((one) => one.startsWith(`npx penstock ${beginning}`));
      assert(line, beginning);
      return line.split(' ').slice(3);
    };
    const up = await Cluster.up(...argsOf('up'));
    const roles = (await up.pool()).map(({ role }) => role);
    assert.deepEqual(roles.toSorted(), ['decode', 'decode', 'prefill', 'prefill', 'store']);
    await up.close();
    const devices = await runToEnd(['devices', ...argsOf('devices')]);
    assert.equal(devices.code, 0, devices.errors);
    assert.match(devices.output, /wasm/);
    const config = await runToEnd(['config', ...argsOf('config')]);
    assert.match(config.output, /^block_size: 64$/m);
    // Several routers want a nats-server of the PATH: test/e2e/several_routers.test.ts.
    assert.equal(lines.filter((line) => line === 'npx penstock up --router 2').length, 1);
    assert.equal(lines.length, 4);
  });
});

test('the replay prints the figures of every request', async () => {
  const args = blockOf('services/replay/README.md', 'npx penstock replay').split(' ').slice(2);
  const replay = await runToEnd(args);
  assert.equal(replay.code, 0, replay.errors);
  assert.match(replay.output, /200 requests in .*2 prefill and 2 decode instances.*\(default\) +– +2 /s);
});

test('the plan names the cheapest cluster that meets the targets', async () => {
  const args = blockOf('services/replay/README.md', 'npx penstock plan').split(' ').slice(2);
  const plan = await runToEnd(args);
  assert.equal(plan.code, 0, plan.errors);
  assert.match(plan.output, /200 requests at .*Least cost: \d+ both \(cost \d+\)\./s);
});

describe('config and benchmarks', () => {
  test('what builds is run by every test command and by continuous integration', () => {
    const { scripts } = JSON.parse(pageText('package.json')) as { scripts: Record<string, string> };
    const commands = blockOf('config/README.md', 'npm run build').split('\n');
    assert.deepEqual(commands, ['npm run build', 'npm run reference']);
    // Building here would take the build from under the other tests; its pages are compared in pages.test.ts.
    for (const script of ['test', 'lint', 'reference']) assert.match(scripts[script] ?? '', /npm run --silent build/);
    assert.match(scripts['lint'] ?? '', /npm run --silent lint:reference$/);
  });

  test('the simulation runs without a failure', async () => {
    const command = blockOf('test/sim/README.md', 'npm run sim -- ');
    // The script builds first.
    const numSeeds = sized(20, 4);
    const own = command.replace('npm run sim --', 'node dist/test/sim/main.js');
    assert.match(own, /--seeds 20\b/);
    const output = await shell(own.replace('--seeds 20', `--seeds ${numSeeds}`));
    assert.match(output, new RegExp(`sim: ${numSeeds} seeds, 0 failed`));
  });

  test('the benchmarks say what there is', async () => {
    const command = blockOf('test/bench/README.md', 'npm run bench');
    assert.match(await shell(command), /usage: npm run bench -- NAME/);
  });
});

test('no block of commands is left out', () => {
  assert.deepEqual(
    blocks.filter(({ block }) => !runs.has(block)),
    [],
  );
});
