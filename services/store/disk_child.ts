/**
 * Handle of the disk process: sends calls, and classifies how the process ends.
 *
 *   SIGSEGV, SIGBUS, SIGABRT, an exit with a code of its own   ► the environment is damaged
 *   no answer for CALL_TIMEOUT_MS                              ► the process hangs; two hangs in a row count as damage
 *   SIGKILL and other signals from outside, a lost channel     ► the environment is opened again (S1)
 */
import { fork, type ChildProcess } from 'node:child_process';
import type { Clock } from '../../shared/base/clock.ts';
import type { DiskAnswer, DiskProcessMethods } from './disk_process.ts';
import { DONE } from '../../shared/base/signal.ts';

/**
 * Milliseconds after which a call counts as hung. A full batch commits in about a second on a slow disk; damaged pages that form a
 * cycle never answer.
 */
const CALL_TIMEOUT_MS = 30_000;
/** A timer that fires later than this many milliseconds means that the machine or this process was suspended. */
const LATE_MS = 2_000;
/** Milliseconds that a killed process has to exit. */
const END_WAIT_MS = 2_000;
/** Signals sent from outside: a process that one of them ends has done nothing wrong. */
const FROM_OUTSIDE: readonly (NodeJS.Signals | null)[] = ['SIGKILL', 'SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT'];

/** The disk process ended, or was killed for a hang, before it answered a call. */
export class DiskProcessDeath extends Error {
  /** Whether the environment that the process read or wrote ended the process, and is damaged. */
  readonly isDamage: boolean;
  /** Whether the process was ended because it did not answer in time. */
  readonly isHang: boolean;

  constructor(message: string, isDamage: boolean, isHang = false) {
    super(message);
    this.name = 'DiskProcessDeath';
    this.isDamage = isDamage;
    this.isHang = isHang;
  }
}

type Methods = DiskProcessMethods;

/** One disk process, with the calls that wait for its answer. */
export class DiskChild {
  readonly #process: ChildProcess;
  readonly #clock: Clock;
  readonly #pending = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  #nextId = 0;
  #death: DiskProcessDeath | undefined;
  #exited: () => void = () => undefined;
  readonly #gone: Promise<void>;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#gone = new Promise((resolve) => {
      this.#exited = resolve;
    });
    this.#process = fork(new URL('./disk_process.js', import.meta.url), {
      // Calls come one at a time, so a single thread is enough for the engine's own work, such as collecting garbage.
      execArgv: [...process.execArgv, '--v8-pool-size=1'],
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    this.#process.on('message', (message) => {
      const { id, value, error } = message as DiskAnswer;
      const call = this.#pending.get(id);
      this.#pending.delete(id);
      if (error === undefined) call?.resolve(value as never);
      else call?.reject(new Error(error));
    });
    this.#process.on('error', (error) => {
      this.#die(new DiskProcessDeath(error.message, false));
      this.#exited();
    });
    this.#process.on('exit', (code, signal) => {
      const how = signal ? `was ended by ${signal}` : `ended with code ${code}`;
      const isOwn = signal === null ? code !== 0 : !FROM_OUTSIDE.includes(signal);
      this.#die(new DiskProcessDeath(`the disk process ${how}`, isOwn));
      this.#exited();
    });
  }

  get isAlive(): boolean {
    return this.#death === undefined;
  }

  #die(death: DiskProcessDeath): void {
    this.#death ??= death;
    for (const { reject } of this.#pending.values()) reject(this.#death);
    this.#pending.clear();
  }

  /** @throws DiskProcessDeath when the process ended, Error with what the method threw. */
  async call<K extends keyof Methods>(
    method: K,
    argument: Parameters<Methods[K]>[0],
  ): Promise<Awaited<ReturnType<Methods[K]>>> {
    if (this.#death) throw this.#death;
    const id = this.#nextId++;
    const answered = new AbortController();
    const answer = new Promise<Awaited<ReturnType<Methods[K]>>>((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      // Sending fails when the process has ended; its exit event then rejects the call.
      this.#process.send({ id, method, argument }, () => undefined);
    });
    void this.#watch(answered.signal);
    try {
      return await answer;
    } finally {
      answered.abort(DONE);
    }
  }

  async #watch(answered: AbortSignal): Promise<void> {
    for (;;) {
      const sinceMs = this.#clock.nowMs();
      await this.#clock.sleep(CALL_TIMEOUT_MS, answered);
      if (answered.aborted) return;
      // A later timer means that this process was suspended and the answer may be waiting: the call gets its full time again.
      if (this.#clock.nowMs() - sinceMs < CALL_TIMEOUT_MS + LATE_MS) break;
    }
    this.#die(new DiskProcessDeath(`the disk process did not answer for ${CALL_TIMEOUT_MS} ms`, false, true));
    await this.end();
  }

  /**
   * Kills the process and returns whether it exited within END_WAIT_MS. Only then may another process open the environment; a process
   * whose disk hangs may not exit.
   */
  async end(): Promise<boolean> {
    this.#process.kill('SIGKILL');
    const waited = new AbortController();
    const isGone = await Promise.race([
      this.#gone.then(() => true),
      this.#clock.sleep(END_WAIT_MS, waited.signal).then(() => false),
    ]);
    waited.abort(DONE);
    return isGone;
  }

  get pid(): number {
    return this.#process.pid ?? 0;
  }
}
