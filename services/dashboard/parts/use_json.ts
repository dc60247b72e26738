/** Bodies of the router's APIs in a component. */
import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { askJson } from '../browser.ts';
import { messageOf } from '../messages.ts';
import { host, store } from '../page.ts';

/** Body of an API as a component sees it. */
export interface Asked<Body> {
  /** The newest body; undefined before the first one. */
  readonly body: Body | undefined;
  /** Why the last question failed. */
  readonly error: string | undefined;
}

/**
 * Asks for the JSON at `path` when the component appears, when the path changes, when the router
 * is connected again, and every `everyMs`
 * milliseconds (0: never again). Asks nothing while the page is hidden or the router does not answer.
 */
export function useJson<Body>(path: string | null, everyMs: number): Asked<Body> {
  const asked = useSignal<Asked<Body>>({ body: undefined, error: undefined });
  const connections = store.connections.value;
  const askedPath = useRef<string | null>(null);
  useEffect(() => {
    if (path !== askedPath.current) asked.value = { body: undefined, error: undefined };
    askedPath.current = path;
    if (path === null) return undefined;
    const aborter = new AbortController();
    let cancel = (): void => undefined;
    const ask = async (): Promise<void> => {
      try {
        if (host.isVisible() && store.liveness.peek() !== 'stale')
          asked.value = { body: await askJson<Body>(path, { signal: aborter.signal }), error: undefined };
      } catch (error) {
        if (!aborter.signal.aborted) asked.value = { ...asked.peek(), error: messageOf(error) };
      }
      if (everyMs > 0 && !aborter.signal.aborted) cancel = host.later(everyMs, () => void ask());
    };
    void ask();
    return () => {
      aborter.abort();
      cancel();
    };
  }, [path, everyMs, connections]);
  return asked.value;
}
