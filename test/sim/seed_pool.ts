/**
 * Runs seeds in processes of their own, one for each core. A process takes one seed after another, so that its code stays compiled, and
 * no core is idle before the last seed. Results come in the order of seeds, whichever process is first.
 */
import assert from 'node:assert/strict';
import { fork, type ChildProcess } from 'node:child_process';
import { YOUNG_SPACE } from './mutants.ts';
import { runSeed, type SeedResult } from './seed.ts';

/** Seeds for each process that may be ahead of the oldest one that runs. */
const MAX_AHEAD = 64;
/** Marks a process of a pool: it runs the seeds that its parent sends. */
const WORKER = '--worker';

export interface PoolOptions {
  readonly from: number;
  readonly numSeeds: number;
  /** One runs the seeds in this process. */
  readonly numProcesses: number;
  /** Whether seeds that did not fail have a trace too. */
  readonly hasTrace: boolean;
  /** Whether another seed may begin. */
  readonly mayBegin: () => boolean;
  /** A seed has ended, in any order. */
  readonly onEnded: () => void;
}

/** Yields results in the order of seeds. A consumer that stops reading ends the processes. */
export async function* runSeeds({
  from,
  numSeeds,
  numProcesses,
  hasTrace,
  mayBegin,
  onEnded,
}: PoolOptions): AsyncGenerator<SeedResult> {
  const run = numProcesses === 1 ? runSeed : undefined;
  const runners = run
    ? [{ run, close: () => undefined }]
    : Array.from({ length: numProcesses }, () => new SeedRunner(hasTrace));
  /** Seeds that run or have ended and are not yielded; none begins far ahead of the oldest (P1). */
  const running: Promise<SeedResult>[] = [];
  const idle = [...runners];
  let next = from;
  const begin = (): void => {
    while (idle.length > 0 && running.length < MAX_AHEAD * numProcesses && next < from + numSeeds && mayBegin()) {
      const runner = idle.pop();
      assert(runner);
      const result = runner.run(next++).finally(() => {
        idle.push(runner);
        onEnded();
        begin();
      });
      running.push(result);
    }
  };
  try {
    begin();
    for (let oldest = running[0]; oldest; oldest = running[0]) {
      yield await oldest;
      void running.shift();
      begin();
    }
  } finally {
    for (const runner of runners) runner.close();
  }
}

/** One process of a pool, and the next one where it ends by itself. */
class SeedRunner {
  readonly #hasTrace: boolean;
  #child: ChildProcess | undefined;

  constructor(hasTrace: boolean) {
    this.#hasTrace = hasTrace;
  }

  run(seed: number): Promise<SeedResult> {
    const child = (this.#child ??= fork(process.argv[1] ?? '', [WORKER], { execArgv: [YOUNG_SPACE] }));
    return new Promise((resolve) => {
      const onEnd = (code: number | null, signal: string | null): void => {
        child.off('message', onResult);
        this.#child = undefined;
        resolve(endedEarly(seed, `the process ended with ${signal ?? `code ${code}`}`));
      };
      const onResult = (result: unknown): void => {
        child.off('exit', onEnd);
        resolve(result as SeedResult);
      };
      child.once('message', onResult);
      child.once('exit', onEnd);
      child.send({ seed, hasTrace: this.#hasTrace });
    });
  }

  close(): void {
    this.#child?.kill();
  }
}

/** A seed that took its process with it. */
function endedEarly(seed: number, failure: string): SeedResult {
  const none = { numEvents: 0, numRequests: 0, numFaults: 0, traceHash: 0 };
  return { seed, ...none, failures: [failure], trace: [], stats: {} };
}

/** Whether this process belongs to a pool: then it runs what its parent sends until the parent ends. */
export function servesPool(argv: readonly string[]): boolean {
  if (argv[2] !== WORKER) return false;
  process.on('message', ({ seed, hasTrace }: { readonly seed: number; readonly hasTrace: boolean }) => {
    void runSeed(seed).then((result) => {
      const isPlain = result.failures.length === 0 && !hasTrace;
      process.send?.(isPlain ? { ...result, trace: [] } : result);
    });
  });
  return true;
}
