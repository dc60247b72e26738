/** The production engine over a device that only takes time, in simulated time: what each tenant gets of it. */
import type { Clock } from '../../shared/base/clock.ts';
import { given } from '../../shared/base/given.ts';
import { Engine } from '../../shared/engine/engine.ts';
import type { EngineOptions } from '../../shared/engine/engine_options.ts';
import type { SequenceRequest } from '../../shared/engine/sequence_request.ts';
import { TimedExecutable } from '../../shared/engine/timed_executable.ts';
import type { Digest } from '../../shared/kv/block_key.ts';
import { kvSpec } from '../../shared/kv/kv_spec.ts';
import { pairsOf, stepMs, type StepTime } from '../../shared/protocol/instance_work.ts';
import { sequenceRequest } from './request.ts';

const BLOCK = 16;
const root = '0'.repeat(32) as Digest;
/** Milliseconds of a step of the device. */
const deviceTime: StepTime = { constantMs: 2, rowMs: 0.1, pairMs: 1e-5, contextMs: 1e-4, sequenceMs: 0.2 };

/** A request as these tests write it; prompts are of tokens of their own unless they share a prefix by its number. */
export interface TimedRequest {
  readonly tenant: string;
  readonly prompt: number;
  readonly output: number;
  readonly prefix?: number;
  readonly prefixTokens?: number;
  readonly priority?: number;
  readonly precedence?: number;
  readonly weight?: number;
  readonly expectedTokens?: number;
}

/** A request and its outcome so far. */
export interface TimedOutcome extends TimedRequest {
  readonly id: number;
  readonly submittedMs: number;
  admittedMs?: number;
  firstMs?: number;
  endMs?: number;
  refused?: string;
}

/** Sizes of the engine. */
type Sizes = Partial<
  Pick<EngineOptions, 'maxNumSeqs' | 'chunkTokens' | 'numBlocks' | 'queueOrder' | 'fairShares' | 'maxWaiting'>
>;

export class TimedEngine {
  readonly engine: Engine;
  readonly outcomes: TimedOutcome[] = [];
  /** Milliseconds that the engine charged, by tenant, and ids in the order in which sequences took device blocks. */
  readonly charged = new Map<string, number>();
  readonly admitted: number[] = [];
  readonly preempted: number[] = [];
  readonly #executable: TimedExecutable;
  readonly #pending: { readonly atMs: number; readonly run: () => void }[] = [];
  /** Ids of requests after whose end the same is submitted again. */
  readonly #kept = new Set<number>();
  nowMs = 0;

  constructor({ maxNumSeqs = 8, chunkTokens = 256, numBlocks = 4_000, maxWaiting = 10_000, ...more }: Sizes = {}) {
    const spec = kvSpec([{ kind: 'paged', planes: [1], window: 0 }], { blockSize: BLOCK, valueType: 'f32' });
    this.#executable = new TimedExecutable({
      blockBytes: spec.payloadBytes,
      numBlocks,
      nowMs: () => this.nowMs,
      at: (atMs, run) => this.#pending.push({ atMs, run }),
      stepMs: (work) => stepMs(deviceTime, work),
      onEnd: () => undefined,
    });
    const clock = { nowMs: () => this.nowMs, wallMs: () => this.nowMs } as Clock;
    const firstSteps = [0, 4_096].flatMap((start) => {
      const token = { rows: 1, pairs: 0, contextTokens: start + 1, sequences: 1 };
      const chunk = { rows: 256, pairs: pairsOf(start, 256), contextTokens: 0, sequences: 1 };
      return [
        { ...token, tokenRows: 1, promptRows: 0, ms: stepMs(deviceTime, token) },
        { ...chunk, tokenRows: 0, promptRows: 256, ms: stepMs(deviceTime, chunk) },
      ];
    });
    this.engine = new Engine(
      this.#executable,
      {
        spec,
        numBlocks,
        chunkTokens,
        maxNumSeqs,
        maxWaiting,
        stepMs: 100_000,
        firstSteps,
        ...more,
        emit: (event) => {
          if (event.kind === 'stored' || event.kind === 'removed' || event.kind === 'planned') return;
          const outcome = this.outcomes[event.id]!;
          if (event.kind === 'admitted') {
            this.admitted.push(event.id);
            outcome.admittedMs ??= this.nowMs;
          } else if (event.kind === 'preempted') this.preempted.push(event.id);
          else if (event.kind === 'refused') outcome.refused = event.code;
          else if (event.kind === 'token') {
            outcome.firstMs ??= this.nowMs;
            if (!event.finish) return;
            outcome.endMs = this.nowMs;
            if (this.#kept.delete(event.id)) this.keep(outcome, 1);
          }
        },
        onCharged: ({ sharer }, ms) => {
          const tenant = sharer?.tenant ?? '';
          this.charged.set(tenant, (this.charged.get(tenant) ?? 0) + ms);
        },
      },
      clock,
    );
  }

  submit(request: TimedRequest): TimedOutcome {
    const { tenant, prompt, output, prefix, prefixTokens = 0, weight, precedence, priority } = request;
    const id = this.outcomes.length;
    const tokens = Array.from({ length: prompt }, (_, i) =>
      prefix !== undefined && i < prefixTokens ? 1_000_000 + prefix : 1 + id,
    );
    const outcome: TimedOutcome = { ...request, id, submittedMs: this.nowMs };
    this.outcomes.push(outcome);
    const sharer: SequenceRequest['sharer'] = { tenant, weight, precedence };
    const { expectedTokens = output } = request;
    const more = { sharer, expectedTokens, ...(priority === undefined ? {} : { priority }) };
    this.engine.submit(sequenceRequest({ id, root, tokens, maxLength: prompt + output, ...more }));
    return outcome;
  }

  /** Keeps `count` such requests in the engine: when one ends, the next one comes. */
  keep(
    { tenant, prompt, output, prefix, prefixTokens, priority, weight, expectedTokens }: TimedRequest,
    count: number,
  ): void {
    const more = given({ prefix, prefixTokens, priority, weight, expectedTokens });
    for (let i = 0; i < count; i++) this.#kept.add(this.submit({ tenant, prompt, output, ...more }).id);
  }

  /** Lets no further request of those that were kept come. */
  keepNone(): void {
    this.#kept.clear();
  }

  /** Runs steps until `untilMs`, or until there is nothing to do. */
  async run(untilMs = Infinity): Promise<void> {
    while (this.nowMs < untilMs) {
      const before = this.#executable.numRuns;
      const stepped = this.engine.step();
      const numInFlight = this.#executable.numRuns - this.engine.numSteps;
      const isWaiting =
        numInFlight > this.#executable.numAhead || (numInFlight > 0 && this.#executable.numRuns === before);
      if (isWaiting) {
        const next = this.#pending.shift()!;
        this.nowMs = Math.max(this.nowMs, next.atMs);
        next.run();
      }
      const hasWorked = await stepped;
      if (this.engine.numSteps % 100 === 0) this.engine.pool.checkIntegrity();
      if (!hasWorked) return;
    }
  }

  /** Lets time pass in which nothing is submitted. */
  pass(ms: number): void {
    this.nowMs += ms;
  }

  /** Milliseconds charged to a tenant. */
  msOf(tenant: string): number {
    return this.charged.get(tenant) ?? 0;
  }

  /** Outcomes of a tenant's requests. */
  of(tenant: string): readonly TimedOutcome[] {
    return this.outcomes.filter((one) => one.tenant === tenant);
  }
}
