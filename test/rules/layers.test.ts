/** The allowed imports of config/layers.cjs, each fed a wrong import in a small tree of its own. Budget: 20 s. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, posix } from 'node:path';
import { cruise, type ICruiseResult, type IFlattenedRuleSet } from 'dependency-cruiser';
import { afterAll, test } from 'vitest';
import { projectPath } from '../support/project.ts';

const layers = createRequire(import.meta.url)(projectPath('config/layers.cjs')) as {
  readonly forbidden: NonNullable<IFlattenedRuleSet['forbidden']>;
};
const folder = mkdtempSync(join(tmpdir(), 'penstock-layers-'));
afterAll(() => {
  rmSync(folder, { recursive: true });
});

/** Writes modules with these imports, from each path to others, and returns the violations as `rule: from → to`. */
async function violations(imports: readonly (readonly [from: string, to: string])[]): Promise<string[]> {
  const tree = mkdtempSync(join(folder, 'tree-'));
  for (const path of new Set(imports.flat())) {
    const lines = imports
      .filter(([from]) => from === path)
      .map(([, to], i) => {
        const between = posix.relative(posix.dirname(path), to);
        return `import type { A as A${i} } from '${between.startsWith('.') ? between : `./${between}`}';\nexport type B${i} = A${i};\n`;
      });
    mkdirSync(dirname(join(tree, path)), { recursive: true });
    writeFileSync(join(tree, path), `${lines.join('')}export type A = 1;\n`);
  }
  const ruleSet = { forbidden: layers.forbidden };
  const options = { baseDir: tree, validate: true, ruleSet, tsPreCompilationDeps: true };
  const { output } = await cruise(
    ['services', 'shared', 'kernels', 'test'].filter((name) => imports.flat().some((path) => path.startsWith(name))),
    options,
  );
  return (output as ICruiseResult).summary.violations.map(({ rule, from, to }) => `${rule.name}: ${from} → ${to}`);
}

const router = 'services/router';
const wrong: readonly (readonly [rule: string, from: string, to: string])[] = [
  ['router-cluster-looks-down-only', `${router}/cluster/a.ts`, `${router}/conductor/a.ts`],
  ['router-conductor-looks-down-only', `${router}/conductor/b.ts`, `${router}/record/a.ts`],
  ['router-record-looks-down-only', `${router}/record/b.ts`, `${router}/observe/a.ts`],
  ['router-observe-looks-down-only', `${router}/observe/b.ts`, `${router}/relay/a.ts`],
  ['router-relay-looks-down-only', `${router}/relay/b.ts`, `${router}/metrics/a.ts`],
  ['router-metrics-looks-down-only', `${router}/metrics/b.ts`, `${router}/api/a.ts`],
  ['router-api-looks-down-only', `${router}/api/b.ts`, `${router}/surfaces/openai/a.ts`],
  ['router-surfaces-looks-down-only', `${router}/surfaces/openai/b.ts`, `${router}/http/a.ts`],
  ['a-room-of-the-router-is-put-together-above-it', `${router}/api/c.ts`, `${router}/served_models.ts`],
  ['a-surface-knows-no-other', `${router}/surfaces/anthropic/a.ts`, `${router}/surfaces/responses/a.ts`],
  ['a-surface-knows-no-other', `${router}/surfaces/responses/b.ts`, `${router}/surfaces/endpoints.ts`],
  ['services-are-independent', 'services/replay/a.ts', `${router}/conductor/c.ts`],
  ['shared-placement-knows-what-it-stands-on', 'shared/placement/a.ts', 'shared/bus/a.ts'],
  ['policies-know-no-members', 'shared/placement/policies/a.ts', 'shared/placement/instance.ts'],
  ['services-are-independent', 'services/store/a.ts', `${router}/cluster/c.ts`],
  ['the-page-knows-the-protocol-only', 'services/dashboard/a.ts', 'shared/model/a.ts'],
  ['the-page-loads-no-schemas', 'services/dashboard/b.ts', 'shared/protocol/membership.ts'],
  ['the-page-loads-no-schemas', 'shared/protocol/load_fields.ts', 'shared/protocol/membership.ts'],
  ['shared-knows-no-service', 'shared/node/a.ts', `${router}/cluster/d.ts`],
  ['shared-text-knows-what-it-stands-on', 'shared/text/a.ts', 'shared/protocol/a.ts'],
  ['templates-stand-on-text-and-base', 'shared/text/template/a.ts', 'shared/model/b.ts'],
  ['grammar-stands-on-base', 'shared/grammar/a.ts', 'shared/text/b.ts'],
  ['shared-base-knows-what-it-stands-on', 'shared/base/a.ts', 'shared/kv/a.ts'],
  ['shared-protocol-knows-what-it-stands-on', 'shared/protocol/b.ts', 'shared/text/d.ts'],
  ['shared-net-knows-what-it-stands-on', 'shared/net/a.ts', 'shared/placement/b.ts'],
  ['shared-instance-knows-what-it-stands-on', 'shared/instance/a.ts', 'shared/text/d.ts'],
  ['a-new-folder-has-a-place', 'shared/new/a.ts', 'shared/base/b.ts'],
  ['a-new-folder-has-a-place', `${router}/new/a.ts`, `${router}/cluster/e.ts`],
  ['router-http-looks-down-only', `${router}/http/b.ts`, `${router}/new/b.ts`],
  ['a-surface-knows-no-other', `${router}/surfaces/openai/c.ts`, `${router}/surfaces/anthropic/b.ts`],
  ['only-engine-touches-the-kernels', 'shared/text/c.ts', 'kernels/a.ts'],
];

test('a wrong import of each kind is refused by its rule, a type-only one too', async () => {
  const found = await violations(wrong.map(([, from, to]) => [from, to]));
  for (const [rule, from, to] of wrong)
    assert.ok(found.includes(`${rule}: ${from} → ${to}`), `${rule} lets ${from} import ${to}:\n${found.join('\n')}`);
});

test('folders that need each other are refused, though none of their files do', async () => {
  const imports = [
    ['shared/kv/a.ts', 'shared/protocol/a.ts'],
    ['shared/protocol/b.ts', 'shared/kv/b.ts'],
    ['kernels/host/a.ts', 'kernels/wasm/a.ts'],
    ['kernels/wasm/b.ts', 'kernels/host/b.ts'],
    ['services/prefill/one/a.ts', 'services/prefill/two/a.ts'],
    ['services/prefill/two/b.ts', 'services/prefill/one/b.ts'],
  ] as const;
  const found = await violations(imports);
  for (const [from, to] of [
    ['shared/kv', 'shared/protocol'],
    ['shared/protocol', 'shared/kv'],
    ['kernels/host', 'kernels/wasm'],
    ['services/prefill/one', 'services/prefill/two'],
  ])
    assert.ok(found.includes(`folders-form-no-circle: ${from} → ${to}`), found.join('\n'));
});

test('the ladder itself is allowed, downwards', async () => {
  const rooms = ['http', 'surfaces', 'api', 'relay', 'record', 'conductor', 'cluster'];
  const down = rooms.flatMap((room, i) =>
    rooms.slice(i + 1).map((lower) => [`${router}/${room}/a.ts`, `${router}/${lower}/a.ts`] as const),
  );
  const watching = ['observe', 'metrics'].flatMap((room) => [
    [`${router}/api/a.ts`, `${router}/${room}/a.ts`] as const,
    [`${router}/${room}/a.ts`, `${router}/record/a.ts`] as const,
  ]);
  const found = await violations([...down, ...watching, [`${router}/http/a.ts`, `${router}/router.ts`]]);
  assert.deepEqual(found, []);
});
