/** Bodies of the router's APIs that stay while the next ones are fetched, so that nothing on the page jumps. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { askJson } from '../browser.ts';
import { messageOf } from '../messages.ts';
import { host, store } from '../page.ts';

/** Body of an API as a component sees it. */
export interface SteadyBody<Body> {
  /** The newest body, also one of an earlier path; undefined before the first one. */
  readonly body: Body | undefined;
  /** When the body was read, on the router's clock; undefined where that is not known. */
  readonly at: number | undefined;
  /** Why the last question failed; undefined when it did not. */
  readonly error: string | undefined;
}

/**
 * Asks for the JSON at `path` when the component appears, when the path changes, when the router is connected again, and
 * `againMs(body)` milliseconds after each answer (0: never). Asks nothing while the page is hidden or the router does not answer.
 */
export function useSteadyJson<Body>(path: string, againMs: (body: Body | undefined) => number): SteadyBody<Body> {
  const asked = useSignal<SteadyBody<Body>>({ body: undefined, at: undefined, error: undefined });
  const connections = store.connections.value;
  useEffect(() => {
    const aborter = new AbortController();
    let cancel = (): void => undefined;
    const ask = async (): Promise<void> => {
      try {
        if (host.isVisible() && store.liveness.peek() !== 'stale') {
          const body = await askJson<Body>(path, { signal: aborter.signal });
          asked.value = { body, at: store.asOf.peek() ?? undefined, error: undefined };
        }
      } catch (error) {
        if (!aborter.signal.aborted) asked.value = { ...asked.peek(), error: messageOf(error) };
      }
      const waitMs = againMs(asked.peek().body);
      if (waitMs > 0 && !aborter.signal.aborted) cancel = host.later(waitMs, () => void ask());
    };
    void ask();
    return () => {
      aborter.abort();
      cancel();
    };
  }, [path, connections]);
  return asked.value;
}
