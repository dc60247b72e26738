/**
 * How tests wait: for a state (`until`), or for nothing to happen (`staysSo`). Neither result depends on how fast the machine is: the one
 * limit of time, PATIENCE_MS, ends what hangs.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';

const POLL_MS = 10;
/** Looks of `staysSo`. A slow machine looks less often in the same time, and so finds less; it does not fail. */
const NUM_LOOKS = 30;

/** Milliseconds after which a wait or a call of a test counts as hanging; config/vitest.config.js gives a test twice as many. */
export const PATIENCE_MS = Number(process.env['TEST_PATIENCE_MS'] || 600_000);

/** Arguments with which an instance that a test stops, or that gets no core for long, is not taken for lost. */
export const NEVER_SILENT = ['--silence-ms', '600000'] as const;

/** Options of a call that nobody cancels. */
export const patientCall = { signal: new AbortController().signal, timeoutMs: PATIENCE_MS } as const;

type Probe<T> = () => Promise<T | undefined | false> | T | undefined | false;

/** Polls until it holds, and returns what it holds. @throws AssertionError that says what was waited for, after PATIENCE_MS */
export async function until<T>(what: string, probe: Probe<T>): Promise<T> {
  const endMs = performance.now() + PATIENCE_MS;
  for (;;) {
    const value = await probe();
    if (value !== undefined && value !== false) return value;
    assert(performance.now() < endMs, `not within ${PATIENCE_MS} ms: ${what}`);
    await sleep(POLL_MS);
  }
}

/** Looks for a while whether something that must not happen does. @throws AssertionError as soon as it no longer holds */
export async function staysSo(what: string, probe: () => Promise<boolean> | boolean): Promise<void> {
  for (let look = 0; look < NUM_LOOKS; look++) {
    assert(await probe(), `no longer so: ${what}`);
    await sleep(POLL_MS);
  }
}

/** Resolves when a call is cancelled. */
export async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) await once(signal, 'abort');
}

/** Lets timers and sockets of this process have a turn. */
export async function turn(): Promise<void> {
  await sleep(1);
}
