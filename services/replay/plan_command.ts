/** `penstock plan`: reads trace and hardware, searches the cheapest cluster, and prints what was tried and the answer in words. */
import { Failure } from '../../shared/base/failure.ts';
import { checkFits, defaultHardware, type Hardware } from './hardware.ts';
import { percent, rateText, rounded, secondsText } from '../../shared/report/number_text.ts';
import { planCluster, type Plan, type PlanCandidate } from './plan.ts';
import { planHelp, readPlanLine, type PlanArguments } from './plan_arguments.ts';
import { planRuns, type PlanRunOptions } from './plan_run.ts';
import { ProgressText } from '../../shared/base/progress_text.ts';
import { openTrace, readHardware, type ReplayHost } from './replay_command.ts';
import { TARGET_SHARE, type ClusterSize } from './replay_options.ts';
import { aligned } from './report_table.ts';
import type { Trace } from '../../shared/trace/trace.ts';
import { checkWritable, writeWhole } from '../../shared/report/whole_file.ts';

/** Makes the runs of a plan; `planRuns` outside tests. */
export type PlanRunner = (options: PlanRunOptions) => (cluster: ClusterSize) => Promise<number>;

/**
 * Runs the command with its arguments. Rejects with a ConfigError for arguments that are not allowed, and with a Failure for a trace or
 * hardware that is not, or a file that cannot be written.
 */
export async function planCommand(
  args: readonly string[],
  host: ReplayHost,
  runner: PlanRunner = planRuns,
): Promise<void> {
  const line = readPlanLine(args);
  if (!line) {
    host.out.write(planHelp(defaultHardware.name));
    return;
  }
  const isShown = line.isProgressWanted || host.errors.isTTY === true;
  const progress = new ProgressText(host.errors, () => host.clock.nowMs());
  const show = (text: string, share: number): void => {
    if (isShown) progress.show({ text, share });
  };
  try {
    if (line.json !== undefined) await checkWritable(line.json);
    const hardware = await readHardware(line, host.fetchText);
    const trace = await openTrace(line, hardware, ({ text, share }) => {
      show(text, share);
    });
    checkTrace(trace, hardware, line);
    const { maxInstances, maxRuns, costs } = line;
    const plan = await planCluster({
      maxInstances,
      maxRuns,
      costs,
      targetShare: TARGET_SHARE,
      run: runner({ ...line, trace, hardware }),
      onTried: ({ cluster, attainment }, numRuns) => {
        show(`${clusterName(cluster)}: ${percent(attainment)} within the targets`, numRuns / maxRuns);
      },
    });
    progress.end();
    if (line.json !== undefined) await writeWhole(line.json, [planJson(plan, line, hardware)]);
    host.out.write(planText(plan, line, trace, hardware));
  } finally {
    progress.end();
  }
}

function checkTrace(trace: Trace, hardware: Hardware, line: PlanArguments): void {
  const name = traceName(line);
  checkFits(trace, hardware, name);
  if (trace.durationMs > 0) return;
  throw new Failure(
    'invalid_request',
    `${name}: all ${trace.numRequests} requests arrive at the same time, so they have no rate that a cluster could be planned for: use a trace with different times`,
  );
}

function traceName({ trace }: PlanArguments): string {
  return trace.kind === 'file' ? trace.path : `generate:${trace.text}`;
}

function clusterName(cluster: ClusterSize): string {
  return cluster.kind === 'aggregated'
    ? `${cluster.numInstances} both`
    : `${cluster.numPrefill} prefill + ${cluster.numDecode} decode`;
}

/** Returns the plan as text: the set-up, a table of the clusters that were tried, and the answer. */
function planText(plan: Plan, line: PlanArguments, trace: Trace, { name }: Hardware): string {
  const ownRate = trace.numRequests / (trace.durationMs / 1e3);
  const { ttftMs, tbtMs } = line.targets;
  const rows = plan.tried.map(({ cluster, cost, attainment }) => [
    ...[clusterName(cluster), rounded(cost), percent(attainment)],
    attainment >= TARGET_SHARE ? 'yes' : 'no',
  ]);
  return [
    `Trace: ${traceName(line)}: ${trace.numRequests.toLocaleString('en')} requests at ${rateText(line.ratePerSecond ?? ownRate)}.`,
    `Instances: ${name}.`,
    `Targets: TTFT ${secondsText(ttftMs)}, TBT ${secondsText(tbtMs)}, met by ${percent(TARGET_SHARE)} of the requests.`,
    '',
    ...aligned([['cluster', 'cost', 'in targets', 'enough'], ...rows]),
    '',
    ...answer(plan, line),
    '',
  ].join('\n');
}

/** Returns the answer in sentences. */
function answer({ aggregated, split, isComplete }: Plan, { maxInstances, maxRuns }: PlanArguments): string[] {
  const text = ({ cluster, cost }: PlanCandidate): string => `${clusterName(cluster)} (cost ${rounded(cost)})`;
  const limited = isComplete
    ? []
    : [`The search ended after ${maxRuns} clusters; there may be a cheaper one: raise --max-runs.`];
  const best = aggregated && (!split || aggregated.cost <= split.cost) ? aggregated : split;
  if (!best)
    return [
      `No cluster of at most ${maxInstances} instances meets the targets: raise --max-instances, or relax them.`,
      ...limited,
    ];
  const sentences = [`Least cost: ${text(best)}.`];
  if (best === aggregated)
    sentences.push(
      split
        ? `When any instance may do any part, no split is needed; the cheapest split that meets the targets is ${text(split)}.`
        : 'When any instance may do any part, no split is needed; no split within the limit meets the targets.',
    );
  else
    sentences.push(
      aggregated
        ? `Of instances that do any part, ${text(aggregated)} would be needed.`
        : 'No number of instances within the limit meets the targets when each does any part.',
    );
  return [...sentences, ...limited];
}

function planJson(plan: Plan, line: PlanArguments, hardware: Hardware): string {
  const { targets, ratePerSecond, costs, maxInstances, seed } = line;
  const report = {
    trace: traceName(line),
    hardware: hardware.name,
    targets,
    targetShare: TARGET_SHARE,
    ratePerSecond,
    costs,
    maxInstances,
    seed,
    ...plan,
  };
  return `${JSON.stringify(report, undefined, 2)}\n`;
}
