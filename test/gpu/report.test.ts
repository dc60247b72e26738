/** The report of a GPU, rehearsed on the software driver: its file after each stage, one that ends badly, one that is stopped. Budget: 30 s. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, expect, test } from 'vitest';
import { shaderFolder } from '../support/downloads.ts';
import { projectPath } from '../support/project.ts';
import { isLong } from '../support/long.ts';
import { stageNames } from './report_stages.ts';

const folder = mkdtempSync(`${tmpdir()}/gpu-report-`);
afterAll(() => {
  rmSync(folder, { recursive: true });
});

interface Saved {
  readonly device: string;
  stages: Record<string, { status: string; figures: { name: string; value: number }[]; error?: string }>;
}
const saved = (out: string): Saved => JSON.parse(readFileSync(out, 'utf8')) as Saved;
const argsOf = (out: string, stages: readonly string[]): string[] => [
  ...[projectPath('dist/test/gpu/report.js'), '--device', 'webgpu:llvmpipe', '--scale', 'small', '--out', out],
  ...['--stages', stages.join(',')],
];
const env = {
  ...process.env,
  MESA_SHADER_CACHE_DIR: shaderFolder('mesa-256-fast'),
  GALLIVM_PERF: 'nopt',
};

test('a report that is stopped has the stages before, and goes on where it was', async () => {
  const out = `${folder}/stopped.json`;
  const stages = isLong ? stageNames : ['device', 'loads', 'peaks', 'peer'];
  const child = spawn(process.execPath, argsOf(out, stages), { env, stdio: 'ignore' });
  // Killed in its second stage.
  while (!existsSync(out) || saved(out).stages[stages[1]!]?.status !== 'running')
    await new Promise((resolve) => setTimeout(resolve, 20));
  child.kill('SIGKILL');
  await once(child, 'exit');
  assert.equal(saved(out).stages['device']?.status, 'done');
  const { stdout, status } = spawnSync(process.execPath, argsOf(out, stages), { env, encoding: 'utf8' });
  assert.equal(status, 0);
  assert.match(stdout, /^device: done, as /m);
  const { stages: ended } = saved(out);
  assert.deepEqual(Object.keys(ended), stages);
  for (const [name, { status: how, error }] of Object.entries(ended)) assert.equal(how, 'done', `${name}: ${error}`);
  expect(ended['peaks']?.figures.map(({ name }) => name)).toContain('submit and map');
  expect(ended['loads']?.figures.length).toBe(4);
  for (const { figures } of Object.values(ended))
    for (const { name, value } of figures) assert(Number.isFinite(value), name);
});

test('a stage that was running twice is left alone, and one that fails says why', () => {
  const out = `${folder}/crashed.json`;
  const crashed = { status: 'running again', figures: [], facts: {} };
  writeFileSync(out, JSON.stringify({ device: 'webgpu:llvmpipe', stages: { loads: crashed } }));
  spawnSync(process.execPath, argsOf(out, ['loads', 'peer']), { env });
  assert.equal(saved(out).stages['loads']?.status, 'crashed');
  assert.equal(saved(out).stages['peer']?.status, 'done');
  const none = `${folder}/none.json`;
  const args = argsOf(none, ['device']).map((arg) => (arg === 'webgpu:llvmpipe' ? 'webgpu:nothing' : arg));
  spawnSync(process.execPath, args, { env });
  assert.match(saved(none).stages['device']?.error ?? '', /no WebGPU adapter nothing/);
});
