/**
 * The answers of every endpoint are those that were recorded, byte for byte but for ids and times, over real HTTP and gRPC. The instance is
 * played: each token, its log-probabilities, and which tokens share a message. Not covered: events for a reader that is behind.
 * `npm run build && RECORD_ANSWERS=1 npx vitest run --config config/vitest.config.js recorded_answers` records anew; `git diff` then shows what clients
 * will see change. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { projectPath } from '../../support/project.ts';
import { RecordedRouter } from './recorded_answers.ts';
import { recordedCases } from './recorded_cases.ts';
import { familyCases } from './recorded_families.ts';

const folder = projectPath('test/router/surfaces/recorded');
const isRecording = Boolean(process.env['RECORD_ANSWERS']);
assert(!isRecording || !process.env['CI'], 'continuous integration compares only');

const pathOf = (name: string): string => join(folder, `${name}.txt`);

function compare(name: string, text: string): void {
  const path = pathOf(name);
  if (isRecording) {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  }
  assert(existsSync(path), `${name} is not recorded: RECORD_ANSWERS=1`);
  expect(text).toBe(readFileSync(path, 'utf8'));
}

describe("the repository's model", () => {
  let router: RecordedRouter;
  beforeAll(async () => {
    router = await RecordedRouter.start();
  });
  afterAll(() => router.close());

  test.each(Object.entries(recordedCases))('%s', async (name, one) => {
    compare(name, await router.record(one));
  });
});

test.each(Object.entries(familyCases))('%s', async (name, { template, args, recorded }) => {
  const router = await RecordedRouter.start(template, ...args);
  compare(name, await router.record(recorded).finally(() => router.close()));
});

test('each recording has its case', () => {
  const known = new Set(Object.keys({ ...recordedCases, ...familyCases }).map(pathOf));
  const stray = readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .filter((path) => !known.has(path));
  if (isRecording) for (const path of stray) rmSync(path);
  else assert.deepEqual(stray, [], 'no case makes these: RECORD_ANSWERS=1 removes them');
});
