/**
 * Rules of a hostile tenant next to those of another one, on the real threads: what is judged is which conversions and trials begin between the
 * arrival of a rule and its own, so nothing depends on the speed of the machine. In the long run a new rule waits in each of the rounds for a job of
 * up to 3 or 4 s of CPU time, so that they take about a minute. Budget: 20 s.
 */
import assert from 'node:assert/strict';
import { setMaxListeners } from 'node:events';
import { afterEach, beforeEach, test } from 'vitest';
import type { CallFor } from '../../../shared/base/call_queue.ts';
import { systemClock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Threads } from '../../../shared/base/threads.ts';
import { workerThreads } from '../../../shared/base/worker_threads.ts';
import { TrialCompiler } from '../../../shared/grammar/matcher/trial_compiler.ts';
import { RuleConversions, TextRules } from '../../../shared/text/grammar/text_rules.ts';
import type { TextRule } from '../../../shared/text/grammar/text_rule.ts';
import { byteTable } from '../../grammar/matcher/byte_table.ts';
import { slowToConvert, slowToTry } from '../../grammar/slow_rules.ts';
import { isLong, sized } from '../../support/long.ts';
import { until } from '../../support/until.ts';

const NUM_CLIENTS = 12;
const signal = new AbortController().signal;
setMaxListeners(0, signal);
const HOSTILE = { signal, share: { key: 'hostile' } };
const QUIET = { signal, share: { key: 'quiet' } };
/** A tenant that has not had anything yet, however long its rules take here. */
const another = (round: number): CallFor => ({ signal, share: { key: `tenant ${round}` } });

/** A conversion (`convert`) or trial (`check`) that began or ended, with its rule or grammar as text. */
interface Entry {
  readonly job: string;
  readonly phase: 'began' | 'ended';
  readonly text: string;
}

/** Worker threads whose conversions and trials are noted, until all of them are ended. */
class NotedThreads implements Threads {
  readonly entries: Entry[] = [];
  readonly #ends: (() => Promise<void>)[] = [];
  #isOver = false;

  spawn: Threads['spawn'] = (module, data, listener) => {
    const thread = workerThreads.spawn(module, data as never, listener);
    this.#ends.push(() => thread.close());
    const call = async (method: string, argument: unknown): Promise<unknown> => {
      if (this.#isOver) throw new Failure('cancelled', 'the test is over');
      const text = typeof argument === 'string' ? argument : JSON.stringify(argument);
      const isJob = method === 'convert' || method === 'check';
      if (isJob) this.entries.push({ job: method, phase: 'began', text });
      try {
        return await thread.call(method as never, argument as never);
      } finally {
        if (isJob) this.entries.push({ job: method, phase: 'ended', text });
      }
    };
    return {
      ...thread,
      call,
      notify: () => undefined,
      cpuMs: () => thread.cpuMs?.(),
      close: () => thread.close(),
    } as never;
  };

  /** Returns whether a job of this kind runs. */
  isBusy(job: string): boolean {
    return this.entries.findLast((entry) => entry.job === job)?.phase === 'began';
  }

  /** Returns the jobs of this kind that began after so many entries. */
  begunSince(numEntries: number, job: string): string[] {
    const since = this.entries.slice(numEntries);
    return since.filter((entry) => entry.job === job && entry.phase === 'began').map(({ text }) => text);
  }

  async end(): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.#ends.map((end) => end()));
  }
}

let threads: NotedThreads;
let rules: TextRules;
let flood: Promise<unknown>;
let isOver: boolean;
beforeEach(() => {
  isOver = false;
  threads = new NotedThreads();
  const vocabulary = { kind: 'table', table: byteTable } as const;
  // In the short run a trial is refused earlier.
  const limit = isLong ? {} : { compileCpuMs: 500 };
  const trial = new TrialCompiler({ threads, clock: systemClock, vocabulary, ...limit });
  rules = new TextRules(new RuleConversions(threads, systemClock), trial);
});
afterEach(async () => {
  isOver = true;
  await threads.end();
  await flood;
});

/** Clients of one tenant that send one new rule after the other, each of which is refused: some take long to convert, some to try. */
function beginFlood(): void {
  let numSent = 0;
  const client = async (_: unknown, number: number): Promise<void> => {
    for (;;) {
      const rule = number % 3 === 0 ? slowToTry(numSent++) : slowToConvert(numSent++, sized(400, 60));
      const error = await rules.compile(rule, HOSTILE).then(
        () => undefined,
        (failure: unknown) => failure,
      );
      if (isOver) return;
      assert(error instanceof Failure && error.code === 'invalid_request', String(error));
    }
  };
  flood = Promise.all(Array.from({ length: NUM_CLIENTS }, client));
}

/** New rules of the quiet tenant, by round. */
const quietRules: readonly ((round: number) => TextRule)[] = [
  (round) => ({ kind: 'choice', param: 'guided_choice', texts: [`yes ${round}`, `no ${round}`] }),
  (round) => ({ kind: 'json_schema', param: 'guided_json', schema: JSON.stringify({ const: `schema ${round}` }) }),
];

test('a new rule waits for one running conversion and one running trial, and a known one for none', async () => {
  const known: TextRule = { kind: 'choice', param: 'guided_choice', texts: ['known'] };
  const grammar = await rules.compile(known, QUIET);
  beginFlood();
  for (let round = 0; round < sized(20, 2); round++) {
    await until('a conversion and a trial run', () => threads.isBusy('convert') && threads.isBusy('check'));
    const numAtArrival = threads.entries.length;
    const coming = rules.compile(quietRules[round % quietRules.length]!(round), another(round));
    assert.equal(await rules.compile(known, QUIET), grammar);
    assert.equal(threads.entries.length, numAtArrival, 'nothing began or ended while the known rule was looked up');
    const own = await coming;
    const [firstConversion = ''] = threads.begunSince(numAtArrival, 'convert');
    assert(firstConversion.includes(` ${round}`), `the next conversion is its own: ${firstConversion.slice(0, 80)}`);
    const converted = threads.entries.findIndex(({ phase, text }) => phase === 'ended' && text === firstConversion);
    const [firstTrial = ''] = threads.begunSince(converted, 'check');
    assert(firstTrial === own, `the next trial is its own: ${firstTrial.slice(0, 80)}`);
  }
});

test('known rules stay known, however many a hostile tenant sends, and however large they are', async () => {
  const known = quietRules.map((rule) => rule(0));
  // The hostile tenant knows them, too.
  for (const rule of known)
    for (const who of rule.kind === 'choice' ? [QUIET, HOSTILE] : [HOSTILE, QUIET]) await rules.compile(rule, who);
  const compileAll = async (numRules: number, ruleOf: (i: number) => TextRule): Promise<void> => {
    for (let i = 0; i < numRules; i++) await rules.compile(ruleOf(i), HOSTILE).catch(() => undefined);
  };
  await compileAll(530, (i) => ({ kind: 'choice', param: 'guided_choice', texts: [`one of many, ${i}`] }));
  // Each is over a million characters once it is written out.
  await compileAll(8, (i) => ({ kind: 'regex', param: 'guided_regex', pattern: `${i}(\\p{L}|\\p{N}){1,900}` }));
  const numEntries = threads.entries.length;
  for (const rule of known) await rules.compile(rule, QUIET);
  assert.equal(threads.entries.length, numEntries, 'none is converted or tried again');
});
