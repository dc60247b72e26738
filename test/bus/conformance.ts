/** Tests that every bus must pass. A driver's own test file defines how to open two ends of it. */
import assert from 'node:assert/strict';
import { afterEach, describe, test } from 'vitest';
import type { Bus } from '../../shared/bus/bus.ts';
import { Failure } from '../../shared/base/failure.ts';
import { PATIENCE_MS, turn, until } from '../support/until.ts';

export interface BusDriver {
  readonly name: string;
  /** Connected ends; the last call of a test closes them all. */
  readonly open: (numEnds: number) => Promise<{ ends: Bus[]; close: () => Promise<void> }>;
}

const text = (value: string): Buffer => Buffer.from(value);

export function busConformance({ name, open }: BusDriver): void {
  describe(name, () => {
    let close: () => Promise<void> = () => Promise.resolve();
    const opened = async (numEnds: number): Promise<Bus[]> => {
      const opening = await open(numEnds);
      ({ close } = opening);
      return opening.ends;
    };
    afterEach(async () => {
      await close();
    });

    /** Subscriptions travel: publish until something arrives. */
    const publishUntil = async (bus: Bus, subject: string, payload: Buffer, received: () => boolean): Promise<void> => {
      await until('it arrives', () => {
        if (!received()) bus.publish(subject, payload);
        return received();
      });
    };

    /** So do servers: ask until one answers, whatever it answers. */
    const askUntilServed = async (bus: Bus, subject: string): Promise<void> => {
      await until('somebody serves it', async () => {
        const error: unknown = await bus.request(subject, text('0'), PATIENCE_MS).catch((failure: unknown) => failure);
        return !(error instanceof Failure && error.code === 'not_found');
      });
    };

    test('a message reaches every subscriber of its subject, and nobody else', async () => {
      const [a, b, c] = (await opened(3)) as [Bus, Bus, Bus];
      const got: string[] = [];
      b.subscribe('news', (payload) => got.push(`b ${payload.toString()}`));
      c.subscribe('news', (payload) => got.push(`c ${payload.toString()}`));
      c.subscribe('other', () => got.push('wrong'));
      await publishUntil(a, 'news', text('x'), () => got.includes('b x') && got.includes('c x'));
      assert(!got.includes('wrong'));
    });

    test('messages of one sender arrive in order, bytes unchanged', async () => {
      const [a, b] = (await opened(2)) as [Bus, Bus];
      const got: Buffer[] = [];
      b.subscribe('order', (payload) => got.push(Buffer.from(payload)));
      await publishUntil(a, 'order', text('ready'), () => got.length > 0);
      const start = got.length;
      for (let i = 0; i < 500; i++) a.publish('order', Buffer.from([0, 255, i & 255, i >> 8]));
      await until('all have come', () => got.filter(({ length }) => length === 4).length >= 500);
      const numbers = got.slice(start).filter(({ length }) => length === 4);
      assert.deepEqual(
        numbers.map((payload) => payload.readUInt16LE(2)),
        Array.from({ length: 500 }, (_, i) => i),
      );
    });

    test('who has unsubscribed hears nothing more', async () => {
      const [a, b] = (await opened(2)) as [Bus, Bus];
      let [count, witness] = [0, 0];
      const stop = b.subscribe('s', () => count++);
      b.subscribe('s', () => witness++);
      await publishUntil(a, 's', text('1'), () => count > 0);
      stop();
      const before = [count, witness];
      await publishUntil(a, 's', text('2'), () => witness > before[1]! + 1);
      assert.equal(count, before[0]);
    });

    test('a subscriber that throws harms nobody else', async () => {
      const [a, b] = (await opened(2)) as [Bus, Bus];
      let count = 0;
      b.subscribe('s', () => {
        throw new Error('cannot read this');
      });
      b.subscribe('s', () => count++);
      await publishUntil(a, 's', text('x'), () => count > 2);
    });

    test('a request gets its own answer, many at once', async () => {
      const [a, b] = (await opened(2)) as [Bus, Bus];
      a.serve('double', async (payload) => {
        for (let i = Number(payload) % 7; i > 0; i--) await turn();
        return text(String(Number(payload) * 2));
      });
      await askUntilServed(b, 'double');
      const answers = await Promise.all(
        Array.from({ length: 50 }, async (_, i) => Number(await b.request('double', text(String(i)), PATIENCE_MS))),
      );
      assert.deepEqual(
        answers,
        Array.from({ length: 50 }, (_, i) => 2 * i),
      );
    });

    test('a server’s failure, and a subject that nobody serves, reach the one who asked', async () => {
      const [a, b] = (await opened(2)) as [Bus, Bus];
      a.serve('fails', () => {
        throw new Error('no such luck');
      });
      await askUntilServed(b, 'fails');
      await assert.rejects(b.request('fails', text(''), PATIENCE_MS), /no such luck/);
      await assert.rejects(
        b.request('nobody', text(''), PATIENCE_MS),
        (error: unknown) => error instanceof Failure && error.code === 'not_found',
      );
    });
  });
}
