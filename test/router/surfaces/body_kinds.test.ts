/** The kinds of bodies that threads know: all that a surface has, each by a name of its own. Budget: 2 s. */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'vitest';
import type { BodyKind } from '../../../services/router/api/body_kind.ts';
import { bodyKinds, promptBodyKinds } from '../../../services/router/surfaces/body_kinds.ts';
import { projectPath } from '../../support/project.ts';

const folder = projectPath('services/router/surfaces');

/** Kinds that the surfaces' own files export, by file and name. */
async function exported(): Promise<Map<string, BodyKind>> {
  const kinds = new Map<string, BodyKind>();
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  for (const file of files.filter((path) => /[\\/]body_kinds?\.ts$/.test(path))) {
    const module = (await import(join(folder, file))) as Record<string, BodyKind>;
    for (const [name, value] of Object.entries(module)) if (name.endsWith('Kind')) kinds.set(`${file} ${name}`, value);
  }
  return kinds;
}

test('every kind of a surface is listed for the threads, with its prompts where it has some', async () => {
  const kinds = await exported();
  const [all, withPrompts] = [bodyKinds, promptBodyKinds].map((list) => list.map(({ name }) => name).sort());
  assert.deepEqual([...kinds.values()].map(({ name }) => name).sort(), all);
  const having = [...kinds.values()].filter((kind) => 'prompts' in kind);
  assert.deepEqual(having.map(({ name }) => name).sort(), withPrompts);
});

test('no two kinds have one name', () => {
  assert.equal(new Set(bodyKinds.map(({ name }) => name)).size, bodyKinds.length);
});
