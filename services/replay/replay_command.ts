/**
 * `penstock replay`: reads and checks everything before the first run, runs, prints the table, and writes the files that were asked for.
 *
 *   arguments ─► outputs writable? ─► hardware ─► trace ─► fits? ─► runs ─► table, page, JSON
 */
import { readFile } from 'node:fs/promises';
import type { Clock } from '../../shared/base/clock.ts';
import { Failure, messageOf } from '../../shared/base/failure.ts';
import { cacheCurve } from './cache_arithmetic.ts';
import { checkFits, defaultHardware, parseHardware, type Hardware } from './hardware.ts';
import { ProgressText, type ProgressOutput, type ReplayProgress } from '../../shared/base/progress_text.ts';
import { readReplayLine, replayHelp } from './replay_arguments.ts';
import { TARGET_SHARE, type HardwareSource, type ReplayOptions } from './replay_options.ts';
import type { ReplayReport } from './report.ts';
import { reportHtml } from './report_html.ts';
import { reportJson } from './report_json.ts';
import { reportTable } from './report_table.ts';
import type { ReplayRunner, RunReplay } from './runner.ts';
import type { Trace } from '../../shared/trace/trace.ts';
import { generateTrace } from './trace_generators.ts';
import { readTrace } from '../../shared/trace/trace_reader.ts';
import { traceStats } from './trace_stats.ts';
import { traceLines, writeTrace } from './trace_writer.ts';
import { checkWritable, writeWhole } from '../../shared/report/whole_file.ts';

/** Path of the hardware at a router, where a URL names none. */
const HARDWARE_PATH = '/api/hardware';

/** The process around the command. */
export interface ReplayHost {
  readonly clock: Clock;
  readonly out: { write(text: string): unknown };
  readonly errors: ProgressOutput;
  /**
   * Returns the body at the URL of a router, which is shown `apiKey`, by default the key of the environment. Rejects with an Error that says what to do when
   * there is none.
   */
  readonly fetchText: (url: string, apiKey?: string) => Promise<string>;
  /** Description of the machine, for the report. */
  readonly machine: string;
}

/**
 * Runs the command with its arguments. Rejects with a ConfigError for arguments that are not allowed, and with a Failure for a trace or
 * hardware that is not, or a file that cannot be written; then no file was written or changed.
 */
export async function replayCommand(args: readonly string[], host: ReplayHost, runner: ReplayRunner): Promise<void> {
  const line = readReplayLine(args, runner.policies);
  if (line.kind === 'help') {
    host.out.write(replayHelp(runner.policies, defaultHardware.name));
  } else if (line.kind === 'generate') {
    if (line.out !== undefined) await checkWritable(line.out);
    const trace = generateTrace(line.spec);
    if (line.out !== undefined) await writeTrace(trace, line.out);
    else for (const text of traceLines(trace)) host.out.write(text);
  } else {
    const isShown = line.isProgressWanted || host.errors.isTTY === true;
    const progress = new ProgressText(host.errors, () => host.clock.nowMs());
    try {
      const report = await replay(line.options, host, runner.run, (at) => {
        if (isShown) progress.show(at);
      });
      progress.end();
      // Files first: a reader of the table that goes away ends this process.
      await writeReport(report, line.options);
      host.out.write(reportTable(report));
    } finally {
      progress.end();
    }
  }
}

async function replay(
  options: ReplayOptions,
  host: ReplayHost,
  run: RunReplay,
  onProgress: (progress: ReplayProgress) => void,
): Promise<ReplayReport> {
  const begunMs = host.clock.nowMs();
  for (const path of [options.html, options.json]) if (path !== undefined) await checkWritable(path);
  const described = await readHardware(options, host.fetchText);
  const hardware = { ...described, linkBytesPerSecond: options.linkBytesPerSecond ?? described.linkBytesPerSecond };
  const name = options.trace.kind === 'file' ? options.trace.path : `generate:${options.trace.text}`;
  const trace = await openTrace(options, hardware, onProgress);
  checkFits(trace, hardware, name);
  if (options.ratePerSecond === undefined) checkSpread(trace, name);
  const curve = options.cacheCurve ? cacheCurve(trace) : undefined;
  const policies = await run({ options, trace, hardware }, onProgress);
  const { cluster, targets, seeds, engine, queueOrder } = options;
  return {
    trace: name,
    traceStats: traceStats(trace),
    cluster,
    hardware,
    targets,
    targetShare: TARGET_SHARE,
    seeds,
    engine,
    queueOrder,
    policies,
    cacheCurve: curve,
    notes: notesOf(options),
    machine: host.machine,
    wallSeconds: (host.clock.nowMs() - begunMs) / 1_000,
  };
}

async function writeReport(report: ReplayReport, { html, json }: ReplayOptions): Promise<void> {
  // Both texts are made before either file is touched.
  const texts = [
    ...(html === undefined ? [] : [{ path: html, text: reportHtml(report) }]),
    ...(json === undefined ? [] : [{ path: json, text: reportJson(report) }]),
  ];
  for (const { path, text } of texts) await writeWhole(path, [text]);
}

/** Reads the hardware from a file or a URL; undefined: the default one. Rejects with a Failure. */
export async function readHardware(
  { hardware: from, apiKey }: HardwareSource,
  fetchText: ReplayHost['fetchText'],
): Promise<Hardware> {
  if (from === undefined) return defaultHardware;
  const isUrl = /^https?:\/\//i.test(from);
  if (isUrl && !URL.canParse(from)) throw new Failure('invalid_request', `--hardware ${from} is no URL`);
  const url = isUrl ? new URL(from) : undefined;
  if (url?.pathname === '/') url.pathname = HARDWARE_PATH;
  const where = url?.href ?? from;
  const json = await (url ? fetchText(where, apiKey) : readFile(from, 'utf8')).catch((error: unknown) => {
    throw new Failure('invalid_request', `--hardware ${where} cannot be read: ${messageOf(error)}`);
  });
  return parseHardware(json, where);
}

/** Reads or generates a trace. Rejects with a Failure. */
export async function openTrace(
  { trace, maxRequests, traceBlockTokens }: Pick<ReplayOptions, 'trace' | 'maxRequests' | 'traceBlockTokens'>,
  { traceBlockTokens: ofHardware }: Hardware,
  onProgress: (progress: ReplayProgress) => void,
): Promise<Trace> {
  if (trace.kind === 'generated') return generateTrace(trace.spec, maxRequests);
  return readTrace(trace.path, {
    blockTokens: traceBlockTokens ?? ofHardware,
    maxRequests,
    onProgress: (doneBytes, totalBytes) =>
      onProgress({ text: `reading ${trace.path}`, share: totalBytes > 0 ? doneBytes / totalBytes : 0 }),
  });
}

/** A rate is reached by dividing times of arrival, which needs different ones. @throws Failure */
function checkSpread(trace: Trace, name: string): void {
  if (trace.durationMs > 0) return;
  throw new Failure(
    'invalid_request',
    `${name}: all ${trace.numRequests} requests arrive at the same time, so they have no rate that goodput could be looked for by: use --rate`,
  );
}

function notesOf({
  maxRequests,
  linkBytesPerSecond,
  slow,
  strictRoles,
  ratePerSecond,
}: ReplayOptions): readonly string[] {
  return [
    ...(maxRequests === undefined ? [] : [`Only the first ${maxRequests} requests of the trace.`]),
    ...(linkBytesPerSecond === undefined
      ? []
      : [`Links have ${linkBytesPerSecond} bytes a second, in place of the hardware's.`]),
    ...(slow ? [`A share of ${slow.share} of the instances is ${slow.factor} times slower.`] : []),
    ...(strictRoles
      ? ['Roles are walls: prefill instances do not generate, and decode instances compute no long prompts.']
      : []),
    ...(ratePerSecond === undefined ? [] : [`One rate, ${ratePerSecond} requests/s; goodput was not looked for.`]),
  ];
}
