/** Values of a run that hands them over, for a test that reads them one after the other. */
import { AsyncQueue } from '../../shared/base/async_queue.ts';
import { ENOUGH, type Taken } from '../../shared/base/handover.ts';

/**
 * Starts `run` with the first read, and yields the values that it gives. A value is taken when the next one is read; a reader that stops has
 * enough, and waits for the end of the run. @throws what ends the run
 */
export async function* pulled<T extends object>(run: (take: (value: T) => Taken) => Promise<void>): AsyncGenerator<T> {
  const given = new AsyncQueue<{ readonly value: T; readonly taken: (answer: typeof ENOUGH | undefined) => void }>();
  const ended = run((value) => new Promise((taken) => given.push({ value, taken })));
  ended.then(
    () => given.end(),
    (error: unknown) => given.end(error),
  );
  try {
    for await (const { value, taken } of given) {
      let answer: typeof ENOUGH | undefined = ENOUGH;
      try {
        yield value;
        answer = undefined;
      } finally {
        taken(answer);
      }
    }
  } finally {
    await ended.catch(() => undefined);
  }
}

/** A run that hands over the values of a generator, and leaves it when their taker has enough. */
export function pushed<T extends object>(values: AsyncGenerator<T>): (take: (value: T) => Taken) => Promise<void> {
  return async (take) => {
    for await (const value of values) if ((await take(value)) === ENOUGH) return;
  };
}
