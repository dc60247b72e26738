/**
 * Keys files of rubbish, written while a router serves: the last good one stays, the log says why, and the next good one is taken. A guest's
 * key comes and goes with the good ones.
 */
import assert from 'node:assert/strict';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { MAX_KEYS_BYTES } from '../../../shared/base/client_keys.ts';
import type { Random } from '../../../shared/base/random.ts';
import { entryOf, type Cluster } from '../../support/cluster.ts';
import { until } from '../../support/until.ts';
import { changedText } from './fuzz.ts';

const GUEST = 'key-of-the-guest';
const MAX_PAUSE_MS = 400;

/** Returns a text that is no list of keys. */
function rubbish(good: string, random: Random): string | Buffer {
  const [entry = {}] = JSON.parse(good) as Record<string, unknown>[];
  return random.pick<() => string | Buffer>([
    () => '',
    () => good.slice(0, 1 + random.below(good.length - 1)),
    () => `${good}\n[${changedText(good, random)}`,
    () => Buffer.from(Array.from({ length: 1 + random.below(4_000) }, () => random.below(256))),
    () => '- name: [',
    () => '[]',
    () => 'null',
    () => '[null, 1]',
    () => `[${'['.repeat(20_000)}`,
    () => '- '.repeat(20_000),
    // A list that doubles with each line.
    () => ['a: &a0 [x]', ...Array.from({ length: 30 }, (_, i) => `b${i}: &a${i + 1} [*a${i}, *a${i}]`)].join('\n'),
    () => '- &a\n  name: *a\n',
    () => JSON.stringify([entry, entry]),
    () => JSON.stringify([{ ...entry, sha256: 'f'.repeat(63) }]),
    () => JSON.stringify([{ ...entry, ['__proto__']: 1 }]),
    () => JSON.stringify([{ ...entry, limits: { requests_per_minute: -1 } }]),
    () => JSON.stringify([{ ...entry, models: ['nope'] }]),
    () => `- name: !!js/function x\n- !!binary ${good}`,
    () => `# ${'x'.repeat(MAX_KEYS_BYTES)}\n${good}`,
  ])();
}

/** Writes rubbish and good files until `isOver`; then the last good one is used, and the log has said of the last of rubbish that it was not. */
export async function rewriteKeys(cluster: Cluster, isOver: () => boolean, random: Random): Promise<number> {
  const file = cluster.keysFile;
  const good = readFileSync(file, 'utf8');
  const entries = JSON.parse(good) as object[];
  const withGuest = JSON.stringify([...entries, entryOf(GUEST, 'guest')]);
  let numWritten = 0;
  while (!isOver()) {
    const kind = random.below(8);
    if (kind === 0) rmSync(file, { force: true });
    else writeFileSync(file, kind < 6 ? rubbish(good, random) : random.pick([good, withGuest]));
    numWritten++;
    // eslint-disable-next-line time/speed -- the pace of the changes: the router need not see each
    await sleep(random.below(MAX_PAUSE_MS));
  }
  const isKnown = async (): Promise<boolean> => {
    const headers = { authorization: `Bearer ${GUEST}` };
    const { status } = await fetch(`${cluster.url}/v1/models`, { headers });
    assert(status === 200 || status === 401, String(status));
    return status === 200;
  };
  writeFileSync(file, withGuest);
  await until('the key of the guest is taken', isKnown);
  const numBefore = cluster.errors.length;
  writeFileSync(file, rubbish(good, random));
  await until('the log says that rubbish is not used', () =>
    cluster.errors.slice(numBefore).some((line) => line.includes('keys')),
  );
  assert(await isKnown(), 'the last good file stays');
  writeFileSync(file, good);
  await until('the key of the guest is refused', async () => !(await isKnown()));
  return numWritten;
}
