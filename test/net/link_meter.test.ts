/** Time in which bytes moved, by a clock that the test sets. Budget: 1 s. */
import { expect, test } from 'vitest';
import type { TransferWay } from '../../shared/net/fetch/fetch_events.ts';
import { LinkMeter } from '../../shared/net/fetch/link_meter.ts';

function meterOf(isComputing = false) {
  const clock = { ms: 100 };
  const meter = new LinkMeter({ nowMs: () => clock.ms }, isComputing);
  const offer = { data: Buffer.alloc(0), offset: 0 };
  const slice = (offset = 0) => ({ data: Buffer.alloc(10), offset });
  return { clock, meter, offer, slice };
}

const record = (bytes: number, way: TransferWay) => ({ bytes, way, isLast: true, fault: undefined });

test('over a data channel bytes move while something that was asked for is not there', () => {
  const { clock, meter, offer } = meterOf();
  meter.sent();
  meter.reads();
  clock.ms += 5;
  meter.answered(offer, 5, true);
  // The reader has no room yet.
  clock.ms += 100;
  meter.asked(2);
  clock.ms += 3;
  meter.arrived(1, 'socket');
  meter.read(record(1_000, 'socket'));
  clock.ms += 1;
  meter.asked(1);
  clock.ms += 4;
  meter.arrived(2, 'socket');
  meter.read(record(1_000, 'socket'));
  meter.read(record(1_000, 'socket'));
  expect(meter.measures).toEqual([{ way: 'socket', bytes: 3_000, movingMs: 8, latencyMs: 5 }]);
  // The holder computes what comes next.
  clock.ms += 1_000;
  meter.answered(offer, 1_000, false);
  meter.asked(1);
  clock.ms += 2;
  meter.arrived(1, 'socket');
  meter.read(record(1_000, 'socket'));
  expect(meter.measures).toEqual([{ way: 'socket', bytes: 4_000, movingMs: 10, latencyMs: 5 }]);
});

test('over the call the wait for each slice counts, but for the first one and for one that came while nobody read', () => {
  const { clock, meter, slice } = meterOf();
  meter.sent();
  meter.reads();
  clock.ms += 7;
  meter.answered(slice(), 7, true);
  meter.answered(slice(10), 2, false);
  meter.answered(slice(), undefined, false);
  meter.answered(slice(10), 3, false);
  meter.answered(slice(), 1, false);
  expect(meter.measures).toEqual([{ way: 'call', bytes: 30, movingMs: 6, latencyMs: 7 }]);
});

test('a holder that computes has no latency, and its records begin when they are computed', () => {
  const { clock, meter, slice } = meterOf(true);
  meter.sent();
  meter.reads();
  clock.ms += 900;
  meter.answered(slice(), 900, true);
  meter.answered(slice(10), 2, false);
  meter.answered(slice(), 800, false);
  meter.answered(slice(10), 3, false);
  expect(meter.measures).toEqual([{ way: 'call', bytes: 20, movingMs: 5, latencyMs: -1 }]);
});

test('an answer that is read long after it came shows no latency, one to a later call does', () => {
  const { clock, meter, offer } = meterOf();
  meter.sent();
  clock.ms += 50;
  meter.reads();
  meter.answered(offer, 0, true);
  meter.asked(1);
  clock.ms += 1;
  meter.arrived(1, 'memory');
  meter.read(record(5, 'memory'));
  expect(meter.measures).toEqual([{ way: 'memory', bytes: 5, movingMs: 1, latencyMs: -1 }]);
  // Records that the broken call had asked for do not come, and are not waited for.
  meter.asked(4);
  clock.ms += 500;
  meter.sent();
  meter.reads();
  clock.ms += 3;
  meter.answered(offer, 3, true);
  meter.asked(1);
  clock.ms += 2;
  meter.arrived(1, 'socket');
  meter.read(record(5, 'socket'));
  expect(meter.measures).toEqual([
    { way: 'memory', bytes: 5, movingMs: 1, latencyMs: 3 },
    { way: 'socket', bytes: 5, movingMs: 2, latencyMs: 3 },
  ]);
});

test('nothing came: there is nothing to say', () => {
  expect(meterOf().meter.measures).toEqual([]);
});
