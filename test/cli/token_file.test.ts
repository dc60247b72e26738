/** The file of a cluster's tokens. Budget: 1 s. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, test } from 'vitest';
import { withTokenFile } from '../../services/cli/token_file.ts';
import { temporaryFolder } from '../support/cluster.ts';

const folder = temporaryFolder();
afterAll(() => {
  folder.remove();
});
const file = join(folder.path, 'tokens');

function read(text: string, cluster_token = ''): { readonly tokens: string; readonly isSet: boolean } {
  writeFileSync(file, text);
  const line = { config: { cluster_token, cluster_token_file: file }, isSet: new Set(['cluster_token_file']) };
  const { config, isSet } = withTokenFile(line);
  return { tokens: config.cluster_token, isSet: isSet.has('cluster_token') };
}

test('has one token a line, the first of which is sent', () => {
  assert.deepEqual(read('one-token-of-many\n'), { tokens: 'one-token-of-many', isSet: true });
  assert.deepEqual(read('\n  first \r\n\nsecond'), { tokens: 'first\nsecond', isSet: true });
});

test('is refused where it cannot be right, with what to do; its content is not shown', () => {
  assert.throws(() => read(' \n\n'), /has no token: openssl rand -hex 24 > /);
  assert.throws(() => read('a b'), /token 1 is not printable ASCII without spaces/);
  assert.throws(() => read('ok\nnö'), /token 2 is not/);
  assert.throws(() => read(Array.from({ length: 9 }, (_, i) => `token-${i}`).join('\n')), /has 9 tokens; at most 8/);
  assert.throws(
    () => read('secret', 'other'),
    (error: Error) => /not both/.test(error.message) && !/secret|other/.test(error.message),
  );
  const config = { cluster_token: '', cluster_token_file: join(folder.path, 'nowhere') };
  assert.throws(() => withTokenFile({ config, isSet: new Set<string>() }), /--cluster-token-file .*nowhere.*ENOENT/);
});

test('is not needed', () => {
  const line = { config: { cluster_token: 'x', cluster_token_file: '' }, isSet: new Set<string>() };
  assert.equal(withTokenFile(line), line);
});
