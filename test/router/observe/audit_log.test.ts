/** Lines of the audit log: no request waits for the disk, none is written twice, and what is missing is said. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { AuditLog, type AuditEntry } from '../../../services/router/observe/audit_log.ts';
import type { Log } from '../../../shared/base/log.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

const MAX_LINES = 16_384;

/** An audit log on a disk that a test breaks, stops or repairs. */
class World {
  readonly clock = new SimulatedClock();
  readonly batches: string[][] = [];
  readonly said: string[] = [];
  readonly audit: AuditLog;
  state: 'works' | 'full' | 'hangs' = 'works';
  isClosed = false;
  #resume: () => void = () => undefined;

  constructor() {
    const say = (_fields: object, text: string): void => {
      this.said.push(text);
    };
    const log = { warn: say, info: say } as unknown as Log;
    const appender = {
      append: async (text: string): Promise<void> => {
        if (this.state === 'hangs') await new Promise<void>((resolve) => (this.#resume = resolve));
        if (this.state === 'full') throw new Error('no space left on device');
        this.batches.push(text.trimEnd().split('\n'));
      },
      close: (): Promise<void> => {
        this.isClosed = true;
        return Promise.resolve();
      },
    };
    this.audit = new AuditLog({ file: 'f', appender, clock: this.clock, log });
  }

  add(from: number, to: number): void {
    for (let n = from; n < to; n++) this.audit.add({ status: n } as AuditEntry);
  }

  run(ms: number): Promise<void> {
    return this.clock.run(this.clock.nowMs() + ms);
  }

  repair(): void {
    this.state = 'works';
    this.#resume();
  }

  /** Status of each written line, and `missing N` for those that say it. */
  get written(): readonly (number | string)[] {
    return this.batches.flat().map((line) => {
      const { status, missing } = JSON.parse(line) as { status?: number; missing?: number };
      return status ?? `missing ${missing}`;
    });
  }
}

const numbers = (from: number, to: number): number[] => Array.from({ length: to - from }, (_, i) => from + i);

test('lines that come together are one batch, in their order, and wait for no request', async () => {
  const world = new World();
  world.add(0, 3);
  await world.run(100);
  world.add(3, 5);
  await world.run(100);
  assert.deepEqual(
    world.batches.map(({ length }) => length),
    [3, 2],
  );
  assert.deepEqual(world.written, numbers(0, 5));
  assert.deepEqual(world.said, []);
});

test('a full disk loses no line while they have room, and writes none twice', async () => {
  const world = new World();
  world.state = 'full';
  world.add(0, 10);
  await world.run(5_000);
  world.add(10, 20);
  await world.run(5_000);
  assert.deepEqual(world.written, []);
  world.repair();
  await world.run(5_000);
  assert.deepEqual(world.written, numbers(0, 20));
  assert.equal(world.audit.numDropped, 0);
  // One line of the log for the fault, however often it was tried, and one for its end.
  assert.equal(world.said.length, 2);
  assert.match(world.said[0] ?? '', /cannot be written/);
  assert.match(world.said[1] ?? '', /is written again/);
});

test.each(['full', 'hangs'] as const)(
  'of a disk that is %s further lines are dropped and counted, and a line in their place says so',
  async (state) => {
    const world = new World();
    world.state = state;
    world.add(0, MAX_LINES + 7);
    await world.run(10_000);
    world.add(MAX_LINES + 7, MAX_LINES + 9);
    assert.equal(world.audit.numDropped, 9);
    assert.equal(world.said.length, 1);
    world.repair();
    await world.run(10_000);
    world.add(100_000, 100_002);
    await world.run(10_000);
    assert.deepEqual(world.written, [...numbers(0, MAX_LINES), 'missing 9', 100_000, 100_001]);
    assert.equal(world.audit.numDropped, 9);
    assert.equal(world.said.length, 2);
  },
);

test('the end of the router writes what waits at once', async () => {
  const world = new World();
  world.add(0, 2_000);
  void world.audit.close();
  await world.run(0);
  assert(world.isClosed);
  assert.deepEqual(world.written, numbers(0, 2_000));
});

test.each(['full', 'hangs'] as const)(
  'the end of the router waits for a disk that is %s for two seconds at most, and says what is missing',
  async (state) => {
    const world = new World();
    world.state = state;
    world.add(0, 3);
    await world.run(100);
    let isOver = false;
    void world.audit.close().then(() => (isOver = true));
    await world.run(2_001);
    assert(isOver);
    assert.match(world.said.at(-1) ?? '', /lacks its last lines/);
  },
);
