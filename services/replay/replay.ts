/**
 * The runs of a replay: every policy's goodput by search, seed by seed, then one run of each other policy at the goodput of the first one.
 * Runs go to worker threads, as many as there are cores for.
 */
import type { Thread, Threads } from '../../shared/base/threads.ts';
import { policyNames, resolvedName } from '../../shared/placement/policy_registry.ts';
import { findGoodput, type RateTrial } from './goodput.ts';
import { TARGET_SHARE } from './replay_options.ts';
import type { PolicyFigures } from './report.ts';
import type { RunJob, RunAnswer, RunMethods, RunWorkerData, start } from './run_jobs.ts';
import type { ReplayInput, ReplayRunner, RunReplay } from './runner.ts';

/** Part of a rate to which goodput is found. */
const TOLERANCE = 0.01;
/** Steps up of a search: without any knowledge, and around the goodput of another seed. */
const FIRST_STEP = 3;
const NEXT_STEP = 0.03;
/** Runs that the search of the first seed takes about, and that of a further one, for the progress. */
const RUNS_PER_SEARCH = 6;
const RUNS_PER_SEED = 3;

const workerModule = { url: new URL('./run_worker.js', import.meta.url) };

/** Names that `--policy` allows, the default one first. */
const replayPolicies: readonly [string, ...string[]] = [
  resolvedName('auto'),
  ...policyNames.filter((name) => name !== 'auto' && name !== resolvedName('auto')),
];

/** Returns the runner over threads, `numThreads` of them. */
export function createRunner(threads: Threads, numThreads: number): ReplayRunner {
  const run: RunReplay = async (input, onProgress) => {
    const pool = new RunPool(threads, numThreads, input);
    try {
      return await replayAll(input, pool, onProgress);
    } finally {
      await pool.close();
    }
  };
  return { policies: replayPolicies, run };
}

/** Threads that take runs, one at a time each. */
class RunPool {
  readonly #threads: Thread<RunMethods>[];
  readonly #idle: Thread<RunMethods>[];
  /** Runs that wait for a thread; bounded by the policies times the seeds. */
  readonly #waiting: ((thread: Thread<RunMethods>) => void)[] = [];
  #failed: (error: Error) => void = () => undefined;
  readonly #death: Promise<never>;

  constructor(threads: Threads, numThreads: number, { options, trace, hardware }: ReplayInput) {
    this.#death = new Promise((_, reject) => {
      this.#failed = reject;
    });
    this.#death.catch(() => undefined);
    const data: RunWorkerData = {
      columns: trace.columns,
      hardware,
      cluster: options.cluster,
      targets: options.targets,

      slow: options.slow,
      strictRoles: options.strictRoles,
      queueOrder: options.queueOrder,
      fairShares: options.fairShares,
      weights: options.weights,
      isFull: options.engine === 'full',
      targetShare: TARGET_SHARE,
    };
    const listener = {
      onDeath: (error: Error) => {
        this.#failed(error);
      },
    };
    this.#threads = Array.from({ length: numThreads }, () => threads.spawn<typeof start>(workerModule, data, listener));
    this.#idle = [...this.#threads];
  }

  async run(job: RunJob): Promise<RunAnswer> {
    const thread =
      this.#idle.pop() ?? (await new Promise<Thread<RunMethods>>((resolve) => this.#waiting.push(resolve)));
    try {
      return await Promise.race([thread.call('run', job), this.#death]);
    } finally {
      const next = this.#waiting.shift();
      if (next) next(thread);
      else this.#idle.push(thread);
    }
  }

  async close(): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.close()));
  }
}

async function replayAll(
  { options, trace }: ReplayInput,
  pool: RunPool,
  onProgress: Parameters<RunReplay>[1],
): Promise<PolicyFigures[]> {
  const { policies, seeds, ratePerSecond } = options;
  const perSearch = RUNS_PER_SEARCH + (seeds.length - 1) * RUNS_PER_SEED + 1;
  const numRuns = policies.length * (ratePerSecond === undefined ? perSearch : seeds.length);
  let numDone = 0;
  const run = async (job: RunJob): Promise<RunAnswer> => {
    const text = `${job.policy}, ${job.ratePerSecond.toFixed(2)} requests/s, seed ${job.seed}`;
    onProgress({ text, share: Math.min(0.99, numDone / numRuns) });
    const answer = await pool.run(job);
    numDone++;
    return answer;
  };
  const searches = ratePerSecond === undefined ? await searchAll(options, trace.requestsPerSecond, run) : [];
  const [first] = searches;
  const best = first?.best;
  const shownRate = ratePerSecond ?? best?.ratePerSecond ?? trace.requestsPerSecond / 100;
  const shownSeeds = ratePerSecond === undefined ? [best?.seed ?? seeds[0] ?? 1] : seeds;
  return Promise.all(
    policies.map(async (policy, i) => {
      const search = searches[i];
      // Equal runs give equal figures: that of the first policy was made when its goodput was looked for.
      const runs =
        best && search === first
          ? [best]
          : await Promise.all(
              shownSeeds.map((seed) => run({ policy, ratePerSecond: shownRate, seed, mayBeCut: false })),
            );
      const shown = middle(runs, ({ attainment }) => attainment);
      if (!shown?.figures) throw new Error('a run that was asked for figures has none');
      return {
        name: policy,
        isDefault: policy === replayPolicies[0],
        atRate: shown.figures,
        goodputPerSecond: search && (search.best?.ratePerSecond ?? 0),
        goodputOfSeeds: search?.goodputOfSeeds ?? [],
        attainmentByRate: search?.attempts ?? [],
      };
    }),
  );
}

/** A run of a search, with its figures where it was not cut. */
interface SeedTrial extends RateTrial, RunAnswer {
  readonly seed: number;
  readonly attainment: number;
}

/** Goodput of one policy, and every rate that was tried. */
interface Search {
  /** Run at the goodput of the median seed; undefined where no rate meets the targets under it. */
  readonly best: SeedTrial | undefined;
  readonly goodputOfSeeds: readonly number[];
  readonly attempts: PolicyFigures['attainmentByRate'];
}

async function searchAll(
  { policies, seeds }: ReplayInput['options'],
  guess: number,
  run: (job: RunJob) => Promise<RunAnswer>,
): Promise<Search[]> {
  return Promise.all(
    policies.map(async (policy) => {
      const attempts: Search['attempts'][number][] = [];
      const search = (seed: number, from: number, step: number): Promise<SeedTrial | undefined> =>
        findGoodput({
          attempt: async (ratePerSecond) => {
            const answer = await run({ policy, ratePerSecond, seed, mayBeCut: true });
            const { attainment, attainmentOfLongestTenth } = answer;
            attempts.push({ ratePerSecond, attainment, attainmentOfLongestTenth });
            return { ...answer, ratePerSecond, seed };
          },
          share: TARGET_SHARE,
          guess: from,
          tolerance: TOLERANCE,
          step,
        });
      const [firstSeed = 1, ...others] = seeds;
      const first = await search(firstSeed, guess, FIRST_STEP);
      const next = first ? await Promise.all(others.map((seed) => search(seed, first.ratePerSecond, NEXT_STEP))) : [];
      const found = [first, ...next];
      attempts.sort((a, b) => a.ratePerSecond - b.ratePerSecond);
      const rateOf = (trial: SeedTrial | undefined): number => trial?.ratePerSecond ?? 0;
      return { best: middle(found, rateOf), goodputOfSeeds: found.map(rateOf), attempts };
    }),
  );
}

/** Returns the item whose value is the median, the lower one of an even number. */
function middle<T>(items: readonly T[], valueOf: (item: T) => number): T | undefined {
  return [...items].sort((a, b) => valueOf(a) - valueOf(b))[Math.floor((items.length - 1) / 2)];
}
