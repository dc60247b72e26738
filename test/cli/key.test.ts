/** `penstock key --append`: what it adds is a file that routers take, or nothing. Budget: 2 s. */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeEach, test } from 'vitest';
import { ConfigError } from '../../shared/base/options.ts';
import { runKeyCommand } from '../../services/cli/key.ts';
import { readKeysFile } from '../../services/router/access/keys_file.ts';
import { temporaryFolder } from '../support/cluster.ts';

const folder = temporaryFolder();
afterAll(() => {
  folder.remove();
});
let file = '';
let numFiles = 0;
beforeEach(() => {
  file = join(folder.path, `keys${numFiles++}.yaml`);
});

/** Runs the command. @returns what it prints, and its warnings */
function add(name: string, n = 1, ...more: string[]): { readonly printed: string; readonly warned: string } {
  let [printed, warned] = ['', ''];
  runKeyCommand(
    [name, '--tenant', 't', '--append', file, ...more],
    Buffer.alloc(32, n),
    (text) => (printed += text),
    (line) => (warned += line),
  );
  return { printed, warned };
}

const names = (): string[] => readKeysFile(file, readFileSync(file, 'utf8'), ['m']).map(({ name }) => name);
const entry = (name: string, n: number): string =>
  `- name: ${name}\n  sha256: "${n.toString(16).padStart(64, '0')}"\n  tenant: t\n`;

test('entries are added to a new file, to comments, and to a last line without an end', () => {
  add('alice', 1);
  add('0123', 2, '--admin', '--model', 'm');
  assert.deepEqual(names(), ['alice', '0123']);
  for (const text of ['', '\n', '# keys of clients\n', '# keys of clients', '---\n', 'null']) {
    writeFileSync(file, text);
    if (text === 'null') assert.throws(() => add('alice'), /an entry cannot be added at its end/);
    else {
      add('alice');
      assert.deepEqual(names(), ['alice'], JSON.stringify(text));
    }
  }
  writeFileSync(file, entry('bob', 7).trimEnd());
  add('alice');
  assert.deepEqual(names(), ['bob', 'alice']);
});

const many = Array.from({ length: 5_000 }, (_, i) => entry(`n${i}`, i)).join('');
const faults: Readonly<Record<string, readonly [text: string, message: RegExp]>> = {
  'the same name': [entry('alice', 7), /has a key of the name alice already: give this one another name/],
  'no list': ['name: bob\n', /it is no list with an entry for each key/],
  'a text': ['hello\n', /it is no list with an entry for each key/],
  'no YAML': ['- name: [\n', /it is no YAML: .*Mend it first/],
  'a list in brackets': [`[${JSON.stringify({ name: 'bob' })}]\n`, /an entry cannot be added at its end/],
  'a list with indentation': [entry('bob', 7).replace(/^/gm, '  ').trimEnd(), /an entry cannot be added at its end/],
  'an end of the document': [`${entry('bob', 7)}...\n`, /an entry cannot be added at its end/],
  'as many keys as routers take': [many, /has 5000 keys, and routers take at most 5000/],
  'more than routers read': [`#${' '.repeat(4_000_000)}`, /has 4000001 bytes, and routers read no file of more/],
};

test.each(Object.entries(faults))('a file that stays as it is, and no key: %s', (_name, [text, message]) => {
  writeFileSync(file, text);
  let printed = '';
  assert.throws(
    () => {
      runKeyCommand(
        ['alice', '--tenant', 't', '--append', file],
        Buffer.alloc(32, 1),
        (one) => (printed += one),
        () => undefined,
      );
    },
    (error) => {
      assert(error instanceof ConfigError);
      assert(error.message.startsWith(`--append ${file}: `), error.message);
      assert.match(error.message, message);
      return true;
    },
  );
  assert.deepEqual([printed, readFileSync(file, 'utf8') === text], ['', true]);
});

test('a file that others may read or change is warned of; a new one is for its owner alone', () => {
  assert(!existsSync(file));
  assert.equal(add('alice', 1).warned, '');
  assert.equal(statSync(file).mode & 0o777, 0o600);
  chmodSync(file, 0o644);
  const { printed, warned } = add('bob', 2);
  assert.match(warned, /others on this machine may read .*keys\d+\.yaml \(mode 0644\): chmod 600 it/);
  assert.match(printed, /^penstock_[\w-]{43}\n$/);
  chmodSync(file, 0o620);
  assert.match(add('carol', 3).warned, /may change .*\(mode 0620\)/);
});
