/** Files that only grow, on the disk of this machine. Budget: 2 s. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'vitest';
import { openAppender } from '../../services/cli/appended_file.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { projectPath } from '../support/project.ts';

let folder: ReturnType<typeof temporaryFolder>;
let file: string;
beforeEach(() => {
  folder = temporaryFolder();
  file = join(folder.path, 'audit.jsonl');
});
afterEach(() => {
  folder.remove();
});

const textOf = (path = file): string => readFileSync(path, 'utf8');

test('a new file is for its owner alone, and one that is there is continued', async () => {
  const first = await openAppender(file, '--audit-log');
  await first.append('a\n');
  await first.close();
  assert.equal(statSync(file).mode & 0o777, 0o600);
  const second = await openAppender(file, '--audit-log');
  await second.append('b\n');
  await second.close();
  assert.equal(textOf(), 'a\nb\n');
});

test('a file that was renamed keeps what it has, and another one begins; so after a removal', async () => {
  const appender = await openAppender(file, '--audit-log');
  await appender.append('a\n');
  renameSync(file, `${file}.1`);
  await appender.append('b\n');
  await appender.append('c\n');
  assert.deepEqual([textOf(`${file}.1`), textOf()], ['a\n', 'b\nc\n']);
  assert.equal(statSync(file).mode & 0o777, 0o600);
  rmSync(file);
  await appender.append('d\n');
  assert.equal(textOf(), 'd\n');
  // Another program has made the next file already.
  renameSync(file, `${file}.2`);
  writeFileSync(file, 'e\n');
  await appender.append('f\n');
  assert.deepEqual([textOf(`${file}.2`), textOf()], ['d\n', 'e\nf\n']);
  await appender.close();
});

test('a file that ends within a line, as after a crash, is continued on a line of its own', async () => {
  writeFileSync(file, '{"torn');
  const appender = await openAppender(file, '--audit-log');
  await appender.append('a\n');
  await appender.append('b\n');
  assert.equal(textOf(), '{"torn\na\nb\n');
  await appender.close();
});

test('a file that cannot be written is refused with what to do, and a pipe is not waited for', async () => {
  mkdirSync(join(folder.path, 'own'));
  execFileSync('mkfifo', [join(folder.path, 'pipe')]);
  for (const [name, reason] of [
    ['own', /no regular file/],
    ['pipe', /no regular file/],
    ['none/audit.jsonl', /ENOENT.*make its folder/],
  ] as const)
    await assert.rejects(openAppender(join(folder.path, name), '--audit-log'), (error) => {
      assert(error instanceof ConfigError);
      assert.match(error.message, /^--audit-log /);
      return reason.test(error.message);
    });
});

test('a file that cannot be opened anew rejects each text, until it can', async () => {
  mkdirSync(join(folder.path, 'logs'));
  const path = join(folder.path, 'logs', 'audit.jsonl');
  const appender = await openAppender(path, '--audit-log');
  renameSync(join(folder.path, 'logs'), join(folder.path, 'gone'));
  await assert.rejects(appender.append('a\n'), /ENOENT/);
  mkdirSync(join(folder.path, 'logs'));
  await appender.append('b\n');
  assert.equal(textOf(path), 'b\n');
  assert.equal(textOf(join(folder.path, 'gone', 'audit.jsonl')), '');
  await appender.close();
});

test('of a text that a full disk takes a part of nothing stays, and a later one stands on a line of its own', () => {
  const module = projectPath('dist/services/cli/appended_file.js');
  // A limit of one KiB for a file stands for a full disk: it takes what fits, then refuses.
  const script = `
    const { openAppender } = await import(${JSON.stringify(module)});
    const appender = await openAppender(${JSON.stringify(file)}, '--audit-log');
    await appender.append('a'.repeat(600) + '\\n');
    const failure = await appender.append('b'.repeat(600) + '\\n').then(() => 'none', ({ code }) => code);
    await appender.append('c'.repeat(300) + '\\n');
    process.stdout.write(failure);`;
  const limited = ['-c', 'ulimit -f 1; exec "$0" "$@"', process.execPath, '--input-type=module', '-e', script];
  assert.equal(execFileSync('bash', limited, { encoding: 'utf8' }), 'EFBIG');
  assert.equal(textOf(), `${'a'.repeat(600)}\n${'c'.repeat(300)}\n`);
});
