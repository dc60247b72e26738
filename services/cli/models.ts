/**
 * Models by name: `penstock model`, and the download of `--model org/name` before a role starts. Standard output has only the result
 * of a command; progress goes to standard error.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { ConfigError } from '../../shared/base/options.ts';
import { systemClock } from '../../shared/base/clock.ts';
import type { Hub } from '../../shared/hub/hub.ts';
import { leaseProcess } from './lease_process.ts';
import { mebibytes, ProgressLine } from './progress_line.ts';
import { parseRepoName, type RepoName } from '../../shared/model/repo_name.ts';

/** Models that come with the package, and the folder of all of them. */
const BUNDLED: readonly string[] = ['harbour', 'harbour-tools'];
const bundledFolder = new URL('../../../config/models/', import.meta.url);

/**
 * Returns the path, a folder or a file, of the model that `--model` names: one that comes with the package, or of a hub; downloads the model when the cache lacks it. @throws
 * HubError when the model cannot be had
 */
export async function modelFolder(name: string): Promise<string> {
  // A folder that is there wins over a name.
  if (BUNDLED.includes(name) && !existsSync(name)) return fileURLToPath(new URL(name, bundledFolder));
  return (await openHub()).pathOf(name);
}

/** Runs `penstock model`. @throws ConfigError for an unknown command or wrong arguments, HubError when the hub or its cache fails. */
export async function runModelCommand([command, name, ...rest]: readonly string[], isJson: boolean): Promise<void> {
  if (rest.length > 0) throw new ConfigError(`penstock model ${command} takes one name, not also ${rest.join(' ')}`);
  switch (command) {
    case 'pull':
      process.stdout.write(`${await (await openHub()).pull(repoOf(command, name))}\n`);
      return;
    case 'remove': {
      const repo = repoOf(command, name);
      const bytes = (await openHub()).remove(repo);
      process.stdout.write(`${repo.repo} removed, ${mebibytes(bytes)}\n`);
      return;
    }
    case 'list': {
      const models = (await openHub()).list();
      if (isJson) process.stdout.write(`${JSON.stringify(models)}\n`);
      else if (models.length === 0) process.stdout.write('no models in the cache\n');
      for (const { repo, commit, revisions, bytes } of isJson ? [] : models)
        process.stdout.write(`${repo}@${revisions.join(',') || commit}  ${mebibytes(bytes)}  ${commit}\n`);
      return;
    }
    case undefined:
    default:
      throw new ConfigError(
        'usage: penstock model pull ORG/NAME[@REVISION][:FILE.gguf] | list [--json] | remove ORG/NAME',
      );
  }
}

function repoOf(command: string, name: string | undefined): RepoName {
  const repo = parseRepoName(name ?? '');
  if (!repo)
    throw new ConfigError(
      `penstock model ${command} takes a name such as org/name, org/name@revision or org/name:file.gguf`,
    );
  return repo;
}

/** Returns the hub, whose modules a process that serves a model of this package does without. */
async function openHub(): Promise<Hub> {
  const [{ Hub }, { proxiedFetch }] = await Promise.all([
    import('../../shared/hub/hub.ts'),
    import('./proxied_fetch.ts'),
  ]);
  const progress = new ProgressLine(process.stderr, () => systemClock.nowMs());
  return new Hub({
    clock: systemClock,
    lease: leaseProcess,
    environment: process.env,
    fetch: proxiedFetch(process.env),
    onProgress: (at) => {
      progress.show(at);
    },
    onNote: (note) => {
      progress.note(note);
    },
  });
}
