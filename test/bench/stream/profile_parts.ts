/**
 * Where the time of the router's control thread goes, by part and by module, from a profile that Node recorded from its start on: then
 * functions that the compiler has put into others are known, too. The time of a function without the functions that it calls belongs to the
 * part of its module. Modules that several parts use (streams, sockets, what Node has built in) belong to the part that called them.
 */
import { readdirSync, readFileSync } from 'node:fs';
import type { Profiler } from 'node:inspector';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Parts of the router's work on a stream; `loop` is the event loop itself, outside of JavaScript. */
export const PARTS = ['receive', 'walk', 'text', 'write', 'garbage', 'loop', 'rest'] as const;
type Part = (typeof PARTS)[number];

/** Milliseconds on the clock in which the thread was not idle. */
export interface ProfileTimes {
  readonly busyMs: number;
  readonly parts: Readonly<Record<Part, number>>;
  /** Own time of each module, the longest first. */
  readonly modules: readonly { readonly name: string; readonly part: Part; readonly ms: number }[];
}

/** The first pattern that fits a module decides. */
const PART_OF: readonly (readonly [pattern: RegExp, part: Part])[] = [
  [/^(?:node_modules\/(?:@grpc|@?protobufjs)\/|node:internal\/http2\/|shared\/(?:net|protocol)\/)/, 'receive'],
  [/^(?:shared\/text\/|node_modules\/@huggingface\/)/, 'text'],
  [/^(?:services\/router\/(?:http\/|api\/event_stream)|node:_http|node:internal\/http)/, 'write'],
  [/^(?:services|shared)\//, 'walk'],
];
/** Functions of V8 and Node without a module; microtasks are the steps of promises and generators. */
const PART_OF_FUNCTION: ReadonlyMap<string, Part> = new Map([
  ['(garbage collector)', 'garbage'],
  ['(program)', 'loop'],
  ['(root)', 'loop'],
  ['runMicrotasks', 'walk'],
  ['onStreamRead', 'receive'],
]);
const IDLE = '(idle)';
/** Other callbacks of streams and sockets that nobody called end a write. */
const NETWORK = /^node:(?:net$|internal\/stream)/;

/** Reads the profile of the main thread, which `--cpu-prof` wrote into a folder. */
export function readProfile(folder: string): Profiler.Profile {
  // CPU.DATE.TIME.PID.THREAD.NUMBER.cpuprofile
  const name = readdirSync(folder).find((file) => /\.0\.\d+\.cpuprofile$/.test(file));
  if (name === undefined) throw new Error('the router left no profile');
  return JSON.parse(readFileSync(join(folder, name), 'utf8')) as Profiler.Profile;
}

/** Divides the time of a profile between two times of the monotonic clock, in microseconds. */
export function divideProfile(profile: Profiler.Profile, startUs: number, endUs: number): ProfileTimes {
  const owners = ownersOf(profile);
  const parts: Record<Part, number> = { receive: 0, walk: 0, text: 0, write: 0, garbage: 0, loop: 0, rest: 0 };
  const modules = new Map<string, { name: string; part: Part; ms: number }>();
  let busyMs = 0;
  let nowUs = profile.startTime;
  const { samples = [], timeDeltas = [] } = profile;
  for (const [i, sample] of samples.entries()) {
    const deltaUs = timeDeltas[i] ?? 0;
    nowUs += deltaUs;
    const owner = owners.get(sample);
    if (!owner || nowUs < startUs || nowUs > endUs) continue;
    const ms = deltaUs / 1_000;
    busyMs += ms;
    parts[owner.part] += ms;
    const key = `${owner.module} ${owner.part}`;
    const entry = modules.get(key) ?? { name: owner.module, part: owner.part, ms: 0 };
    entry.ms += ms;
    modules.set(key, entry);
  }
  return { busyMs, parts, modules: [...modules.values()].sort((a, b) => b.ms - a.ms) };
}

/** Module and part to which the own time of a function belongs. */
interface Owner {
  readonly module: string;
  readonly part: Part;
}

/** Returns the owner of each node of a profile; nodes without one are idle. */
function ownersOf({ nodes }: Profiler.Profile): ReadonlyMap<number, Owner> {
  const owners = new Map<number, Owner>();
  const callers = new Map(nodes.flatMap(({ id, children = [] }) => children.map((child) => [child, id] as const)));
  // A profile lists functions after those that call them.
  for (const { id, callFrame } of nodes) {
    const { functionName: name, url, lineNumber } = callFrame;
    if (name === IDLE) continue;
    const caller = owners.get(callers.get(id) ?? NaN);
    const module = moduleAt(url, lineNumber + 1) || (caller && caller.module !== '(root)' ? caller.module : name);
    owners.set(id, { module, part: partOf(name, module, caller) });
  }
  return owners;
}

function partOf(name: string, module: string, caller: Owner | undefined): Part {
  const own = PART_OF_FUNCTION.get(name) ?? PART_OF.find(([pattern]) => pattern.test(module))?.[1];
  if (own) return own;
  if (caller && caller.part !== 'loop' && caller.part !== 'rest') return caller.part;
  return NETWORK.test(module) ? 'write' : 'rest';
}

/** Modules in a file of the build, by the line at which each begins. */
const files = new Map<string, readonly { readonly line: number; readonly module: string }[]>();

/** Returns the module that has a line of a file; '' for what is built into V8. A file of the build has several, and names each. */
function moduleAt(url: string, line: number): string {
  if (!url.startsWith('file:')) return url;
  const path = fileURLToPath(url);
  const installed = path.lastIndexOf('node_modules/');
  if (installed >= 0) return path.slice(installed);
  const modules = files.get(path) ?? modulesIn(path);
  files.set(path, modules);
  return modules.findLast((one) => one.line <= line)?.module ?? path.slice(path.lastIndexOf('dist/'));
}

function modulesIn(path: string): { readonly line: number; readonly module: string }[] {
  const lines = readFileSync(path, 'utf8').split('\n');
  return lines.flatMap((text, i) => {
    const module = /^\s*\/\/ ((?:node_modules|shared|services|kernels)\/\S+)$/.exec(text)?.[1];
    return module === undefined ? [] : [{ line: i + 1, module }];
  });
}
