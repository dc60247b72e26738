/** Parts that endpoints need, of a router without a cluster, a model and threads; a test puts its own in their places. */
import assert from 'node:assert/strict';
import { NO_FORMAT, OutputFormat } from '../../shared/text/output/output_format.ts';
import { Bodies } from '../../services/router/api/bodies.ts';
import { RequestTargets } from '../../services/router/api/request_targets.ts';

/** Returns bodies that no thread reads. */
export function bodiesWithoutThreads(): Bodies {
  return new Bodies(
    ...([0, () => 64, () => ({ vocabSize: 100, maxModelLen: 64, isStrict: false })] as const),
    ...([{ spawn: () => ({ close: () => Promise.resolve() }) } as never, undefined as never, assert.fail] as const),
  );
}

/** Returns parts of an ApiContext. `sloTtftMs`: the target of requests that state none. */
export function contextParts(sloTtftMs = 0): object {
  let numIds = 0;
  return {
    servedName: 'm',
    facts: { vocabSize: 100, eosTokenIds: [], defaults: {} },
    maxModelLen: () => 64,
    output: new OutputFormat(NO_FORMAT, [], { all: [], ends: [] }),
    metrics: { failed: () => undefined, interToken: () => undefined },
    targets: new RequestTargets({ slo_ttft_ms: sloTtftMs, slo_tbt_ms: 0 }),
    requestTimeoutMs: 60_000,
    stalledReaderMs: 60_000,
    sseKeepAliveMs: 0,
    ending: new AbortController().signal,
    newId: () => `r${++numIds}`,
    newSeed: () => 1,
    fingerprint: () => 'f',
    onGenerated: () => undefined,
  };
}
