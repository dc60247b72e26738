/**
 * A stolen disk of a store gives prompts and answers word for word from records in clear, and nothing under `--disk-key`; and that another
 * user of the machine cannot open the files. The attack is test/support/inversion.ts. Budget: 60 s.
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, expect, test } from 'vitest';
import { openKeys } from '../../services/store/open_keys.ts';
import { Cluster, harbour, runToEnd, temporaryFolder, type CompletionView } from '../support/cluster.ts';
import { Inversion, payloadsIn } from '../support/inversion.ts';
import { until } from '../support/until.ts';

const BLOCK_TOKENS = 32;
/** Keys and values of layer 0. */
const LAYER_BYTES = BLOCK_TOKENS * 2 * 128 * 2;
const KEY = '5a'.repeat(32);

let cluster: Cluster | undefined;
const folder = temporaryFolder();
afterAll(folder.remove);
afterEach(async () => {
  await cluster?.close();
  cluster = undefined;
});

/** Sends a prompt. Returns the token ids of prompt and answer. */
async function ask(): Promise<number[]> {
  const response = await fetch(`${cluster?.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      prompt: 'once upon a time there was a heliotrope harbour '.repeat(8),
      max_tokens: 60,
      temperature: 0,
      ignore_eos: true,
      return_token_ids: true,
    }),
  });
  const { choices } = (await response.json()) as CompletionView;
  return [...choices[0]!.prompt_token_ids, ...choices[0]!.token_ids];
}

async function onDisk(): Promise<number> {
  const [store] = (await cluster!.pool()).filter(({ role }) => role === 'store');
  return store?.tiers['disk']?.blocks ?? 0;
}

function filesIn(path: string): string[] {
  return readdirSync(path, { withFileTypes: true }).flatMap((entry) => {
    const inner = join(path, entry.name);
    return entry.isDirectory() ? [inner, ...filesIn(inner)] : [inner];
  });
}

test.each([[false], [true]])(
  'a stolen disk gives every word of a chat, and none under --disk-key: %s',
  async (isSealed) => {
    const keyFile = join(folder.path, 'key');
    writeFileSync(keyFile, `${KEY}\n`, { mode: 0o600 });
    cluster = await Cluster.up('--disk-writes', 'through', ...(isSealed ? ['--disk-key', keyFile] : []));
    const tokens = await ask();
    const numBlocks = Math.floor((tokens.length - 1) / BLOCK_TOKENS);
    await until('its blocks are on disk', async () => (await onDisk()) >= numBlocks);
    const paths = filesIn(cluster.dataFolder);
    const records = paths.find((path) => path.endsWith('/records'))!;
    const inversion = new Inversion(harbour);
    const { clear, guessed } = payloadsIn(readFileSync(records), [256, 300, 512, 556], LAYER_BYTES);
    const found = clear.map((payload) => inversion.tokensOf(payload, BLOCK_TOKENS).join());
    const wanted = Array.from({ length: numBlocks }, (_, i) =>
      tokens.slice(i * BLOCK_TOKENS, (i + 1) * BLOCK_TOKENS).join(),
    );
    if (isSealed) {
      expect(clear).toEqual([]);
      const few = guessed.slice(0, 64);
      expect(few.length).toBeGreaterThan(16);
      expect(
        few.flatMap((payload) => inversion.tokensOf(payload, BLOCK_TOKENS).filter((token) => token !== undefined)),
      ).toEqual([]);
    } else {
      expect(found).toEqual(expect.arrayContaining(wanted));
    }
    expectPrivate(paths);
  },
);

/** Expects that only the owner can open what is there, by the modes, and by a try as another user where the test may change its user. */
function expectPrivate(paths: readonly string[]): void {
  for (const path of paths) expect(statSync(path).mode & 0o077, path).toBe(0);
  if (process.getuid?.() !== 0) return;
  chmodSync(cluster!.dataFolder, 0o755);
  for (const path of paths.filter((one) => statSync(one).isFile())) {
    const cat = spawnSync('cat', [path], { uid: 65_534, gid: 65_534 });
    expect(cat.status, `nobody reads ${path}`).not.toBe(0);
    expect(cat.stdout.length).toBe(0);
  }
}

test('a store under a wrong key, or under none, does not start, and deletes nothing; a file that is no key is refused', async () => {
  cluster = await Cluster.up();
  const { hub } = cluster;
  const data = join(folder.path, 'data');
  const environment = join(data, 's', 'lmdb');
  openKeys(environment, Buffer.from(KEY, 'hex'));
  writeFileSync(join(environment, 'records'), 'a record');
  const before = filesIn(data).map((path) => [path, statSync(path).mtimeMs]);
  const start = (...args: string[]): ReturnType<typeof runToEnd> =>
    runToEnd(['store', '--join', hub, '--data-dir', data, '--name', 's', ...args]);
  const bad = join(folder.path, 'bad');
  for (const [text, why] of [
    ['', /is empty; to make one: .*openssl rand -hex 32/],
    ['secret', /has no key of 32 bytes/],
    ['5a'.repeat(31), /has no key of 32 bytes/],
    ['5b'.repeat(32), /were written under another key: give --disk-key the file of that time/],
  ] as const) {
    writeFileSync(bad, text);
    const { code, errors } = await start('--disk-key', bad);
    expect([code, errors]).toEqual([2, expect.stringMatching(why)]);
  }
  const missing = await start('--disk-key', join(folder.path, 'nowhere'));
  expect([missing.code, missing.errors]).toEqual([2, expect.stringMatching(/ENOENT.*openssl rand/)]);
  const without = await start();
  expect([without.code, without.errors]).toEqual([2, expect.stringMatching(/are encrypted: start the store with/)]);
  const after = filesIn(data).map((path) => [path, statSync(path).mtimeMs]);
  expect(after).toEqual(expect.arrayContaining(before.filter(([path]) => String(path).includes('lmdb'))));
});
