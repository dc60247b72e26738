/** The package as people get it: packed, installed into an empty folder, run there without what only development needs. Budget: 90 s. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'vitest';
import { temporaryFolder } from '../support/cluster.ts';
import { projectPath } from '../support/project.ts';

/** Kernels, native ones among them, the dashboard and the two models of 4 MB. */
const MAX_PACKED_BYTES = 10_500_000;

const npm = (cwd: string, ...args: string[]): string =>
  execFileSync('npm', [...args, '--no-audit', '--no-fund', '--prefer-offline', '--loglevel', 'error'], {
    cwd,
    encoding: 'utf8',
  });

test('a packed package installs into an empty folder and answers there', async () => {
  const folder = temporaryFolder();
  try {
    // The existing build is packed, by hand: the build that npm starts before would replace files that other tests are using.
    execFileSync(process.execPath, [projectPath('config/sbom.js')]);
    const [{ filename }] = JSON.parse(
      npm(projectPath('.'), 'pack', '--json', '--ignore-scripts', '--pack-destination', folder.path),
    ) as [{ filename: string }];
    const packed = join(folder.path, filename);
    assert(statSync(packed).size < MAX_PACKED_BYTES, `${statSync(packed).size} bytes`);

    writeFileSync(join(folder.path, 'package.json'), '{"private":true}');
    npm(folder.path, 'install', packed);
    const own = join(folder.path, 'node_modules/@penstock/penstock');
    assert(existsSync(join(own, 'npm-shrinkwrap.json')), 'its dependencies are those it was tested with');
    const installed = [folder.path, own].flatMap((at) =>
      existsSync(join(at, 'node_modules')) ? readdirSync(join(at, 'node_modules')) : [],
    );
    for (const name of ['typescript', 'vitest', 'assemblyscript', 'eslint', 'playwright-core'])
      assert(!installed.includes(name), `${name} is for development`);
    assert(
      !existsSync(join(own, 'node_modules/@opentelemetry/sdk-trace-base')),
      'traces are installed by who wants them',
    );
    const sbom = JSON.parse(readFileSync(join(own, 'dist/sbom.cdx.json'), 'utf8')) as {
      bomFormat: string;
      components: { name: string; version: string; hashes?: { content: string }[] }[];
    };
    const { dependencies } = JSON.parse(readFileSync(join(own, 'package.json'), 'utf8')) as {
      dependencies: Record<string, string>;
    };
    assert.equal(sbom.bomFormat, 'CycloneDX');
    for (const name of Object.keys(dependencies)) {
      const listed = sbom.components.find((one) => one.name === name);
      assert(listed?.version && listed.hashes?.[0]?.content, `${name} is in the list of what the package brings`);
    }
    const entries = JSON.parse(readFileSync(projectPath('dist/entries.json'), 'utf8')) as string[];
    for (const entry of entries)
      assert(existsSync(join(own, 'dist', entry.replace(/ts$/, 'js'))), `${entry} is in \`files\` of package.json`);
    const ofTests = readdirSync(join(own, 'test'), { recursive: true, withFileTypes: true });
    assert(
      ofTests.every((entry) => entry.isDirectory() || entry.name.endsWith('.md')) &&
        !existsSync(join(own, 'dist/test')),
      'tests stay at home, but for their pages',
    );

    const bin = join(folder.path, 'node_modules/.bin/penstock');
    assert.match(execFileSync(bin, ['--version'], { cwd: folder.path, encoding: 'utf8' }), /^penstock \d/);
    const up = spawn(
      bin,
      ['up', '--json', '--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--data-dir', join(folder.path, 'data')],
      { cwd: folder.path, stdio: ['ignore', 'pipe', 'ignore'] },
    );
    try {
      const [line] = (await once(createInterface(up.stdout), 'line')) as [string];
      const { url } = JSON.parse(line) as { url: string };
      const response = await fetch(`${url}/v1/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'harbour', prompt: 'The Heron', max_tokens: 8, temperature: 0 }),
      });
      const { choices } = (await response.json()) as { choices: { text: string }[] };
      assert((choices[0]?.text.length ?? 0) > 0);
    } finally {
      up.kill('SIGTERM');
      await once(up, 'exit');
    }
  } finally {
    folder.remove();
  }
});

test('the lock has the native parts of every system that is served', () => {
  const lock = JSON.parse(readFileSync(projectPath('npm-shrinkwrap.json'), 'utf8')) as {
    packages: Record<string, unknown>;
  };
  for (const system of ['linux-x64', 'linux-arm64', 'darwin-x64', 'darwin-arm64', 'win32-x64', 'win32-arm64'])
    for (const name of [
      `@lmdb/lmdb-${system}`,
      `@koromix/koffi-${system}`,
      `@node-rs/xxhash-${system.replace(/^linux.*/, '$&-gnu').replace(/^win32.*/, '$&-msvc')}`,
    ])
      assert(`node_modules/${name}` in lock.packages, name);
  // One package has all of them.
  const webgpu = readdirSync(projectPath('node_modules/webgpu/dist'));
  for (const system of ['linux-x64', 'linux-arm64', 'darwin-universal', 'win32-x64', 'win32-arm64'])
    assert(webgpu.includes(system), `webgpu for ${system}`);
});
