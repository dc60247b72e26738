/**
 * Service level objectives of a request.
 *
 *   those of its key, else --slo-ttft-ms and --slo-tbt-ms ─┐
 *   x-penstock-slo-ttft-ms, x-penstock-slo-tbt-ms ─────────┴─ the lower of both ──► targets
 *   x-penstock-deadline-ms ──► deadline of the whole answer
 *
 * A header only tightens what the operator has configured: with a looser target a client would wait in queues in which others are refused.
 */
import type { Targets } from '../../../shared/placement/policy.ts';
import { MAX_TARGET_MS } from '../access/caller.ts';
import type { TargetTexts } from './exchange.ts';
import { ParameterFailure } from './parameter_failure.ts';

/** Targets by configuration, as the options of a router have them. */
interface TargetConfig {
  readonly slo_ttft_ms: number;
  readonly slo_tbt_ms: number;
}

/** Headers of the targets. */
const headers = {
  ttftMs: 'x-penstock-slo-ttft-ms',
  tbtMs: 'x-penstock-slo-tbt-ms',
  totalMs: 'x-penstock-deadline-ms',
} as const satisfies Record<keyof TargetTexts, string>;

const NO_TARGETS: Targets = { ttftMs: undefined, tbtMs: undefined, totalMs: undefined };

/** Returns the targets in the headers of a request as they are. */
export function targetTextsOf(given: Readonly<Record<string, string | readonly string[] | undefined>>): TargetTexts {
  const textOf = (name: string): string | undefined => {
    const value = given[name];
    return value === undefined ? undefined : [value].flat().join();
  };
  return { ttftMs: textOf(headers.ttftMs), tbtMs: textOf(headers.tbtMs), totalMs: textOf(headers.totalMs) };
}

/** Returns the targets that the headers state, and the failure of the first that is not allowed; a target that is not stated is undefined. */
export function parseTargets(texts: TargetTexts = {}): {
  readonly targets: Targets;
  readonly failure: ParameterFailure | undefined;
} {
  const targets: { -readonly [K in keyof Targets]: Targets[K] } = { ...NO_TARGETS };
  for (const name of ['ttftMs', 'tbtMs', 'totalMs'] as const) {
    const text = texts[name];
    if (text === undefined) continue;
    const ms = /^\d{1,8}$/.test(text.trim()) ? Number(text) : NaN;
    if (!(ms >= 1 && ms <= MAX_TARGET_MS)) {
      const shown = JSON.stringify(text.slice(0, 40));
      const message = `${headers[name]}: ${shown} is no whole number of milliseconds from 1 to ${MAX_TARGET_MS}`;
      return { targets: NO_TARGETS, failure: new ParameterFailure(message, headers[name]) };
    }
    targets[name] = ms;
  }
  return { targets, failure: undefined };
}

/** Targets of a router's requests, as configured. */
export class RequestTargets {
  readonly #usual: Targets;

  constructor(config: TargetConfig) {
    this.#usual = configured(config.slo_ttft_ms, config.slo_tbt_ms);
  }

  /**
   * Returns the targets of a request with these targets in its headers, by a caller who may have targets of its own; undefined when it
   * has none.
   */
  of(asked: Targets, ofCaller?: Targets): Targets | undefined {
    const { ttftMs, tbtMs } = ofCaller ?? this.#usual;
    const targets = {
      ttftMs: lower(ttftMs, asked.ttftMs),
      tbtMs: lower(tbtMs, asked.tbtMs),
      totalMs: asked.totalMs,
    };
    return Object.values(targets).every((value) => value === undefined) ? undefined : targets;
  }
}

function configured(ttftMs = 0, tbtMs = 0): Targets {
  return { ttftMs: ttftMs > 0 ? ttftMs : undefined, tbtMs: tbtMs > 0 ? tbtMs : undefined };
}

function lower(a: number | undefined, b: number | undefined): number | undefined {
  const least = Math.min(a ?? Infinity, b ?? Infinity);
  return least === Infinity ? undefined : least;
}
