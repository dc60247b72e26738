/** How many offers a store takes at once. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../shared/base/failure.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Random } from '../../shared/base/random.ts';
import type { TransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { playedNetwork } from '../support/played_network.ts';
import { silentLog } from '../../shared/base/log.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import type { FetchLine } from '../../shared/net/fetch/fetch.ts';
import { nothingMoved } from '../../shared/net/fetch/transfer.ts';
import { OfferIntake } from '../../services/store/offer_intake.ts';
import type { StoreTiers } from '../../services/store/tiers.ts';
import { offerOf } from '../support/borrowing.ts';
import { until } from '../support/until.ts';

const format = 'ab'.repeat(16) as Digest;

test('64 offers are taken at once, the next is refused as overload, and a place comes free with each that ends (P1)', async () => {
  const ends: (() => void)[] = [];
  const tiers = {
    lacks: () => true,
    checkSize: () => undefined,
    identityOf: () => undefined,
    noteDuplicates: () => undefined,
    commit: () => Promise.resolve(),
    writeOf: () => undefined,
    disk: { has: () => false },
  } as unknown as StoreTiers;
  // A holder that is asked, and sends nothing until it ends.
  const network = playedNetwork({
    async *fetch() {
      await new Promise<void>((resolve) => ends.push(resolve));
    },
  });
  const line: FetchLine = {
    network,
    clock: systemClock,
    random: new Random(1),
    channels: undefined,
    moved: nothingMoved(),
    transferThread: {} as unknown as TransferThread,
  };
  const intake = new OfferIntake(tiers, line, silentLog, 'through');
  const offering = (i: number): ReturnType<OfferIntake['accept']> =>
    intake.accept(
      offerOf(format, chainOf(format, 4, [i, i, i, i]), { recordBytes: 1_024, source: 's:1' }),
      new AbortController().signal,
    );
  const taken = Array.from({ length: 64 }, (_, i) =>
    offering(i).then(
      () => 'taken',
      (error: unknown) => String(error),
    ),
  );
  await assert.rejects(offering(64), (error: unknown) => error instanceof Failure && error.code === 'overloaded');
  await until('all of them are asked', () => ends.length === 64);
  ends[0]?.();
  assert.equal(await taken[0], 'taken');
  assert.equal(intake.numOpen, 63);
  void offering(65).catch(() => undefined);
  assert.equal(intake.numOpen, 64);
});
