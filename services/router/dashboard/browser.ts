/** Clock, timers, visibility and network of the browser: the only file of the page that touches them, so that tests can bring others. */
import type { Host } from './host.ts';

/** Host that is this browser. */
export const browserHost: Host = {
  now: () => Date.now(),
  later: (ms, run) => {
    const timer = setTimeout(run, ms);
    return () => clearTimeout(timer);
  },
  isVisible: () => document.visibilityState === 'visible',
  onVisibility: (changed) => document.addEventListener('visibilitychange', changed),
  openEvents: (path, receiver) => {
    const source = new EventSource(path);
    source.addEventListener('tick', (event: MessageEvent<string>) => receiver.onTick(event.data));
    source.addEventListener('error', () => {
      // The page waits longer after each failure and says so; the browser's own retry does neither.
      source.close();
      receiver.onEnd();
    });
    return { close: () => source.close() };
  },
};

/**
 * Asks the router for JSON.
 *
 * @throws Error with the router's message when the answer is no success, or when no router answers.
 */
export async function askJson<Body>(path: string, options: RequestInit = {}): Promise<Body> {
  const answer = await fetch(path, options);
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text) as Body;
  throw new Error(messageIn(text) ?? `${path}: HTTP ${answer.status}`);
}

function messageIn(text: string): string | undefined {
  try {
    const body = JSON.parse(text) as { error?: { message?: string } } | null;
    return body?.error?.message;
  } catch {
    return undefined;
  }
}
