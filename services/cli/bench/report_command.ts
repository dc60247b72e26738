/** `penstock bench report`: results of several runs as one page. */
import { readFile } from 'node:fs/promises';
import { basename } from 'node:path';
import { flag, flagHelp, parseFlags } from '../../../shared/base/command_flags.ts';
import { Failure, messageOf } from '../../../shared/base/failure.ts';
import { ConfigError } from '../../../shared/base/options.ts';
import { writeWhole } from '../../../shared/report/whole_file.ts';
import { reportHtml } from './report_html.ts';
import { runsOfFile, type ReportedRun } from './run_file.ts';

/** Most runs of a page (P1): a chart of more tells nothing. */
const MAX_RUNS = 64;

const table = { html: flag('FILE', 'file of the page'), help: flag('', 'this text') };

/** Flags of the command, each with its dashes. */
export const reportFlags: readonly string[] = Object.keys(table).map((name) => `--${name}`);

const HELP = `penstock bench report: results of several runs as one page of charts, which needs no network

Usage: penstock bench report RUN.json... --html FILE

RUN.json are files of penstock bench serve --save-result or vllm bench serve --save-result; a run is named by its --label,
else by its file.

${flagHelp(table)}
`;

/** Runs the command. Rejects with a ConfigError for arguments that are not allowed, and a Failure for a file that is no result. */
export async function reportCommand(
  args: readonly string[],
  host: { readonly out: { write(text: string): unknown } },
): Promise<number> {
  const { given, words } = parseFlags('bench report', table, args);
  if (given.isSet('help')) {
    host.out.write(HELP);
    return 0;
  }
  const html = given.text('html');
  if (words.length === 0 || html === undefined)
    throw new ConfigError('name the results and the page: penstock bench report RUN.json... --html FILE');
  const runs: ReportedRun[] = [];
  for (const path of words) {
    const text = await readFile(path, 'utf8').catch((error: unknown) => {
      throw new Failure('invalid_request', `${path} cannot be read: ${messageOf(error)}`);
    });
    runs.push(...runsOfFile(basename(path, '.json'), text));
    if (runs.length > MAX_RUNS) throw new ConfigError(`a page shows at most ${MAX_RUNS} runs`);
  }
  await writeWhole(html, [reportHtml(runs)]);
  host.out.write(`${runs.length === 1 ? 'one run' : `${runs.length} runs`} in ${html}\n`);
  return 0;
}
