/** Fetches files of packages from the npm registry, with npm itself, so that its configuration counts. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { stagingFolder } from './downloads.js';

/**
 * Unpacks `paths` of the package `spec` into `folder`, without the first `depth` folders of their names. Another process may do the same
 * at the same time. @throws Error when the package cannot be had, or has another hash than `integrity`
 */
export function fetchFiles({ spec, integrity, paths, depth, folder }) {
  const work = mkdtempSync(join(tmpdir(), 'penstock-package-'));
  const staged = stagingFolder();
  try {
    execFileSync('npm', ['pack', '--silent', '--ignore-scripts', '--pack-destination', work, spec], {
      cwd: work,
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const [file = ''] = readdirSync(work);
    const hash = createHash('sha512')
      .update(readFileSync(join(work, file)))
      .digest('base64');
    if (`sha512-${hash}` !== integrity) throw new Error(`it hashes to sha512-${hash}`);
    mkdirSync(staged, { recursive: true });
    execFileSync('tar', ['-xzf', join(work, file), '-C', staged, `--strip-components=${depth}`, ...paths]);
    mkdirSync(dirname(folder), { recursive: true });
    try {
      renameSync(staged, folder);
    } catch (error) {
      // Another process has just fetched it.
      if (!existsSync(folder)) throw error;
    }
  } catch (error) {
    throw new Error(`the tests need ${spec} from the npm registry: ${error.message}`, { cause: error });
  } finally {
    for (const path of [work, staged]) rmSync(path, { recursive: true, force: true });
  }
}
