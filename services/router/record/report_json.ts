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
    router: rounded(router),
    failover: rounded(failover),
    queue: rounded(queue),
    load: rounded(load),
    compute: rounded(compute),
    transport: rounded(transport),
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
    queue_ms: rounded(report.queueMs) ?? 0,
    load_ms: rounded(report.loadMs) ?? 0,
    compute_ms: rounded(report.computeMs) ?? 0,
  };
}

function sourcesJson(sources: NonNullable<Report['sources']>): NonNullable<StageReport['sources']> {
  const { device, dram, instance, storeDram: store_dram, storeDisk: store_disk, handoff } = sources;
  return { device, dram, instance, store_dram, store_disk, handoff };
}

/** Returns milliseconds with three digits behind the point; null where they are not known. */
export function rounded(ms: number | undefined): number | null {
  return ms === undefined ? null : Math.round(ms * 1_000) / 1_000;
}
