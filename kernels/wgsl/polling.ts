/**
 * Decides when Dawn polls for finished work.
 *
 * The `webgpu` package polls from `setImmediate`, with some drivers for as long as a device lives, which keeps a core busy with
 * nothing to do (node-webgpu issue 17: 1.1 cores on Linux with NVIDIA, a quarter on macOS; none under llvmpipe with 0.6.2). This
 * module replaces `globalThis.setImmediate` in this thread and recognises Dawn's own callbacks (nameless native functions without
 * arguments): while work is in flight they run at once, or after a nap where the "GPU" is this machine's own cores; otherwise 50
 * times a second, by a timer that keeps no process alive.
 */

/** Often enough to notice a lost device, rare enough to cost nothing. */
const IDLE_MS = 20;
/** A software adapter computes on the cores that a spinning poll would take from it. */
const NAP_MS = 1;

type Poll = () => void;

const systemSetImmediate = globalThis.setImmediate;
let numInFlight = 0;
let isNapping = false;
const idle = new Map<Poll, NodeJS.Timeout>();

/**
 * Whether a callback is Dawn's poll. A promise's resolve function is nameless and native too, but takes an argument and is no
 * constructor.
 */
function isDawns(callback: (...args: never[]) => void): callback is Poll {
  return (
    callback.name === '' &&
    callback.length === 0 &&
    Object.hasOwn(callback, 'prototype') &&
    Function.prototype.toString.call(callback).includes('[native code]')
  );
}

function schedule(poll: Poll): void {
  if (numInFlight > 0 && !isNapping) {
    systemSetImmediate(poll);
    return;
  }
  const timer = setTimeout(
    () => {
      idle.delete(poll);
      poll();
    },
    numInFlight > 0 ? NAP_MS : IDLE_MS,
  );
  if (numInFlight === 0) timer.unref();
  idle.set(poll, timer);
}

function patched(callback: (...args: unknown[]) => void, ...args: unknown[]): NodeJS.Immediate | undefined {
  if (!isDawns(callback)) return systemSetImmediate(callback, ...args);
  schedule(callback);
  return undefined;
}

/** To be called before the `webgpu` package is loaded; a second call does nothing. */
export function installPolling(): void {
  if (globalThis.setImmediate !== systemSetImmediate) return;
  const replacement: unknown = Object.assign(patched, systemSetImmediate);
  globalThis.setImmediate = replacement as typeof setImmediate;
}

/** Software adapters nap between polls. */
export function napBetweenPolls(): void {
  isNapping = true;
}

/** Polls until the promise settles: every promise that Dawn resolves goes through here. */
export async function polled<T>(promise: Promise<T>): Promise<T> {
  numInFlight++;
  if (numInFlight === 1) {
    for (const [poll, timer] of [...idle]) {
      clearTimeout(timer);
      idle.delete(poll);
      schedule(poll);
    }
  }
  try {
    return await promise;
  } finally {
    numInFlight--;
  }
}
