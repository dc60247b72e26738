/** How many offers a store takes at once. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../shared/base/failure.ts';
import { silentLog } from '../../shared/base/log.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import type { FetchLine } from '../../shared/net/fetch_client.ts';
import { packDigest, packHashes } from '../../shared/protocol/packing.ts';
import { OfferIntake } from '../../services/store/offer_intake.ts';
import type { StoreTiers } from '../../services/store/tiers.ts';

const format = 'ab'.repeat(16) as Digest;

test('64 offers are taken at once, the next is refused as overload, and a place comes free with each that ends (P1)', async () => {
  const ends: (() => void)[] = [];
  const tiers = {
    lacks: () => true,
    noteDuplicates: () => undefined,
    writeOf: () => undefined,
    disk: { has: () => false },
    openDram: () =>
      new Promise((_, reject) => {
        ends.push(() => {
          reject(new Failure('overloaded', 'no room'));
        });
      }),
  } as unknown as StoreTiers;
  const intake = new OfferIntake(tiers, {} as unknown as FetchLine, silentLog, 'through');
  const offerOf = (i: number): ReturnType<OfferIntake['take']> =>
    intake.take(
      {
        ...{ context: null, format: packDigest(format), recordBytes: 1_024, source: 's:1' },
        hashes: packHashes(chainOf(format, 4, [i, i, i, i])),
      },
      new AbortController().signal,
    );
  const taken = Array.from({ length: 64 }, (_, i) =>
    offerOf(i).then(
      () => 'taken',
      (error: unknown) => String(error),
    ),
  );
  await assert.rejects(offerOf(64), (error: unknown) => error instanceof Failure && error.code === 'overloaded');
  ends[0]?.();
  assert.match((await taken[0]) ?? '', /no room/);
  assert.equal(intake.numOpen, 63);
  void offerOf(65).catch(() => undefined);
  assert.equal(intake.numOpen, 64);
});
