/**
 * On cards that are not there (cards.ts): which matrix units are taken, memory that ends, and a rehearsal of the whole report. Skipped with a line
 * where no C compiler is. Budget: 15 s, in the long run 90 s.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { afterAll, describe, expect, test } from 'vitest';
import { projectPath } from '../support/project.ts';
import { longTest } from '../support/long.ts';
import { openCards, type Card } from './cards.ts';
import { stageNames } from './report_stages.ts';

const { cards, why } = await openCards();
for (const line of why) console.log(`skipped: ${line}`);

const folder = mkdtempSync(`${tmpdir()}/gpu-cards-`);
afterAll(() => {
  rmSync(folder, { recursive: true });
});

function run(card: Card, env: Readonly<Record<string, string>>, script: string, ...args: readonly string[]): string {
  const { stdout, stderr } = spawnSync(card.execPath, [projectPath(script), ...args], {
    env: { ...process.env, ...card.env, ...env },
    encoding: 'utf8',
    cwd: folder,
    timeout: 600_000,
  });
  // Some runs end by a signal after printing their output; see load_8b.ts.
  assert.notEqual(stdout, '', stderr);
  return stdout;
}

test('those that cannot be played here say what they lack', () => {
  assert.equal(cards.length + why.length >= 1, true);
  for (const line of why) assert.match(line, /there is no C compiler|RDNA 3: |Ada: /);
});

describe.each(cards.map((card) => [card.name, card] as const))('%s', (_name, card) => {
  test('`penstock devices` takes f16 matrices of 16×16×16 with sums in f32', () => {
    const text = run(card, {}, 'dist/services/cli/main.js', 'devices');
    assert.match(text, new RegExp(card.adapter));
    assert.match(text, /the fast kernels take f16 to f32 16×16×16/);
    // Nothing can run on this card, which the output must note.
    assert.match(text, /note: it computes a product wrongly/);
  });

  longTest('every stage of the report ends, and its file is whole', () => {
    const out = `${folder}/${card.adapter}.json`;
    const text = run(card, {}, 'dist/test/gpu/report.js', '--device', 'webgpu:0', '--out', out);
    const { stages } = JSON.parse(readFileSync(out, 'utf8')) as {
      stages: Record<string, { status: string; figures: unknown[]; facts: Record<string, unknown> }>;
    };
    assert.deepEqual(Object.keys(stages), stageNames);
    for (const [stage, { status }] of Object.entries(stages)) assert.equal(status, 'done', stage);
    expect(stages['decode']?.figures.length).toBeGreaterThan(20);
    expect(stages['device']?.facts).toMatchObject({ takes: { M: 16, N: 16, K: 16 } });
    assert.match(text, /predicted and measured\n/);
    assert.match(text, /send back /);
  });
});

describe.each(cards.filter(({ name }) => name === 'Ada').map((card) => [card.name, card] as const))(
  '%s, memory that ends',
  (_name, card) => {
    test.each([
      ['24', /^loaded \d{4} blocks/],
      ['8', /^refused: the device has no memory left for .*it needs .*MiB.*Use a smaller --weights format/s],
    ])('an 8B model in f16 on %s GiB', (gib, pattern) => {
      assert.match(run(card, { NV_STRICT: '1', NV_GIB: gib }, 'dist/test/gpu/load_8b.js'), pattern);
    });
  },
);
