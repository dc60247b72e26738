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
    let [isOpened, isClosed] = [false, false];
    source.addEventListener('open', () => (isOpened = true));
    source.addEventListener('tick', (event: MessageEvent<string>) => receiver.onTick(event.data));
    source.addEventListener('error', () => {
      // The page waits longer after each failure and says so; the browser's own retry does neither.
      source.close();
      if (isOpened) receiver.onEnd();
      else
        void refusalOf(path).then((refusal) => {
          if (!isClosed) receiver.onEnd(refusal);
        });
    });
    const close = (): void => {
      isClosed = true;
      source.close();
    };
    return { close };
  },
};

/** Milliseconds that a router has to say why it refuses a connection. */
const REFUSAL_MS = 2_000;

/** Returns why the router refuses what is at `path`, which an EventSource does not tell; undefined when it does not refuse, or does not answer. */
async function refusalOf(path: string): Promise<string | undefined> {
  const asking = new AbortController();
  const signal = AbortSignal.any([asking.signal, AbortSignal.timeout(REFUSAL_MS)]);
  try {
    const answer = await fetch(path, { signal });
    leaveForLogin(answer);
    return answer.ok ? undefined : (messageIn(await answer.text()) ?? `HTTP ${answer.status}`);
  } catch {
    return undefined;
  } finally {
    asking.abort();
  }
}

/** Leads to the log-in when an answer says that this browser has no log-in any more. */
function leaveForLogin({ status }: Response): void {
  if (status === 401) location.assign('dashboard/login');
}

/** Ends the log-in of this browser. */
export async function logOut(): Promise<void> {
  await fetch('dashboard/logout', { method: 'POST', redirect: 'manual' });
  location.assign('dashboard/login');
}

/**
 * Asks the router for JSON.
 *
 * @throws Error with the router's message when the answer is no success, or when no router answers.
 */
export async function askJson<Body>(path: string, options: RequestInit = {}): Promise<Body> {
  const answer = await fetch(path, options);
  leaveForLogin(answer);
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

/** Receivers of an answer that arrives in parts. */
export interface TextReceiver {
  /** Called once, before the first text. */
  onHeaders(headers: Headers): void;
  /** Called with each part of the body, which may end within a line. */
  onText(text: string): void;
}

/**
 * Asks the router for an answer that arrives in parts; resolves after the last one.
 *
 * @throws Error with the router's message when the answer is no success, or when no router answers.
 */
export async function askStream(path: string, options: RequestInit, receiver: TextReceiver): Promise<void> {
  const answer = await fetch(path, options);
  leaveForLogin(answer);
  if (!answer.ok) throw new Error(messageIn(await answer.text()) ?? `${path}: HTTP ${answer.status}`);
  receiver.onHeaders(answer.headers);
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader?.read(); part?.done === false; part = await reader?.read()) receiver.onText(part.value);
}
