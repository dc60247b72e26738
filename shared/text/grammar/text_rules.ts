/**
 * Rules for the text of answers, as grammars: converted on a thread that may be lost, and compiled on trial with a model's vocabulary, so
 * that no instance is given a grammar that it cannot use.
 *
 *   rule ──convert, CONVERT_CPU_MS at most──► EBNF ──trial──► kept, as a refusal is
 *
 * Tenants, or clients where there are none, take turns at both by the time of their threads (fair_turns.ts). A rule that is known waits for nobody,
 * and the rules of one tenant are not forgotten for those of another (shared_recent.ts).
 */
import type { CallFor, CallShare } from '../../base/call_queue.ts';
import type { Clock } from '../../base/clock.ts';
import { Failure } from '../../base/failure.ts';
import { inCpuTime, LATE, SPENT } from '../../base/cpu_limit.ts';
import { FairTurns, type Turn } from '../../base/fair_turns.ts';
import { SharedRecent } from '../../base/shared_recent.ts';
import { abortable } from '../../base/signal.ts';
import type { Thread, Threads } from '../../base/threads.ts';
import type { TrialCompiler } from '../../grammar/matcher/trial_compiler.ts';
import type { start, RuleConverter } from './rule_worker.ts';
import type { TextRule } from './text_rule.ts';

/** The one who takes turns where nobody is named. */
const NOBODY: CallShare = { key: '' };
/** Milliseconds of CPU time that the conversion of one rule may take. The largest that is accepted takes 1.2 s on one core. */
const CONVERT_CPU_MS = 5_000;
/** Milliseconds after which a client may try again when the machine was too busy. */
const RETRY_MS = 2_000;
/** Rules that wait for their conversion (P1). */
const MAX_WAITING = 64;
/** Rules whose grammars are kept, and the characters of all of them (P1). */
const MAX_KEPT = 512;
const MAX_KEPT_CHARACTERS = 8 << 20;

/** Milliseconds after which a rule that took too much CPU time may be tried again: that differs a little from run to run. */
const SPENT_MS = 60_000;

/** Result of a conversion. */
interface Kept {
  readonly value: string | Failure;
  /** Time until which it holds, in ms on the clock of the rules. */
  readonly untilMs: number;
}

/** Kinds of rules that are read at once. */
const SMALL: ReadonlySet<TextRule['kind']> = new Set(['choice', 'json_object']);

/** Converts rules to EBNF, one after the other. Results are kept. */
export class RuleConversions {
  readonly #threads: Threads;
  readonly #clock: Clock;
  /** EBNF of each kept rule, or why there is none and how long that holds. */
  readonly #kept = new SharedRecent<Kept>(MAX_KEPT, MAX_KEPT_CHARACTERS);
  #thread: Promise<Thread<RuleConverter>> | undefined;
  readonly #turns: FairTurns;
  /** Conversions under way, by rule: at most MAX_WAITING wait (P1). */
  readonly #running = new Map<string, Promise<string>>();
  #isClosed = false;

  constructor(threads: Threads, clock: Clock) {
    this.#threads = threads;
    this.#clock = clock;
    this.#turns = new FairTurns(clock, MAX_WAITING, () => {
      return new Failure('overloaded', `${MAX_WAITING} rules for texts wait to be read: try again later`);
    });
  }

  /**
   * Returns a rule as EBNF, for a client. @throws Failure `invalid_request` with the reason when it cannot be converted, or takes too much CPU time;
   * `overloaded` when too many wait, or the machine has no time; `cancelled` when `signal` aborts.
   */
  async convert(rule: TextRule, { signal, share = NOBODY }: CallFor): Promise<string> {
    // The parameter that states the rule is only for messages.
    const key = JSON.stringify({ ...rule, param: '' });
    const kept = this.#kept.get(key, share.key);
    if (kept && this.#clock.nowMs() < kept.untilMs) {
      if (kept.value instanceof Failure) throw kept.value;
      return kept.value;
    }
    const running = this.#running.get(key);
    if (running) this.#turns.join(key, share);
    const ebnf = await abortable(running ?? this.#begin(key, rule, share), signal, cancelled);
    // Who joined keeps it, too.
    if (running) this.#kept.get(key, share.key);
    return ebnf;
  }

  #begin(key: string, rule: TextRule, share: CallShare): Promise<string> {
    const turn: Turn = { ...share, isSmall: SMALL.has(rule.kind), name: key };
    const conversion = this.#turns
      .run(turn, (begins) => this.#inTime(key, rule, share.key, begins))
      .finally(() => {
        this.#running.delete(key);
      });
    this.#running.set(key, conversion);
    return conversion;
  }

  async #inTime(key: string, rule: TextRule, user: string, begins: () => void): Promise<string> {
    this.#checkOpen();
    const thread = await (this.#thread ??= this.#start());
    // A thread that another rule used up is not replaced at the cost of this one.
    begins();
    let failure = new Failure('invalid_request', 'it cannot be read: make it smaller, with less nesting');
    let keptMs = SPENT_MS;
    try {
      const ebnf = await inCpuTime(this.#clock, thread, CONVERT_CPU_MS, thread.call('convert', rule));
      if (ebnf !== LATE && ebnf !== SPENT) return this.#keep(key, ebnf, user);
      const spent = `it took over ${CONVERT_CPU_MS / 1_000} s of CPU time to read: make it smaller`;
      if (ebnf === SPENT) failure = new Failure('invalid_request', spent);
      else {
        failure = new Failure('overloaded', 'the machine has no time to read it: try again', {
          retryAfterMs: RETRY_MS,
        });
        // The next request tries again.
        keptMs = 0;
      }
    } catch (error) {
      if (error instanceof Failure) throw this.#keep(key, error, user);
      this.#checkOpen();
    }
    this.#thread = undefined;
    void thread.close();
    throw this.#keep(key, failure, user, this.#clock.nowMs() + keptMs);
  }

  /** Starts a thread. Its time limits begin when it is there. */
  async #start(): Promise<Thread<RuleConverter>> {
    const url = new URL('./rule_worker.js', import.meta.url);
    const thread = this.#threads.spawn<typeof start>({ url }, undefined, {
      onDeath: () => {
        this.#thread = undefined;
      },
    });
    await thread.call('ready', undefined);
    return thread;
  }

  #keep<T extends string | Failure>(key: string, value: T, user: string, untilMs = Infinity): T {
    this.#kept.set(key, { value, untilMs }, key.length + (typeof value === 'string' ? value.length : 0), user);
    return value;
  }

  #checkOpen(): void {
    if (this.#isClosed) throw cancelled();
  }

  /** Ends the thread. Waiting rules fail with `cancelled`. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const thread = await this.#thread?.catch(() => undefined);
    await thread?.close();
  }
}

/** Rules for the texts of one model. */
export class TextRules {
  readonly #conversions: RuleConversions;
  readonly #trial: Pick<TrialCompiler, 'check'> | undefined;

  /** `trial` tries a grammar with the model's vocabulary; undefined for a model without a tokenizer, whose rules are refused. */
  constructor(conversions: RuleConversions, trial: Pick<TrialCompiler, 'check'> | undefined) {
    this.#conversions = conversions;
    this.#trial = trial;
  }

  /** Returns a client's rule as EBNF that compiles with the model's vocabulary. @throws Failure as {@link RuleConversions.convert} and the trial do. */
  async compile(rule: TextRule, asking: CallFor): Promise<string> {
    if (!this.#trial) throw new Failure('invalid_request', 'the model has no tokenizer, so its text follows no rule');
    const { signal, share = NOBODY } = asking;
    const ebnf = await this.#conversions.convert(rule, asking);
    await this.#trial.check(ebnf, signal, { ...share, isSmall: SMALL.has(rule.kind) });
    return ebnf;
  }
}

function cancelled(): Failure {
  return new Failure('cancelled', 'the request has ended');
}
