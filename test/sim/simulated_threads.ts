/** Threads that are this thread: a message takes a moment of simulated time each way, calls are answered one at a time. */
import type { Clock } from '../../shared/base/clock.ts';
import type { Thread, ThreadModule, Threads } from '../../shared/base/threads.ts';
import type { SimProcess, Simulation } from './simulation.ts';

const MESSAGE_MS = 0.01;

type Emit = (event: never) => void;
/** Stands for the `start` of a production thread module: creates the object whose methods the thread serves. */
export type StartInline = (data: never, emit: Emit, clock: Clock) => object;

export function inlineThreads(
  simulation: Simulation,
  process: SimProcess,
  moduleOf: (module: ThreadModule) => StartInline,
): Threads {
  const clock = simulation.clockOf(process);
  return {
    spawn: (module, data, listener) => {
      let isClosed = false;
      const emit = (event: never): void => {
        simulation.at(MESSAGE_MS, process, 'thread event', () => {
          if (!isClosed) listener.onEvent?.(event);
        });
      };
      const methods = moduleOf(module)(data as never, emit, clock);
      const run = (method: string, argument: unknown): unknown =>
        Reflect.apply(Reflect.get(methods, method) as (argument: unknown) => unknown, methods, [argument]);
      let last: Promise<unknown> = Promise.resolve();
      const thread = {
        call: async (method: string, argument: unknown): Promise<unknown> => {
          const answer = last.then(async () => {
            await clock.sleep(MESSAGE_MS);
            return await run(method, argument);
          });
          last = answer.catch(() => undefined);
          const value = await answer;
          await clock.sleep(MESSAGE_MS);
          return value;
        },
        notify: (method: string, argument: unknown): void => {
          simulation.at(MESSAGE_MS, process, `thread ${method}`, () => {
            if (!isClosed) run(method, argument);
          });
        },
        close: (): Promise<void> => {
          isClosed = true;
          return Promise.resolve();
        },
      };
      return thread as unknown as Thread<never>;
    },
  };
}
