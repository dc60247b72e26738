/** Sentences about the set-up of a replay, which the table and the page share. */
import { percent, rateText, rounded, secondsText } from '../../shared/report/number_text.ts';
import type { ReplayReport } from './report.ts';

/** Returns the trace, the cluster, the hardware and the targets, a sentence each. */
export function clusterText({
  trace,
  traceStats,
  cluster,
  hardware,
  targets,
  targetShare,
  engine,
  queueOrder,
}: ReplayReport): string[] {
  const { numRequests, durationSeconds, requestsPerSecond, inputTokens, outputTokens } = traceStats;
  const instances =
    cluster.kind === 'split'
      ? `${cluster.numPrefill} prefill and ${cluster.numDecode} decode instances`
      : `${cluster.numInstances} instances that prefill and decode`;
  const rate = requestsPerSecond === undefined ? 'all at once' : rateText(requestsPerSecond);
  return [
    `Trace: ${trace}: ${numRequests.toLocaleString('en')} requests in ${rounded(durationSeconds)} s (${rate}), ` +
      `prompts of ${rounded(inputTokens.mean)} tokens and answers of ${rounded(outputTokens.mean)} in the mean.`,
    `Cluster: ${instances}, ${engine} engine, queues in the order ${queueOrder}; ${hardware.name}.`,
    `Targets: TTFT ${secondsText(targets.ttftMs)}, TBT ${secondsText(targets.tbtMs)}; goodput is the rate at which ${percent(targetShare)} of the requests meet both.`,
  ];
}
