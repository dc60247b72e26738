/**
 * The promises of fair shares, each as a function that throws where it does not hold: the suite runs them, and its mutants must break one.
 * The production engine under a device that only takes time.
 */
import assert from 'node:assert/strict';
import { TimedEngine, type TimedRequest } from '../support/timed_engine.ts';

/** Requests of a tenant that wait, at least. */
const BACKLOG = 24;

/** Returns Jain's index of these values. */
export function jain(values: readonly number[]): number {
  const sum = values.reduce((all, x) => all + x, 0);
  return (sum * sum) / (values.length * values.reduce((all, x) => all + x * x, 0));
}

/** Runs for a time, and returns the milliseconds that each tenant was charged in it. */
async function chargedIn(engine: TimedEngine, ms: number, tenants: readonly string[]): Promise<number[]> {
  const before = tenants.map((tenant) => engine.msOf(tenant));
  await engine.run(engine.nowMs + ms);
  return tenants.map((tenant, i) => engine.msOf(tenant) - before[i]!);
}

const small: TimedRequest = { tenant: 'a', prompt: 64, output: 16 };

export const fairChecks = {
  'requests that cost 1 : 4 : 16 : 64 get equal time': async (): Promise<void> => {
    const engine = new TimedEngine();
    const tenants = ['a', 'b', 'c', 'd'];
    for (const [i, tenant] of tenants.entries())
      engine.keep({ tenant, prompt: 32 * 4 ** i, output: 8 * 4 ** i }, BACKLOG);
    const shares = await chargedIn(engine, 20_000, tenants);
    assert(jain(shares) >= 0.95, `Jain's index ${jain(shares)}: ${shares.join()}`);
  },

  'lengths that nobody expects right do no harm': async (): Promise<void> => {
    const engine = new TimedEngine();
    engine.keep({ tenant: 'a', prompt: 64, output: 256, expectedTokens: 0 }, BACKLOG);
    engine.keep({ tenant: 'b', prompt: 64, output: 16, expectedTokens: 500 }, BACKLOG);
    const shares = await chargedIn(engine, 20_000, ['a', 'b']);
    assert(jain(shares) >= 0.99, shares.join());
  },

  'weights divide the time': async (): Promise<void> => {
    const engine = new TimedEngine();
    engine.keep({ ...small, tenant: 'a', weight: 2 }, BACKLOG);
    engine.keep({ ...small, tenant: 'b', prompt: 256, output: 64 }, BACKLOG);
    const [a = 0, b = 0] = await chargedIn(engine, 20_000, ['a', 'b']);
    assert(Math.abs(a / b / 2 - 1) < 0.05, `${a} : ${b}`);
  },

  'whoever comes back has saved nothing up': async (): Promise<void> => {
    const engine = new TimedEngine();
    // Both are known, then one works alone for a minute.
    for (let i = 0; i < 20; i++) engine.submit({ ...small, tenant: 'b' });
    engine.keep(small, BACKLOG);
    await engine.run(60_000);
    engine.keep({ ...small, tenant: 'b' }, BACKLOG);
    const shares = await chargedIn(engine, 5_000, ['a', 'b']);
    assert(jain(shares) >= 0.98, `after the return: ${shares.join()}`);
  },

  'whoever had more than the others and comes back has it still': async (): Promise<void> => {
    const engine = new TimedEngine({ maxNumSeqs: 1 });
    engine.keep({ ...small, tenant: 'b' }, BACKLOG);
    // One request at a time: between two it has none.
    while (engine.nowMs < 60_000) {
      const asked = engine.submit({ tenant: 'a', prompt: 64, output: 400 });
      while (asked.endMs === undefined && engine.nowMs < 60_000) await engine.run(engine.nowMs + 10);
      await engine.run(engine.nowMs + 1);
    }
    assert(jain([engine.msOf('a'), engine.msOf('b')]) >= 0.98, `${engine.msOf('a')} : ${engine.msOf('b')}`);
  },

  'rows that are hit cost nothing': async (): Promise<void> => {
    const engine = new TimedEngine();
    // Prompts of 1,024 tokens, of which one tenant's share all but 64.
    engine.keep({ tenant: 'a', prompt: 1_024, output: 4, prefix: 1, prefixTokens: 960 }, BACKLOG);
    engine.keep({ tenant: 'b', prompt: 1_024, output: 4 }, BACKLOG);
    await engine.run(30_000);
    const [a = 0, b = 0] = ['a', 'b'].map((tenant) => engine.of(tenant).filter(({ endMs }) => endMs).length);
    assert(jain([engine.msOf('a'), engine.msOf('b')]) >= 0.98, `${engine.msOf('a')} : ${engine.msOf('b')}`);
    assert(a > 4 * b, `with hits ${a} requests, without ${b}`);
  },

  'a thousand priorities have one share': async (): Promise<void> => {
    const engine = new TimedEngine();
    for (let i = 0; i < 1_000; i++) engine.keep({ ...small, tenant: 'b', priority: -i }, 1);
    engine.keep(small, BACKLOG);
    const shares = await chargedIn(engine, 10_000, ['a', 'b']);
    assert(jain(shares) >= 0.98, shares.join());
  },

  'age counts within a tenant only': async (): Promise<void> => {
    const engine = new TimedEngine({ maxNumSeqs: 2 });
    // Requests that wait for more than a minute, of a tenant that has all the time.
    for (let i = 0; i < 1_500; i++) engine.submit({ ...small, output: 64 });
    await engine.run(70_000);
    assert(engine.engine.load.numWaiting > 300, `${engine.engine.load.numWaiting} wait`);
    const asked = Array.from({ length: 20 }, () => engine.submit({ ...small, tenant: 'b' }));
    await engine.run(engine.nowMs + 3_000);
    const waits = asked.map(({ firstMs = Infinity, submittedMs }) => firstMs - submittedMs);
    assert(Math.max(...waits) < 2_000, `${waits.join()} ms`);
  },

  'a quiet tenant waits for the next free seat at most, whatever priorities others state': async (): Promise<void> => {
    const alone = new TimedEngine();
    const own = alone.submit(small);
    await alone.run();
    for (const priorityOf of [() => 0, () => -(2 ** 31), (i: number) => -25 * i]) {
      const engine = new TimedEngine();
      for (let i = 0; i < 40; i++)
        engine.keep({ tenant: 'flood', prompt: 200, output: 300, priority: priorityOf(i) }, 1);
      const waits: number[] = [];
      for (let i = 0; i < 30; i++) {
        await engine.run(engine.nowMs + 997);
        const asked = engine.submit({ ...small, tenant: 'quiet' });
        const untilMs = engine.nowMs + 20_000;
        while (asked.firstMs === undefined && engine.nowMs < untilMs) await engine.run(engine.nowMs + 1);
        assert(asked.firstMs !== undefined, 'a request of the quiet tenant waits for twenty seconds');
        waits.push(asked.firstMs - asked.submittedMs);
      }
      const seatMs = Math.max(
        ...engine.of('flood').map(({ admittedMs = 0, endMs = admittedMs }) => endMs - admittedMs),
      );
      assert(Math.max(...waits) <= own.firstMs! + seatMs, `${Math.max(...waits)} ms, a seat ${seatMs} ms`);
    }
  },

  'precedence goes before the counters of others': async (): Promise<void> => {
    const engine = new TimedEngine({ maxNumSeqs: 1 });
    engine.keep(small, BACKLOG);
    await engine.run(200);
    const late = engine.submit({ ...small, tenant: 'b' });
    const urgent = [1, 2].map(() => engine.submit({ ...small, tenant: 'c', precedence: 1 }));
    await engine.run(3_000);
    for (const { admittedMs = Infinity } of urgent) assert(admittedMs < late.admittedMs!);
  },
};
