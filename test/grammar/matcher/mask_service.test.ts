/** Masks from threads: against the library alone, through crashes, hangs and refusals, within bounds. Real threads. Budget: 30 s. */
import assert from 'node:assert/strict';
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, describe, expect, test } from 'vitest';
import { systemClock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { ThreadModule, Threads } from '../../../shared/base/threads.ts';
import { maskModule } from '../../../shared/grammar/matcher/grammar_thread.ts';
import { MaskService, type MaskServiceOptions } from '../../../shared/grammar/matcher/mask_service.ts';
import { MaskWorker, type MaskWorkerData } from '../../../shared/grammar/matcher/mask_matchers.ts';
import type { TokenMask } from '../../../shared/grammar/matcher/token_mask.ts';
import { tableOf } from '../../../shared/grammar/matcher/token_table.ts';
import { XGrammar } from '../../../shared/grammar/matcher/xgrammar.ts';
import { projectPath } from '../../support/project.ts';
import { allowedIn, byteTable, END, OTHER_END, tokensOf, VOCAB_SIZE } from './byte_table.ts';
import { slowGrammar } from './slow_grammar.ts';
import { WatchedThreads } from './watched_threads.ts';
import { failsWith } from '../../support/failures.ts';

const LIST = 'root ::= "[" (item ("," item)*)? "]"\nitem ::= [a-z]{1,3} | "\\"" [^"]* "\\""';
const TEXT = '["ab","é",xyz]';

const failing = { url: pathToFileURL(projectPath('dist/test/grammar/matcher/failing_mask_thread.js')) };

let services: MaskService[] = [];
afterEach(async () => {
  await Promise.all(services.map((service) => service.close()));
  services = [];
});

function serve(threads: Threads, options: Partial<MaskServiceOptions> = {}): MaskService {
  const vocabulary = { kind: 'table', table: byteTable } as const;
  const service = new MaskService({ threads, clock: systemClock, vocabulary, ...options });
  services.push(service);
  return service;
}

const grammar = (ebnf: string): { ebnf: string; endTokens: number[] } => ({ ebnf, endTokens: [END] });

/** Masks of the library alone before each byte of a text and at its end. */
async function masksOf(ebnf: string, text: string): Promise<number[][]> {
  const library = await XGrammar.load(byteTable);
  const matcher = await library.start(await library.compile(ebnf));
  const words = new Uint32Array(Math.ceil(VOCAB_SIZE / 32));
  const masks: number[][] = [];
  for (const token of [...tokensOf(text), undefined]) {
    const mayEnd = await matcher.fill(words);
    masks.push([...allowedIn(words), ...(mayEnd ? [END] : [])]);
    if (token !== undefined) assert(matcher.accept(token));
  }
  return masks;
}

/** Appends a text's bytes, and returns the masks before each and at the end. */
async function follow(mask: TokenMask, text: string): Promise<number[][]> {
  const masks: number[][] = [];
  for (const token of tokensOf(text)) {
    masks.push(allowedIn(mask.words));
    assert.equal(await mask.accept(token), true);
  }
  masks.push(allowedIn(mask.words));
  return masks;
}

describe('an output', () => {
  test('has the masks of the library, token for token', async () => {
    const mask = await serve(new WatchedThreads()).open(grammar(LIST), []);
    assert.deepEqual(await follow(mask, TEXT), await masksOf(LIST, TEXT));
    assert(mask.isComplete);
  });

  test('opened after some tokens is where accepting them leads', async () => {
    const expected = await masksOf(LIST, TEXT);
    const service = serve(new WatchedThreads());
    for (const at of [1, 9]) {
      const mask = await service.open(grammar(LIST), tokensOf(TEXT).slice(0, at));
      assert.deepEqual(allowedIn(mask.words), expected[at]);
    }
    await assert.rejects(service.open(grammar(LIST), tokensOf('[]]')), failsWith('invalid_request', /so far/));
  });

  test('refuses a token that the grammar does not allow, and stays where it was', async () => {
    const mask = await serve(new WatchedThreads()).open(grammar(LIST), tokensOf('["'));
    const before = allowedIn(mask.words);
    for (const token of [END, VOCAB_SIZE - 1, VOCAB_SIZE + 9]) assert.equal(await mask.accept(token), false);
    assert.deepEqual(allowedIn(mask.words), before);
    assert.equal(await mask.accept(34), true);
  });

  test('may end where its text is complete, with each of its end tokens, whatever their bytes are', async () => {
    const service = serve(new WatchedThreads());
    const endTokens = [END, OTHER_END, 98, VOCAB_SIZE + 5];
    const mask = await service.open({ ebnf: 'root ::= "a" "b"? "c"?', endTokens }, []);
    assert.deepEqual(allowedIn(mask.words), [97, 256, 257]);
    assert(await mask.accept(97));
    assert.deepEqual(allowedIn(mask.words), [98, 99, 258, END, OTHER_END]);
    assert.equal(mask.isComplete, false);
    assert(await mask.accept(99));
    assert.equal(mask.isComplete, true);
    assert.deepEqual(allowedIn(mask.words), [98, END, OTHER_END]);
    assert(await mask.accept(98));
    assert.equal(mask.isComplete, false);
    assert.deepEqual(allowedIn(mask.words), []);
    assert.equal(await mask.accept(END), false);
  });

  test('that no token can continue fails by name', async () => {
    const table = tableOf([97, 99, undefined].map((byte) => (byte === undefined ? byte : Uint8Array.of(byte))));
    const service = serve(new WatchedThreads(), { vocabulary: { kind: 'table', table } });
    const mask = await service.open({ ebnf: 'root ::= "a" "b"', endTokens: [2] }, []);
    await assert.rejects(mask.accept(0), failsWith('invalid_request', /no token/));
    await assert.rejects(
      service.open({ ebnf: 'root ::= "b"', endTokens: [2] }, []),
      failsWith('invalid_request', /no token/),
    );
    const other = await service.open({ ebnf: 'root ::= "c"', endTokens: [2] }, []);
    assert.deepEqual(allowedIn(other.words), [1]);
  });
});

describe('threads', () => {
  test('are started when they are needed; a new grammar goes to one without outputs, a known one to where it is', async () => {
    const threads = new WatchedThreads();
    const service = serve(threads);
    assert.equal(threads.started.length, 0);
    const grammars = ['root ::= "a"', 'root ::= "b"', 'root ::= "a"', 'root ::= "b"', 'root ::= "c"'];
    for (const ebnf of grammars) await service.open(grammar(ebnf), []);
    const opened = threads.started.map(({ calls }) => calls.filter(({ method }) => method === 'open').length);
    assert.deepEqual(opened, [3, 2]);
    const texts = threads.argumentsOf('open').map((argument) => (argument as { ebnf?: string }).ebnf);
    assert.equal(texts.filter((text) => text !== undefined).length, 3, 'each grammar is compiled once');
  });

  test('get the tokens of all outputs of a step in one call', async () => {
    const threads = new WatchedThreads();
    const service = serve(threads, { maxThreads: 1 });
    const masks = await Promise.all(Array.from({ length: 20 }, () => service.open(grammar(LIST), [])));
    assert.deepEqual(new Set(await Promise.all(masks.map((mask) => mask.accept(91)))), new Set([true]));
    assert.equal(threads.argumentsOf('accept').length, 1);
    for (const mask of masks) assert.deepEqual(allowedIn(mask.words), allowedIn(masks[0]?.words ?? new Uint32Array(0)));
  });

  test('that are lost are replaced: their outputs go on from their tokens, with the same masks', async () => {
    const threads = new WatchedThreads();
    const service = serve(threads, { maxThreads: 1 });
    const expected = await masksOf(LIST, TEXT);
    const [mask, idle] = [await service.open(grammar(LIST), []), await service.open(grammar(LIST), tokensOf('["'))];
    const seen: number[][] = [];
    for (const [i, token] of tokensOf(TEXT).entries()) {
      seen.push(allowedIn(mask.words));
      const accepted = mask.accept(token);
      // Before the call is sent, while it runs, and between calls.
      if (i === 1) await threads.kill(threads.started.length - 1);
      if (i === 4) {
        await systemClock.turn();
        await threads.kill(threads.started.length - 1);
      }
      assert.equal(await accepted, true);
      if (i === 7) await threads.kill(threads.started.length - 1);
    }
    seen.push(allowedIn(mask.words));
    assert.deepEqual(seen, expected);
    assert.equal(threads.started.length, 4);
    assert.deepEqual(allowedIn(idle.words), expected[2]);
    assert.equal(await idle.accept(97), true);
    assert.deepEqual(allowedIn(idle.words), expected[3]);
  });

  test.each(['exit open', 'throw open', 'exit accept', 'throw accept', 'hang accept'])(
    'die twice of a grammar (%s), which is then refused; others never notice',
    async (fault) => {
      const threads = new WatchedThreads(failing);
      const service = serve(threads, { maxThreads: 1, compileCpuMs: 1_000, stepCpuMs: 1_000 });
      const expected = await masksOf(LIST, TEXT);
      const other = await service.open(grammar(LIST), []);
      const followed = follow(other, TEXT);
      const bad = grammar(`root ::= "az"\n# ${fault}`);
      const isRefused = failsWith('invalid_request', fault === 'hang accept' ? /./ : /ends the thread/);
      if (fault.endsWith('open')) await assert.rejects(service.open(bad, []), isRefused);
      else {
        const mask = await service.open(bad, tokensOf('a'));
        await assert.rejects(mask.accept(122), isRefused);
      }
      const numStarted = threads.started.length;
      assert.equal(numStarted, 3);
      await assert.rejects(service.open(bad, []), isRefused);
      assert.equal(threads.started.length, numStarted, 'it is not tried again');
      assert.deepEqual(await followed, expected);
    },
  );

  test('that end without working on a grammar fail an output by a code after which another instance is asked', async () => {
    let numStarted = 0;
    const dying: Threads = {
      spawn: (_module, _data, listener) => {
        numStarted++;
        const call = (method: string): Promise<unknown> => {
          if (method === 'load') return Promise.resolve(byteTable);
          listener.onDeath(new Error('out of memory'));
          return Promise.reject(new Error('out of memory'));
        };
        return { call, notify: () => undefined, close: () => Promise.resolve() } as never;
      },
    };
    const service = serve(dying, { maxThreads: 1 });
    const ended = failsWith('unavailable', /4 threads ended/);
    await assert.rejects(service.open(grammar(LIST), []), ended);
    assert.equal(numStarted, 4);
    await assert.rejects(service.open(grammar(LIST), []), ended);
    assert.equal(new Failure('unavailable', '').retry, 'elsewhere');
  });

  test('that take too long over a grammar are replaced, and it is refused for a minute', async () => {
    const threads = new WatchedThreads(failing);
    let nowMs = 0;
    const clock = { ...systemClock, nowMs: () => nowMs };
    const service = serve(threads, { clock, compileCpuMs: 1_000, maxThreads: 1 });
    const other = await service.open(grammar(LIST), tokensOf('["'));
    const bad = grammar('root ::= "a"\n# hang open');
    await assert.rejects(service.open(bad, []), failsWith('invalid_request', /not compiled after 1 s of CPU time/));
    await assert.rejects(service.open(bad, []), failsWith('invalid_request', /not compiled/));
    assert.equal(threads.started.length, 2);
    assert.equal(await other.accept(97), true);
    nowMs = 60_000;
    await assert.rejects(service.open(bad, []), failsWith('invalid_request', /not compiled/));
    assert.equal(threads.started.length, 3);
    assert.equal(await other.accept(98), true);
  });

  test('that get no CPU time are replaced, and no grammar is blamed: another instance is asked', async () => {
    const threads = new WatchedThreads(failing);
    let nowMs = 0;
    const sleep = async (_ms: number, signal?: AbortSignal): Promise<void> => {
      nowMs += 1_000;
      // eslint-disable-next-line time/speed -- a turn that the end of the wait cuts short
      await systemClock.sleep(5, signal);
    };
    const service = serve(threads, { clock: { ...systemClock, nowMs: () => nowMs, sleep }, maxThreads: 1 });
    const waiting = grammar('root ::= "a"\n# wait open');
    for (let i = 1; i <= 2; i++) {
      await assert.rejects(service.open(waiting, []), failsWith('unavailable', /threads ended/));
      assert.equal(threads.started.length, 4 * i, 'it is tried again');
    }
  });

  test('are left when the library itself takes too long', async () => {
    const service = serve(new WatchedThreads(), { compileCpuMs: 1_000 });
    await assert.rejects(service.open(grammar(slowGrammar()), []), failsWith('invalid_request', /not compiled/));
    assert.equal(await (await service.open(grammar('root ::= "a"'), [])).accept(97), true);
  });

  test('are replaced when the library refuses a grammar; outputs next to it go on, and it is tried once', async () => {
    const threads = new WatchedThreads();
    const service = serve(threads, { maxThreads: 1 });
    const other = await service.open(grammar(LIST), tokensOf('["'));
    const isRefused = failsWith('invalid_request', /"nothing" is not defined/);
    const all = [0, 1, 2].map(() => assert.rejects(service.open(grammar('root ::= nothing'), []), isRefused));
    await Promise.all(all);
    assert.equal(await other.accept(97), true);
    assert.equal(threads.started.length, 2);
    assert.equal(threads.numRunning, 1);
  });

  test('survive a text that is too large or too deep', async () => {
    const threads = new WatchedThreads();
    const service = serve(threads);
    const large = `root ::= "${'a'.repeat(1 << 20)}"`;
    const deep = `root ::= ${'('.repeat(101)}"a"${')'.repeat(101)}`;
    await assert.rejects(service.open(grammar(large), []), failsWith('invalid_request', /characters/));
    await assert.rejects(service.open(grammar(deep), []), failsWith('invalid_request', /parentheses/));
    await service.open(grammar(`root ::= ${'('.repeat(100)}"a"${')'.repeat(100)}`), []);
    await service.open(grammar(`root ::= "${'('.repeat(200)}" [(${'('.repeat(99)}] # ${'('.repeat(200)}`), []);
    assert.equal(threads.started.length, 1 + 1);
    assert.equal(threads.numRunning, 2);
  });
});

test('a library that is loaded before serves in the calling thread, as the simulation has it', async () => {
  const library = await XGrammar.load(byteTable);
  const threads = {
    spawn: (module: ThreadModule, data: MaskWorkerData) => {
      assert.equal(module, maskModule);
      const worker = new MaskWorker(data, () => Promise.resolve(library));
      return {
        call: async (method: 'load', argument: never) => worker[method](argument),
        close: () => Promise.resolve(),
      };
    },
  } as unknown as Threads;
  const mask = await serve(threads).open(grammar(LIST), []);
  assert.deepEqual(await follow(mask, TEXT), await masksOf(LIST, TEXT));
});

describe('bounds', () => {
  test('so many outputs are open, and closing one makes room', async () => {
    const service = serve(new WatchedThreads(), { maxOpen: 2 });
    const [first] = [await service.open(grammar(LIST), []), await service.open(grammar(LIST), [])];
    await assert.rejects(service.open(grammar(LIST), []), failsWith('overloaded'));
    first.close();
    first.close();
    await assert.rejects(first.accept(91), failsWith('cancelled'));
    const third = await service.open(grammar(LIST), []);
    assert.equal(await third.accept(91), true);
    await assert.rejects(service.open(grammar('root ::= nothing'), []), failsWith('overloaded'));
  });

  test('a failed or cancelled open holds no place', async () => {
    const service = serve(new WatchedThreads(), { maxOpen: 1 });
    for (let i = 0; i < 3; i++) {
      await assert.rejects(service.open(grammar('root ::= nothing'), []), failsWith('invalid_request'));
      const client = new AbortController();
      const opening = service.open(grammar(LIST), [], client.signal);
      client.abort();
      await assert.rejects(opening, failsWith('cancelled'));
    }
    const gone = AbortSignal.abort();
    await assert.rejects(service.open(grammar(LIST), [], gone), failsWith('cancelled'));
    assert.equal(await (await service.open(grammar(LIST), [])).accept(91), true);
  });

  test('a thread keeps 64 grammars, and an output whose grammar was dropped goes on', async () => {
    const threads = new WatchedThreads();
    const service = serve(threads, { maxThreads: 1 });
    const first = await service.open(grammar(LIST), []);
    for (let i = 0; i < 70; i++) (await service.open(grammar(`root ::= "a${i}"`), [])).close();
    const dropped = threads.argumentsOf('open').flatMap((argument) => (argument as { drop: number[] }).drop);
    assert.equal(dropped.length, 71 - 64);
    assert.deepEqual(await follow(first, TEXT), await masksOf(LIST, TEXT));
    // Compiled anew.
    assert.equal(await (await service.open(grammar(LIST), [])).accept(91), true);
  });

  test('the end: nothing runs, and outputs fail', async () => {
    const threads = new WatchedThreads();
    const service = serve(threads);
    const mask = await service.open(grammar(LIST), []);
    const opening = service.open(grammar('root ::= "b"'), []);
    const accepted = mask.accept(91);
    const both = [assert.rejects(opening, failsWith('cancelled')), assert.rejects(accepted, failsWith('cancelled'))];
    await service.close();
    await Promise.all(both);
    await assert.rejects(service.open(grammar(LIST), []), failsWith('cancelled'));
    assert.equal(threads.numRunning, 0);
  });
});

describe('the vocabulary', () => {
  test('is read from a model, once', async () => {
    const threads = new WatchedThreads();
    const path = projectPath('config/models/harbour');
    const service = serve(threads, { vocabulary: { kind: 'model', path, vocabSize: 1_536 } });
    const masks = await Promise.all(
      ['root ::= "a"', 'root ::= "b"'].map((ebnf) => service.open({ ebnf, endTokens: [0] }, [])),
    );
    for (const mask of masks) expect(allowedIn(mask.words).length).toBe(1);
    const kinds = threads.argumentsOf('load').map((argument) => (argument as { kind: string }).kind);
    assert.deepEqual(kinds, ['model', 'table']);
  });

  test('of a model that has none, or whose files cannot be read, is a failure of each output', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'penstock-no-tokenizer-'));
    const service = serve(new WatchedThreads(), { vocabulary: { kind: 'model', path: folder, vocabSize: 100 } });
    await assert.rejects(service.open(grammar(LIST), []), failsWith('internal', /is empty/));
    copyFileSync(projectPath('config/models/harbour/config.json'), join(folder, 'config.json'));
    for (let i = 0; i < 2; i++)
      await assert.rejects(service.open(grammar(LIST), []), failsWith('invalid_request', /no tokenizer/));
    rmSync(folder, { recursive: true });
  });
});
