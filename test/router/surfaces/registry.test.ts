/** The endpoints as values: which are refused at the start, and what follows from each. Budget: 5 s. */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'vitest';
import type { BodyKind } from '../../../services/router/api/body_kind.ts';
import { BodyReader } from '../../../services/router/api/body_reader.ts';
import type { Surface } from '../../../services/router/api/surface.ts';
import { Surfaces } from '../../../services/router/api/surfaces.ts';
import { openApiDocument } from '../../../services/router/http/openapi.ts';
import { chatSurface } from '../../../services/router/surfaces/openai/chat.ts';
import { bodyKinds, surfaces } from '../../../services/router/surfaces/registry.ts';
import { projectPath } from '../../support/project.ts';
import { host } from './support.ts';

const chat = chatSurface as Surface;
const opened = (more: Partial<Surface>): Surfaces => new Surfaces([...surfaces, { ...chat, ...more }], host);

test.each<readonly [string, Partial<Surface>, RegExp]>([
  [
    'a path of another one',
    { paths: ['/x', '/v1/completions'] },
    /^Error: surface \/x: POST \/v1\/completions is registered twice/,
  ],
  [
    'a route of another one',
    { paths: ['/x'], routes: [{ method: 'GET', path: '/v1/responses/{id}', answer: () => ({}) }] },
    /^Error: surface \/x: GET \/v1\/responses\/\{id\} is registered twice/,
  ],
  ['no form of errors', { paths: ['/x'], errors: undefined as never }, /^Error: surface \/x: it has no form of errors/],
  [
    'a field that its schemas lack',
    { paths: ['/x'], kind: { ...chat.kind, fields: ['messages', 'heliotrope'] } },
    /^Error: surface \/x: it reads the field heliotrope, which its schemas lack/,
  ],
])('a surface with %s ends the start with its name', (_name, more, error) => {
  assert.throws(() => opened(more), error);
});

test('the form of an error is that of the longest path above it, for a URL of any length', () => {
  const all = new Surfaces(surfaces, host);
  const [message, usual] = [all.errorFormOf('/v1/messages'), all.usualErrors];
  assert.notEqual(message, usual);
  for (const url of ['/v1/messages/x/y', '/v1/messages/count_tokens?a=/v1/x', '/v1/messages/']) {
    assert.equal(all.errorFormOf(url), message, url);
  }
  for (const url of ['/v1/messagesx', '/x/v1/messages', `/${'/'.repeat(100_000)}`, '/v1', '/?/v1/messages'])
    assert.equal(all.errorFormOf(url), usual, url.slice(0, 40));
});

test('a surface of its own is served', () => {
  const { paths, usualErrors } = opened({ paths: ['/v1/x', '/y'] });
  const names = paths.map(([path]) => path);
  assert.deepEqual([names.indexOf('/v1/x') < names.indexOf('/invocations'), names.at(-1)], [true, '/y']);
  assert.equal(usualErrors, chat.errors);
});

test('every surface that a file of the folders exports is registered, and every kind of body', async () => {
  const folder = projectPath('services/router/surfaces');
  const exported: unknown[] = [];
  for (const file of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.ts') || file.endsWith('_worker.ts')) continue;
    const module = (await import(
      projectPath(join('dist/services/router/surfaces', file.replace(/\.ts$/, '.js')))
    )) as Record<string, unknown>;
    for (const [name, value] of Object.entries(module)) if (/(Surface|Kind)$/.test(name)) exported.push(value);
  }
  const registered = new Set<unknown>([...surfaces, ...bodyKinds]);
  assert.equal(exported.filter((one) => !registered.has(one)).length, 0, 'one is not registered');
  assert.equal(new Set(exported).size, registered.size);
  assert.throws(() => new BodyReader([...bodyKinds, bodyKinds[0] as BodyKind]), /two kinds of bodies have one name/);
});

test('the description has every path and route with its bodies and the schema of its errors', () => {
  const all = new Surfaces(surfaces, host);
  const routes = new Map<string, string[]>([
    ...all.paths.map(([path]) => [path, ['POST']] as [string, string[]]),
    ...all.routes.map(({ method, path }) => [path, [method]] as [string, string[]]),
  ]);
  const { paths, components } = openApiDocument(routes, all) as {
    paths: Record<string, Record<string, { summary: string; requestBody?: object; responses: object }>>;
    components: { schemas: Record<string, object> };
  };
  for (const [path, { describe, errors }] of all.paths) {
    const { requestBody, responses } = paths[path]?.['post'] ?? {};
    for (const name of Object.keys(describe.schemas)) {
      assert.ok(JSON.stringify(requestBody).includes(`"#/components/schemas/${name}"`), path);
      assert.ok(Object.hasOwn(components.schemas, name), name);
    }
    assert.ok(JSON.stringify(responses).includes(`"#/components/schemas/${errors.schema.name}"`), path);
    assert.equal(components.schemas[errors.schema.name], errors.schema.json);
  }
  assert.match(paths['/chat/completions']?.['post']?.summary ?? '', /^The same as \/v1\/chat\/completions$/);
});
