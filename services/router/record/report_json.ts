/** Reports and times of a request as `/api/requests` shows them. */
import type { Report } from '../../../shared/protocol/messages.ts';
import type { StageReport, TtftBreakdown } from '../../../shared/protocol/request_detail.ts';

/** Returns the parts of the time to the first token, in milliseconds, for JSON. */
export function partsJson({
  router,
  failover,
  queue,
  load,
  compute,
  transport,
}: Record<keyof TtftBreakdown, number>): TtftBreakdown {
  return {
    router: inThousandths(router),
    failover: inThousandths(failover),
    queue: inThousandths(queue),
    load: inThousandths(load),
    compute: inThousandths(compute),
    transport: inThousandths(transport),
  };
}

/** Returns the report of an instance for JSON. */
export function reportJson(report: Report): StageReport {
  return {
    cached_tokens: report.cachedTokens,
    fetched_tokens: report.fetchedTokens,
    computed_tokens: report.computedTokens,
    sources: report.sources ? sourcesJson(report.sources) : null,
    fetched_bytes: report.fetchedBytes,
    queue_ms: inThousandths(report.queueMs),
    load_ms: inThousandths(report.loadMs),
    compute_ms: inThousandths(report.computeMs),
  };
}

function sourcesJson(sources: NonNullable<Report['sources']>): NonNullable<StageReport['sources']> {
  const { device, dram, instance, storeDram: store_dram, storeDisk: store_disk, handoff } = sources;
  return { device, dram, instance, store_dram, store_disk, handoff };
}

/** Returns a value with three digits after the point. */
export function inThousandths(value: number): number {
  return Math.round(value * 1_000) / 1_000;
}

/** Returns a value with three digits after the point; null where it is not known, or is no finite number. */
export function rounded(value: number | null | undefined): number | null {
  return value === undefined || value === null ? null : inThousandths(value);
}
