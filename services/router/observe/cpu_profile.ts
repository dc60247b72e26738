/**
 * CPU profiles of this thread, as a Chrome trace: one event for each function while it is on the stack, as chrome://tracing, Perfetto
 * and the browsers' tools read it.
 *
 * Bounds (P1): one profile at a time, of MAX_SAMPLES samples whatever its length.
 */
import { Session, type Profiler } from 'node:inspector';
import type { Clock } from '../../../shared/base/clock.ts';

const MAX_SAMPLES = 10_000;
const MIN_INTERVAL_US = 1_000;
const US_PER_S = 1_000_000;
/** Frames that are no work of a function. */
const NOT_WORK = new Set(['(root)', '(idle)', '(program)']);
/** Frames of a stack that are shown; deeper ones are left out. */
const MAX_DEPTH = 256;

/** Event of a Chrome trace: a function from `ts` on for `dur`, in microseconds; or the name of a process or thread. */
interface TraceEvent {
  readonly name: string;
  readonly ph: 'X' | 'M';
  readonly pid: number;
  readonly tid: number;
  readonly ts: number;
  readonly dur?: number;
  readonly cat?: string;
  readonly args: Readonly<Record<string, string | number>>;
}

/** A Chrome trace, for JSON. */
export interface ChromeTrace {
  readonly traceEvents: readonly TraceEvent[];
  readonly displayTimeUnit: 'ms';
}

/** The profiler of this thread. */
export class CpuProfiler {
  readonly #clock: Clock;
  #isRunning = false;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Whether a profile is being recorded. */
  get isRunning(): boolean {
    return this.#isRunning;
  }

  /**
   * Records a profile for `seconds`, or until `signal` aborts. The caller checks {@link isRunning} before. @throws Error when the inspector
   * refuses, for instance because a debugger profiles this process.
   */
  async record(seconds: number, signal: AbortSignal): Promise<Profiler.Profile> {
    this.#isRunning = true;
    const session = new Session();
    try {
      session.connect();
      const interval = Math.max(MIN_INTERVAL_US, Math.ceil((seconds * US_PER_S) / MAX_SAMPLES));
      await post(session, 'Profiler.enable');
      await post(session, 'Profiler.setSamplingInterval', { interval });
      await post(session, 'Profiler.start');
      await this.#clock.sleep(1_000 * seconds, signal);
      const { profile } = await post(session, 'Profiler.stop');
      return profile;
    } finally {
      session.disconnect();
      this.#isRunning = false;
    }
  }
}

type Method = 'Profiler.enable' | 'Profiler.setSamplingInterval' | 'Profiler.start' | 'Profiler.stop';

function post(session: Session, method: Method, parameters: object = {}): Promise<Profiler.StopReturnType> {
  return new Promise((resolve, reject) => {
    session.post(method, parameters, (error: Error | null, result?: object) => {
      if (error) reject(new Error(`the profiler refuses ${method}: ${error.message}`));
      else resolve((result ?? {}) as Profiler.StopReturnType);
    });
  });
}

/** Returns a profile as a Chrome trace: a function that is on the stack of consecutive samples is one event. */
export function chromeTrace(
  profile: Profiler.Profile,
  { pid, name }: { readonly pid: number; readonly name: string },
): ChromeTrace {
  const { samples = [], timeDeltas = [], startTime } = profile;
  const stacks = stacksOf(profile);
  const frames = new Map(profile.nodes.map(({ id, callFrame }) => [id, callFrame]));
  const label = { ph: 'M', pid, tid: 1, ts: 0 } as const;
  const traceEvents: TraceEvent[] = [
    { ...label, name: 'process_name', args: { name } },
    { ...label, name: 'thread_name', args: { name: 'main thread' } },
  ];
  const open: { readonly id: number; readonly startUs: number }[] = [];
  const closeTo = (depth: number, nowUs: number): void => {
    for (const last of open.splice(depth).reverse()) {
      const frame = frames.get(last.id);
      if (!frame) continue;
      const { functionName, url, lineNumber, columnNumber } = frame;
      const place = { file: shortUrl(url), line: lineNumber + 1, column: columnNumber + 1 };
      const span = { ts: last.startUs - startTime, dur: nowUs - last.startUs };
      traceEvents.push({ name: functionName || '(anonymous)', ph: 'X', cat: 'cpu', pid, tid: 1, ...span, args: place });
    }
  };
  let nowUs = startTime;
  for (const [i, sample] of samples.entries()) {
    nowUs += timeDeltas[i] ?? 0;
    const stack = stacks.get(sample) ?? [];
    let same = 0;
    while (same < stack.length && open[same]?.id === stack[same]) same++;
    closeTo(same, nowUs);
    for (const id of stack.slice(same)) open.push({ id, startUs: nowUs });
  }
  closeTo(0, Math.max(nowUs, profile.endTime));
  return { traceEvents, displayTimeUnit: 'ms' };
}

/** Returns the stack of each node, from the outermost function to the node itself. */
function stacksOf({ nodes }: Profiler.Profile): Map<number, readonly number[]> {
  const parents = new Map(nodes.flatMap(({ id, children = [] }) => children.map((child) => [child, id] as const)));
  const work = new Set(nodes.filter(({ callFrame }) => !NOT_WORK.has(callFrame.functionName)).map(({ id }) => id));
  const stacks = new Map<number, readonly number[]>();
  for (const { id } of nodes) {
    const stack: number[] = [];
    for (let at: number | undefined = id; at !== undefined; at = parents.get(at)) if (work.has(at)) stack.push(at);
    stacks.set(id, stack.reverse().slice(0, MAX_DEPTH));
  }
  return stacks;
}

/** Returns the path of a file within the package: where it is installed is not shown. */
function shortUrl(url: string): string {
  return url.replace(/^file:.*\/(?=(dist|node_modules)\/)/, '').replace(/^file:.*\//, '');
}
