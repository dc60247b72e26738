/** The dashboard in Chromium as a benchmark sees it: its longest task, elements, memory and traffic. */
import type { Browser, CDPSession, Page } from 'playwright-core';
import { errorsOf, launchChromium, openPage } from '../support/chromium.ts';

/** Measurements of a page over a span. */
export interface Watched {
  /** The longest task of the page's main thread by time, and the longest by CPU time: the machine is shared. */
  readonly longest: { readonly ms: number; readonly cpuMs: number };
  readonly elements: number;
  /** Bytes of the heap after a collection. */
  readonly heapBytes: number;
  /** Bytes that came over the network, of the stream and of all else. */
  readonly streamBytes: number;
  readonly askedBytes: number;
  readonly errors: readonly string[];
}

interface TraceEvent {
  readonly name: string;
  readonly ph: string;
  readonly pid: number;
  readonly tid: number;
  /** Microseconds: of time, and of CPU time. */
  readonly dur?: number;
  readonly tdur?: number;
  readonly args: { readonly name?: string };
}

/** A page that is watched. */
export class PageWatch {
  readonly #browser: Browser;
  readonly #page: Page;
  readonly #session: CDPSession;
  readonly #errors: readonly string[];
  #received = { streamBytes: 0, askedBytes: 0 };

  private constructor(browser: Browser, page: Page, session: CDPSession) {
    this.#browser = browser;
    this.#page = page;
    this.#session = session;
    this.#errors = errorsOf(page);
    const streams = new Set<string>();
    session.on('Network.requestWillBeSent', ({ requestId, request }) => {
      if (new URL(request.url).pathname.endsWith('/api/stream')) streams.add(requestId);
    });
    session.on('Network.dataReceived', ({ requestId, dataLength, encodedDataLength }) => {
      const kind = streams.has(requestId) ? 'streamBytes' : 'askedBytes';
      this.#received[kind] += Math.max(dataLength, encodedDataLength);
    });
  }

  static async open(url: string): Promise<PageWatch> {
    const browser = await launchChromium();
    const page = await openPage(browser);
    const session = await page.context().newCDPSession(page);
    const watch = new PageWatch(browser, page, session);
    for (const domain of ['Performance.enable', 'Network.enable'] as const) await session.send(domain);
    await page.goto(url);
    await page.locator('.liveness.live').waitFor();
    return watch;
  }

  /** Shows a view for a span; its opening counts. */
  async watch(hash: string, spanMs: number): Promise<Watched> {
    return this.#traced(async () => {
      await this.#page.evaluate(`location.hash = '${hash}'`);
      await this.#page.waitForTimeout(spanMs);
    });
  }

  /** Hides the page for a span, and shows it again. */
  async watchHidden(spanMs: number): Promise<Watched> {
    const show = (state: string): Promise<unknown> =>
      this.#page
        .evaluate(`Object.defineProperty(document, 'visibilityState', { value: '${state}', configurable: true });
        document.dispatchEvent(new Event('visibilitychange'))`);
    await show('hidden');
    const watched = await this.#traced(() => this.#page.waitForTimeout(spanMs));
    await show('visible');
    return watched;
  }

  async #traced(run: () => Promise<void>): Promise<Watched> {
    this.#received = { streamBytes: 0, askedBytes: 0 };
    const numErrors = this.#errors.length;
    await this.#browser.startTracing(this.#page, { categories: ['toplevel', 'devtools.timeline', '__metadata'] });
    await run();
    const trace = JSON.parse((await this.#browser.stopTracing()).toString()) as { traceEvents: TraceEvent[] };
    const received = this.#received;
    await this.#session.send('HeapProfiler.collectGarbage');
    const { metrics } = await this.#session.send('Performance.getMetrics');
    return {
      longest: longestTask(trace.traceEvents),
      elements: await this.#page.locator('*').count(),
      heapBytes: metrics.find(({ name }) => name === 'JSHeapUsedSize')?.value ?? NaN,
      ...received,
      errors: this.#errors.slice(numErrors),
    };
  }

  async close(): Promise<void> {
    await this.#browser.close();
  }
}

/** Returns the longest task of the main threads of pages. */
function longestTask(events: readonly TraceEvent[]): Watched['longest'] {
  const isMain = new Set(
    events
      .filter(({ name, args }) => name === 'thread_name' && args.name === 'CrRendererMain')
      .map(({ pid, tid }) => `${pid} ${tid}`),
  );
  let longest = { ms: 0, cpuMs: 0 };
  for (const { name, ph, pid, tid, dur = 0, tdur = 0 } of events) {
    if (ph !== 'X' || !name.endsWith('RunTask') || !isMain.has(`${pid} ${tid}`)) continue;
    longest = { ms: Math.max(longest.ms, dur / 1_000), cpuMs: Math.max(longest.cpuMs, tdur / 1_000) };
  }
  return longest;
}
