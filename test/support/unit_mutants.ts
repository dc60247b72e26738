/** Mutants of units: the build with one line of one source file changed, under checks that are loaded anew with it. */
import assert from 'node:assert/strict';
import {
  copyFileSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { projectPath } from './project.ts';

/** A changed line: `from` stands once in the source file, and `to` in its place. */
export interface UnitMutant {
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

type Checks = Readonly<Record<string, () => Promise<void>>>;

/** Runs one check with the mutant; rejects with its error. `path` and `name`: the module that has the checks, and its export. */
export async function checkMutant(
  { file, from, to }: UnitMutant,
  path: string,
  name: string,
  check: string,
): Promise<void> {
  const source = readFileSync(projectPath(file), 'utf8');
  assert.equal(source.split(from).length, 2, `${file} has not once: ${from}`);
  const { moduleText } = (await import(projectPath('config/module_text.js'))) as {
    moduleText: (path: string, source: string) => Promise<string>;
  };
  const mutated = source.replace(from, () => to);
  const folder = mkdtempSync(join(tmpdir(), 'penstock-unit-mutant-'));
  const built = (module: string): string => join(folder, 'dist', module.replace(/ts$/, 'js'));
  try {
    for (const part of ['shared', 'kernels', 'test/support', 'test/engine'])
      linkModules(projectPath(`dist/${part}`), join(folder, 'dist', part));
    symlinkSync(projectPath('node_modules'), join(folder, 'node_modules'));
    writeFileSync(join(folder, 'package.json'), readFileSync(projectPath('package.json')));
    // The link goes first: what is written must not reach the build.
    rmSync(built(file));
    writeFileSync(built(file), await moduleText(file, mutated));
    const module = (await import(pathToFileURL(built(path)).href)) as Record<string, Checks>;
    await module[name]![check]!();
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Makes a folder with the modules of another: links to their files, or copies where the two are on different file systems. */
function linkModules(from: string, to: string): void {
  mkdirSync(to, { recursive: true });
  for (const entry of readdirSync(from, { withFileTypes: true })) {
    const [source, target] = [join(from, entry.name), join(to, entry.name)];
    if (entry.isDirectory()) linkModules(source, target);
    else if (entry.name.endsWith('.js')) linkOrCopy(source, target);
  }
}

function linkOrCopy(source: string, target: string): void {
  try {
    linkSync(source, target);
  } catch {
    copyFileSync(source, target);
  }
}
