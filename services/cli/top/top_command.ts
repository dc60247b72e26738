/** `penstock top`: a view of a running cluster that is drawn anew each second in a terminal, or printed once as a table. */
import { systemClock } from '../../../shared/base/clock.ts';
import { optionsHelp, type CommandLine } from '../../../shared/base/options.ts';
import { connectionTroubleOf, keyHeaders, refusalOf, troubleText, type Trouble } from '../router_api.ts';
import { sampleOf, type PoolSample } from './pool_sample.ts';
import { isSorting, rowsOf, totalsOf, type Sorting } from './pool_rates.ts';
import type { topOptions } from './top_options.ts';
import { screenLines, tableLines, type TopView } from './top_screen.ts';
import { Terminal } from './terminal.ts';

const HELP = 'penstock top: a view of a running cluster, each second; keys: q quits, letters sort, arrows scroll';

const REFRESH_MS = 1_000;
const TIMEOUT_MS = 2_000;

/** Runs `penstock top`. Resolves when the user quits, or after the table was printed once. @throws Error when no router answers then. */
export async function runTop({ config, isHelp, isJson }: CommandLine<typeof topOptions>): Promise<void> {
  if (isHelp) {
    process.stdout.write(`${HELP}\n\n${optionsHelp((await import('./top_options.ts')).topOptions)}\n`);
    return;
  }
  const isLive = process.stdout.isTTY && process.stdin.isTTY && !config.once && !isJson;
  const top = new Top(config.api, config.api_key);
  if (isLive) await top.live();
  else process.stdout.write(`${await top.once(isJson)}\n`);
}

class Top {
  /** Origin of the router's API. */
  readonly #api: string;
  readonly #key: string;
  #before: PoolSample | undefined;
  #last: PoolSample | undefined;
  #fault: Trouble | undefined;
  #sorting: Sorting = 'n';
  #isReversed = false;
  #scroll = 0;

  constructor(api: string, key: string) {
    [this.#api, this.#key] = [api, key];
  }

  /** Looks twice, a second apart, so that there are rates. */
  async once(isJson: boolean): Promise<string> {
    for (const pauseMs of [0, REFRESH_MS]) {
      await systemClock.sleep(pauseMs);
      await this.#look();
      if (this.#fault !== undefined || !this.#last)
        throw new Error(`nothing can be shown of ${this.#api}: ${faultText(this.#fault)}`);
    }
    const last = this.#last;
    if (isJson && last) {
      const nodes = rowsOf(this.#before, last);
      return JSON.stringify({
        as_of: last.asOfMs,
        problems: last.problems,
        totals: totalsOf(this.#before, last),
        nodes,
      });
    }
    const { head, table } = tableLines(this.#view());
    return [...head, ...table].map(({ text }) => text).join('\n');
  }

  async live(): Promise<void> {
    const ended = new AbortController();
    const terminal = new Terminal(process.stdin, process.stdout, (key) => {
      if (key === 'q' || key === '\u0003') ended.abort();
      else this.#press(key);
      draw();
    });
    const draw = (): void => {
      if (ended.signal.aborted) return;
      const { width, height } = terminal;
      const lines = screenLines(this.#view(), { width, height });
      terminal.draw(lines);
    };
    terminal.open(draw);
    const stop = (): void => {
      ended.abort();
    };
    for (const signal of ['SIGTERM', 'SIGHUP'] as const) process.once(signal, stop);
    const drawing = this.#drawEachSecond(draw, ended.signal);
    try {
      while (!ended.signal.aborted) {
        const startMs = systemClock.nowMs();
        await this.#look(ended.signal);
        draw();
        await systemClock.sleep(Math.max(0, startMs + REFRESH_MS - systemClock.nowMs()), ended.signal);
      }
      await drawing;
    } finally {
      terminal.close();
    }
  }

  /** Draws while a look waits for its answer too, so that values turn stale in time. */
  async #drawEachSecond(draw: () => void, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await systemClock.sleep(REFRESH_MS, signal);
      draw();
    }
  }

  #press(key: string): void {
    if (key === 'up') this.#scroll = Math.max(0, this.#scroll - 1);
    else if (key === 'down')
      this.#scroll = Math.min(this.#scroll + 1, Math.max(0, (this.#last?.nodes.length ?? 0) - 1));
    else if (isSorting(key)) {
      this.#isReversed = key === this.#sorting && !this.#isReversed;
      this.#sorting = key;
      this.#scroll = 0;
    }
  }

  #view(): TopView {
    return {
      address: this.#api,
      before: this.#before,
      last: this.#last,
      fault: this.#fault && troubleText(this.#fault),
      nowMs: systemClock.nowMs(),
      sorting: this.#sorting,
      isReversed: this.#isReversed,
      scroll: this.#scroll,
    };
  }

  async #look(signal?: AbortSignal): Promise<void> {
    try {
      const ended = AbortSignal.any([AbortSignal.timeout(TIMEOUT_MS), ...(signal ? [signal] : [])]);
      const read = async (path: string): Promise<Response> => {
        const response = await fetch(`${this.#api}${path}`, { signal: ended, headers: keyHeaders(this.#key) });
        const { ok, status } = response;
        if (!ok) throw new Refused(path, status, refusalOf(status, await response.text(), this.#key !== ''));
        return response;
      };
      const [pool, metrics] = await Promise.all([
        read('/api/pool').then((response) => response.json()),
        read('/metrics?scope=router').then((response) => response.text()),
      ]);
      const now = { nowMs: systemClock.nowMs(), wallMs: systemClock.wallMs() };
      const sample = sampleOf(pool, metrics, now);
      [this.#before, this.#last, this.#fault] = [this.#last, sample, undefined];
    } catch (error) {
      const isLate = (error as Error).name === 'TimeoutError';
      if (error instanceof Refused) this.#fault = error.trouble;
      else this.#fault = isLate ? { why: `no answer within ${TIMEOUT_MS / 1_000} s` } : connectionTroubleOf(error);
    }
  }
}

/** An answer that is none to what was asked. */
class Refused extends Error {
  readonly trouble: Trouble;

  constructor(path: string, status: number, trouble?: Trouble) {
    super(`${path} answers with HTTP status ${status}`);
    this.trouble = trouble ?? { why: this.message };
  }
}

function faultText(fault: Trouble | undefined): string {
  const name = 'name its --bind with --api HOST:PORT, or its URL';
  return fault ? troubleText({ cure: name, ...fault }) : name;
}
