/** The token of the hub, in the order of huggingface_hub. Budget: 1 s. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, test } from 'vitest';
import { hubHome, tokenOf } from '../../shared/hub/hub_token.ts';
import { temporaryFolder } from '../support/cluster.ts';

const folder = temporaryFolder();
afterAll(() => {
  folder.remove();
});

test('is that of HF_TOKEN, of HUGGING_FACE_HUB_TOKEN, or the stored one, without its line end', () => {
  const stored = join(folder.path, 'token');
  writeFileSync(stored, 'hf_stored\r\n');
  const home = { HF_HOME: folder.path };
  assert.equal(tokenOf(home), 'hf_stored');
  assert.equal(tokenOf({ ...home, HUGGING_FACE_HUB_TOKEN: 'hf_old' }), 'hf_old');
  assert.equal(tokenOf({ ...home, HF_TOKEN: 'hf_new\n', HUGGING_FACE_HUB_TOKEN: 'hf_old' }), 'hf_new');
  assert.equal(tokenOf({ ...home, HF_TOKEN: ' \n', HUGGING_FACE_HUB_TOKEN: '' }), 'hf_stored');
  const other = join(folder.path, 'other');
  writeFileSync(other, 'hf_other');
  assert.equal(tokenOf({ ...home, HF_TOKEN_PATH: other }), 'hf_other');
  assert.equal(tokenOf({ HF_HOME: join(folder.path, 'nowhere') }), '');
  for (const value of ['1', 'TRUE', 'yes', 'On'])
    assert.equal(tokenOf({ ...home, HF_TOKEN: 'hf_new', HF_HUB_DISABLE_IMPLICIT_TOKEN: value }), '');
  assert.equal(tokenOf({ ...home, HF_HUB_DISABLE_IMPLICIT_TOKEN: '0' }), 'hf_stored');
});

test('lies in the folder of the libraries', () => {
  assert.equal(hubHome({ HF_HOME: '/a' }), '/a');
  assert.equal(hubHome({ XDG_CACHE_HOME: '/b' }), '/b/huggingface');
});
