/**
 * The pages say what is so: links and paths lead somewhere, also in the package; commands exist;
 * spelling. Blocks of commands are run by e2e/pages. Budget: 30 s.
 */
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { promisify } from 'node:util';
import { describe, test } from 'vitest';
import { readCommandLine, type OptionTable } from '../../shared/base/options.ts';
import { reportFlags } from '../../services/cli/bench/report_command.ts';
import { serveFlags } from '../../services/cli/bench/serve_flags.ts';
import { keyFlags } from '../../services/cli/key.ts';
import { doctorOptions } from '../../services/cli/doctor/doctor_options.ts';
import { readTenantLine, tenantOptions } from '../../services/cli/tenant_options.ts';
import { policyOptions, readPolicyLine } from '../../services/cli/policy_options.ts';
import { loadTables, tableOf } from '../../services/cli/tables.ts';
import { topOptions } from '../../services/cli/top/top_options.ts';
import { policyNames } from '../../shared/placement/policy_registry.ts';
import { planFlags } from '../../services/replay/plan_arguments.ts';
import { replayFlags } from '../../services/replay/replay_arguments.ts';
import { anchorsOf, linksOf, pages, pageText, spansOf } from '../support/pages.ts';
import { projectPath } from '../support/project.ts';

const all = pages();
/** The diary speaks of the tree of its day. */
const living = all.filter((path) => path !== 'test/bench/RESULTS.md');
const scripts = (JSON.parse(pageText('package.json')) as { scripts: Record<string, string> }).scripts;

function brokenLinks(paths: readonly string[], exists: (path: string) => boolean): string[] {
  return paths.flatMap((path) =>
    linksOf(pageText(path)).flatMap((link) => {
      const [target = '', anchor] = link.split('#');
      const file = target === '' ? path : normalize(join(dirname(path), target));
      const to = existsSync(projectPath(join(file, 'README.md'))) ? join(file, 'README.md') : file;
      if (!exists(to)) return [`${path}: ${link}`];
      if (anchor !== undefined && !anchorsOf(pageText(to)).has(anchor)) return [`${path}: ${link} (no such heading)`];
      return [];
    }),
  );
}

describe('links', () => {
  test('lead to files and headings that are there', () => {
    assert.deepEqual(
      brokenLinks(all, (path) => existsSync(projectPath(path))),
      [],
    );
  });

  test('lead to files of the package, in the pages that it has', () => {
    const [{ files }] = JSON.parse(
      execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts', '--loglevel', 'error'], {
        cwd: projectPath('.'),
        encoding: 'utf8',
      }),
    ) as [{ files: { path: string }[] }];
    const packed = new Set(files.map(({ path }) => path));
    const inPackage = all.filter((path) => packed.has(path));
    for (const room of [
      'README.md',
      'services/README.md',
      'services/router/README.md',
      'services/router/API.md',
      'kernels/README.md',
    ])
      assert(inPackage.includes(room), `${room} is in the package`);
    assert.deepEqual(
      brokenLinks(inPackage, (path) => packed.has(path)),
      [],
    );
  });
});

test('paths in code spans are those of files', () => {
  const isPath = (span: string): boolean =>
    /^[\w./-]+\/[\w./-]*$|^[\w./-]+\.(ts|js|cjs|wgsl|proto|html|json)$/.test(span) &&
    !/^\/|^\.\/|^[A-Z_]+\//.test(span);
  // Paths that users have, that a build makes, or that a page names as an example.
  const others = /^(dist|v1|api)\/|^org\/|NAME|ROLE|^(config|tokenizer|generation_config|package)\.json$|^chrome\//;
  const wrong = living.flatMap((page) => {
    const folder = dirname(page);
    return spansOf(pageText(page)).flatMap((span) => {
      if (!isPath(span) || others.test(span)) return [];
      // From the page's folder, from the top, or a file whose name alone says which it is.
      const places = [join(folder, span), span];
      if (places.some((place) => existsSync(projectPath(place)))) return [];
      return span.includes('/') || !tree().has(span) ? [`${page}: ${span}`] : [];
    });
  });
  assert.deepEqual(wrong, []);
});

let names: Set<string> | undefined;
/** Names of all files of the project. */
function tree(): Set<string> {
  names ??= new Set(
    ['services', 'shared', 'kernels', 'config', 'test'].flatMap((folder) =>
      readdirSync(projectPath(folder), { recursive: true, withFileTypes: true }).map(({ name }) => name),
    ),
  );
  return names;
}

/** Commands that read their arguments themselves, with their flags. */
const replayCommands = new Map([
  ['replay', replayFlags],
  ['plan', planFlags],
  ['key', keyFlags],
  ['bench', [...serveFlags, ...reportFlags]],
]);

describe('commands in code spans', () => {
  const spans = living.flatMap((page) => spansOf(pageText(page)).map((span) => ({ page, span })));

  test('name scripts that package.json has', () => {
    const wrong = spans.flatMap(({ page, span }) => {
      const script = /^npm run (?:--silent )?([\w:]+)/.exec(span)?.[1];
      return script !== undefined && !Object.hasOwn(scripts, script) ? [`${page}: ${span}`] : [];
    });
    assert.deepEqual(wrong, []);
  });

  test('name commands and options that `penstock` has', async () => {
    const tables = await loadTables();
    const inspecting: Record<string, OptionTable> = { doctor: doctorOptions(tables), top: topOptions };
    const owners = { ...tables, up: tableOf('up', tables), policy: policyOptions, ...inspecting };
    const wrong = spans.flatMap(({ page, span }) => {
      const [, command, rest = ''] = /^(?:npx )?penstock ([a-z]+)((?: .*)?)$/.exec(span) ?? [];
      if (command === undefined || command === 'model') return [];
      const ownFlags = replayCommands.get(command);
      if (ownFlags) {
        const used = rest.split(/\s+/).filter((word) => word.startsWith('--'));
        return used.every((word) => ownFlags.includes(word)) ? [] : [`${page}: ${span}`];
      }
      try {
        const args = rest.trim() === '' ? [] : rest.trim().split(/\s+/);
        if (command === 'tenant') {
          readTenantLine(args, { ...owners, tenant: tenantOptions }, {});
          return [];
        }
        if (command === 'policy') {
          const { name } = readPolicyLine(args, owners, {});
          return ['', 'NAME', ...policyNames].includes(name) ? [] : [`${page}: ${span}`];
        }
        readCommandLine(inspecting[command] ?? tableOf(command, tables), { command, tables: owners }, args, {});
        return ['up', 'devices', 'config', ...Object.keys({ ...tables, ...inspecting })].includes(command)
          ? []
          : [`${page}: ${span}`];
      } catch (error) {
        return [`${page}: ${span}: ${String(error)}`];
      }
    });
    assert.deepEqual(wrong, []);
  });

  test('name options that there are', async () => {
    const tables = await loadTables();
    const options = new Set(
      Object.keys({ ...tableOf('up', tables), ...doctorOptions(tables), ...topOptions }).map(
        (name) => `--${name.replaceAll('_', '-')}`,
      ),
    );
    for (const more of ['--config', '--json', '--help', '--version', ...[...replayCommands.values()].flat()])
      options.add(more);
    const wrong = spans.flatMap(({ page, span }) => {
      if (page.startsWith('test/') || page.startsWith('kernels/')) return [];
      const flag = /^(--[a-z][a-z-]+)/.exec(span)?.[1];
      return flag !== undefined && !options.has(flag) ? [`${page}: ${span}`] : [];
    });
    assert.deepEqual(wrong, []);
  });
});

test("the router's page shows where things are, and no more: at most 120 lines", () => {
  assert(pageText('services/router/README.md').trimEnd().split('\n').length <= 120);
});

test('the README is read in a few minutes: at most 150 lines', () => {
  assert(pageText('README.md').trimEnd().split('\n').length <= 150);
});

test('pages and comments are spelt as config/cspell.json allows', async () => {
  const cspell = projectPath('node_modules/cspell/bin.mjs');
  const code = ['services', 'shared', 'kernels', 'test', 'config'].flatMap((folder) =>
    ['ts', 'wgsl', 'js', 'cjs'].map((ending) => `${folder}/**/*.${ending}`),
  );
  const options = ['--config', projectPath('config/cspell.json'), '--no-progress', '--no-must-find-files'];
  const args = ['lint', ...options, ...living, ...code];
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [cspell, ...args], {
    cwd: projectPath('.'),
    encoding: 'utf8',
  }).catch((error: unknown) => error as { stdout: string; stderr: string });
  assert.deepEqual(
    stdout
      .trim()
      .split('\n')
      .filter((line) => line !== ''),
    [],
  );
  // Its summary says that it ran, and over what.
  const numChecked = Number(/Files checked: (\d+), Issues found: 0 /.exec(stderr)?.[1]);
  assert(numChecked > 700, stderr);
});
