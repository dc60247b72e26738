/** Debian's Prometheus and promtool: a server over targets of a test, and checks of files. */
import assert from 'node:assert/strict';
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from '../../support/cluster.ts';
import { freePort } from '../../support/free_ports.ts';
import { debianFolder } from '../../support/downloads.ts';
import { until } from '../../support/until.ts';

function binary(name: string): string {
  const unpacked = `${debianFolder('prometheus')}/usr/bin/${name}`;
  return existsSync(unpacked) ? unpacked : name;
}

/** Runs promtool and returns its exit code and all that it wrote. */
export function promtool(args: readonly string[], input = ''): { readonly code: number | null; readonly text: string } {
  const { status, stdout, stderr, error } = spawnSync(binary('promtool'), args, { input, encoding: 'utf8' });
  assert(!error, `promtool cannot be run (${error?.message}): node config/test_packages.js installs it`);
  return { code: status, text: `${stdout}${stderr}` };
}

/** One series of a query's answer. */
interface Result {
  readonly metric: Readonly<Record<string, string>>;
  readonly value: number;
}

/** A Prometheus on a port of its own. */
export class PrometheusServer {
  readonly #url: string;
  readonly #process: ChildProcess;
  readonly #folder: ReturnType<typeof temporaryFolder>;

  private constructor(url: string, process: ChildProcess, folder: ReturnType<typeof temporaryFolder>) {
    this.#url = url;
    this.#process = process;
    this.#folder = folder;
  }

  /** `config`: its configuration file; paths of rule files in it are absolute. */
  static async start(config: string): Promise<PrometheusServer> {
    const [folder, port] = [temporaryFolder(), await freePort()];
    const file = join(folder.path, 'prometheus.yml');
    writeFileSync(file, config);
    const child = spawn(
      binary('prometheus'),
      [
        `--config.file=${file}`,
        `--storage.tsdb.path=${join(folder.path, 'data')}`,
        `--web.listen-address=127.0.0.1:${port}`,
      ],
      { stdio: ['ignore', 'ignore', 'pipe'] },
    );
    let written = '';
    child.stderr.on('data', (chunk: Buffer) => (written += chunk.toString()));
    const url = `http://127.0.0.1:${port}`;
    await until('Prometheus is ready', async () => {
      if (child.exitCode !== null) throw new Error(`prometheus ended: ${written}`);
      return fetch(`${url}/-/ready`).then(
        ({ ok }) => ok,
        () => false,
      );
    });
    return new PrometheusServer(url, child, folder);
  }

  /** Returns the series of a query, or the error's text. */
  async query(query: string): Promise<Result[] | string> {
    const response = await fetch(`${this.#url}/api/v1/query`, { method: 'POST', body: new URLSearchParams({ query }) });
    const body = (await response.json()) as {
      error?: string;
      data?: { resultType: string; result: { metric: Record<string, string>; value: [number, string] }[] };
    };
    if (!body.data) return body.error ?? 'no answer';
    return body.data.result.map(({ metric, value: [, text] }) => ({ metric, value: Number(text) }));
  }

  /** The value of a query with one series. */
  async valueOf(query: string): Promise<number> {
    const results = await this.query(query);
    assert(typeof results !== 'string' && results[0] && results.length === 1, `${query}: ${JSON.stringify(results)}`);
    return results[0].value;
  }

  async close(): Promise<void> {
    const ended = once(this.#process, 'exit');
    this.#process.kill('SIGKILL');
    await ended;
    this.#folder.remove();
  }
}
