/** The rules of the house, as `npm run lint` checks them: format, code, layers, nothing that nobody uses. Budget: 90 s. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'vitest';
import { projectPath } from '../support/project.ts';

test.each(['format', 'code', 'layers', 'unused'])('lint:%s finds nothing', { timeout: 300_000 }, (rule) => {
  const options = { cwd: projectPath('.'), encoding: 'utf8' } as const;
  const { status, stdout, stderr } = spawnSync('npm', ['run', '--silent', `lint:${rule}`], options);
  assert.equal(status, 0, `npm run lint:${rule}\n${stdout}\n${stderr}`);
});
