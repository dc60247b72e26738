/**
 * One process of a local cluster: started, watched, and started again when it dies.
 *
 *   start ──ready──► serves ──dies──► restarted at once; one that dies young after a pause: 0.25 s, doubling to 10 s
 *     └──dies before it was ever ready──► the start has failed
 */
import type { ChildProcess } from 'node:child_process';
import { Backoff } from '../../shared/base/backoff.ts';
import type { Clock } from '../../shared/base/clock.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import { LogLines } from './log_lines.ts';
import type { LoadingMessage, ReadyMessage, ServingMessage } from './role_process.ts';

const MIN_PAUSE_MS = 250;
const MAX_PAUSE_MS = 10_000;
/**
 * Milliseconds after a child is ready until it no longer counts as young. A young child that dies is restarted after a pause, because
 * it would probably die again.
 */
const YOUNG_MS = 1_000;

/** Message of a child that is ready: where it is reached, and what else its kind of process says. */
export type ReadyChild = Pick<ReadyMessage, 'kind' | 'address' | 'pid'> &
  Partial<Pick<ReadyMessage, 'url' | 'bus' | 'device'>>;

/** The process before a restart: what it said when it was ready, and whether a signal ended it. */
export interface EndedChild {
  readonly ready: ReadyChild;
  readonly isKilled: boolean;
}

/** Settings of a {@link LocalChild}. */
export interface LocalChildOptions {
  readonly role: Role | 'bus';
  readonly name: string;
  readonly clock: Clock;
  /** Starts a process; `before` is undefined at the first start. */
  readonly fork: (before: EndedChild | undefined) => ChildProcess;
  readonly print: (line: string) => void;
  /** Called for messages after which nothing changes here. */
  readonly onMessage: (message: LoadingMessage | ServingMessage) => void;
  /** Whether the cluster ends, so that no process is restarted. */
  readonly isEnding: () => boolean;
}

/** A child process under supervision. */
export class LocalChild {
  readonly role: Role | 'bus';
  readonly name: string;
  readonly #options: LocalChildOptions;
  #process: ChildProcess | undefined;
  #ready: ReadyChild | undefined;
  /** Time at which the present process was ready; undefined before. */
  #readyMs: number | undefined;
  /** Pauses before the restarts of a child that died young. */
  readonly #backoff: Backoff;

  constructor(options: LocalChildOptions) {
    this.#options = options;
    [this.role, this.name] = [options.role, options.name];
    this.#backoff = new Backoff({ clock: options.clock, firstMs: MIN_PAUSE_MS, mostMs: MAX_PAUSE_MS });
  }

  /** Last message of a process that became ready. */
  get ready(): ReadyChild | undefined {
    return this.#ready;
  }

  get isRunning(): boolean {
    return this.#process?.exitCode === null && this.#process.signalCode === null;
  }

  /**
   * Starts the process and resolves when it is ready; restarts it when it dies later. @throws Error when it ends before it has ever been
   * ready.
   */
  start(): Promise<ReadyChild> {
    return this.#supervise(undefined);
  }

  /** Ends the process by a signal; the process of the bus by closing its channel, whatever the signal: it ends the server that it has started. */
  kill(signal: NodeJS.Signals): void {
    if (this.role !== 'bus') this.#process?.kill(signal);
    else if (this.#process?.connected) this.#process.disconnect();
  }

  /** Resolves when the present process has ended. */
  async ended(): Promise<void> {
    if (this.isRunning) await new Promise((resolve) => this.#process?.once('exit', resolve));
  }

  #supervise(before: EndedChild | undefined): Promise<ReadyChild> {
    const { fork, isEnding, onMessage } = this.#options;
    const child = fork(before);
    this.#process = child;
    this.#readyMs = undefined;
    const lines = new LogLines(this.name, (line) => {
      process.stderr.write(`${line}\n`);
    });
    child.stderr?.on('data', (chunk: Buffer) => {
      lines.push(chunk.toString('utf8'));
    });
    return new Promise((resolve, reject) => {
      child.on('message', (message: ReadyChild | LoadingMessage | ServingMessage) => {
        if (message.kind === 'ready') {
          this.#becomeReady(message);
          resolve(message);
        } else {
          onMessage(message);
        }
      });
      child.once('exit', (code, signal) => {
        if (isEnding()) return;
        const how = signal ? `was killed by ${signal}` : `ended with code ${code}`;
        if (this.#ready === undefined) reject(new Error(`${this.name} ${how} before it was ready`));
        else void this.#restart({ ready: this.#ready, isKilled: signal !== null }, how);
      });
    });
  }

  #becomeReady(message: ReadyChild): void {
    const what = this.#ready === undefined ? 'started' : 'is back';
    this.#ready = message;
    this.#readyMs = this.#options.clock.nowMs();
    const { address, url, device, pid } = message;
    this.#options.print(
      `${this.name} ${what}: ${url ?? address}, pid ${pid}${device === undefined ? '' : `, ${device}`}`,
    );
  }

  async #restart(before: EndedChild, how: string): Promise<void> {
    const { clock, isEnding, print } = this.#options;
    const isYoung = this.#readyMs === undefined || clock.nowMs() - this.#readyMs < YOUNG_MS;
    if (!isYoung) this.#backoff.reset();
    const pauseMs = isYoung ? this.#backoff.lengthen() : 0;
    print(`${this.name} ${how}; starting it again${pauseMs > 0 ? ` in ${pauseMs / 1_000} s` : ''}`);
    await clock.sleep(pauseMs);
    if (!isEnding()) await this.#supervise(before);
  }
}
