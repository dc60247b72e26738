/** A real nats-server on a port of its own, with what a test adds to its configuration. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { delimiter, dirname, join } from 'node:path';
import { temporaryFolder } from './cluster.ts';
import { freePort } from './free_ports.ts';
import { debianFolder } from './downloads.ts';
import { until } from './until.ts';

const unpacked = `${debianFolder('nats-server')}/usr/sbin/nats-server`;
const binary = existsSync(unpacked) ? unpacked : 'nats-server';

/** A PATH that has nats-server. */
export const pathWithNats = [dirname(unpacked), process.env['PATH'] ?? ''].join(delimiter);

function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('data', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => {
      resolve(false);
    });
  });
}

export class NatsServer {
  readonly port: number;
  readonly #folder = temporaryFolder();
  readonly #config: string;
  #process: ChildProcess | undefined;
  #said = '';

  private constructor(port: number, config: string) {
    this.port = port;
    this.#config = config;
  }

  /** `config`: lines of its configuration file. */
  static async start(config = '', port?: number): Promise<NatsServer> {
    const server = new NatsServer(port ?? (await freePort()), config);
    await server.restart();
    return server;
  }

  get url(): string {
    return `nats://127.0.0.1:${this.port}`;
  }

  /** Its log since it was last started. */
  get said(): string {
    return this.#said;
  }

  /** Again, on its port. */
  async restart(): Promise<void> {
    const file = join(this.#folder.path, 'nats.conf');
    writeFileSync(file, `listen: "127.0.0.1:${this.port}"\n${this.#config}\n`);
    const child = spawn(binary, ['-c', file], { stdio: ['ignore', 'ignore', 'pipe'] });
    this.#said = '';
    child.stderr.on('data', (chunk: Buffer) => (this.#said += chunk.toString()));
    this.#process = child;
    await until('the NATS server answers', async () => {
      if (child.exitCode !== null) throw new Error(`nats-server ended: ${this.#said}`);
      return answers(this.port);
    });
  }

  signal(signal: NodeJS.Signals): void {
    this.#process?.kill(signal);
  }

  async kill(): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  async close(): Promise<void> {
    await this.kill();
    this.#folder.remove();
  }
}
