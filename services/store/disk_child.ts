/**
 * The store's hold on the disk process: calls, and what its end means.
 *
 *   SIGSEGV, SIGBUS, SIGABRT, an exit of its own, no answer for CALL_TIMEOUT_MS   ► the environment is damaged
 *   SIGKILL and other signals from outside                                          ► it is opened again (S1)
 */
import { fork, type ChildProcess } from 'node:child_process';
import type { Clock } from '../../shared/base/clock.ts';
import type { DiskAnswer, DiskProcessMethods } from './disk_process.ts';

/** A commit of a full batch takes a second on a slow disk; pages that point in a circle take for ever. */
const CALL_TIMEOUT_MS = 30_000;
/** What ends a process that did nothing wrong. */
const FROM_OUTSIDE: readonly (NodeJS.Signals | null)[] = ['SIGKILL', 'SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT'];

/** The process ended under a call. */
export class DiskProcessDeath extends Error {
  /** What it read or wrote ended it. */
  readonly isDamage: boolean;

  constructor(message: string, isDamage: boolean) {
    super(message);
    this.name = 'DiskProcessDeath';
    this.isDamage = isDamage;
  }
}

type Methods = DiskProcessMethods;

export class DiskChild {
  readonly #process: ChildProcess;
  readonly #clock: Clock;
  readonly #pending = new Map<number, { resolve: (value: never) => void; reject: (error: Error) => void }>();
  #nextId = 0;
  #death: DiskProcessDeath | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#process = fork(new URL('./disk_process.js', import.meta.url), {
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
    });
    this.#process.on('exit', (code, signal) => {
      const how = signal ? `was ended by ${signal}` : `ended with code ${code}`;
      this.#die(new DiskProcessDeath(`the disk process ${how}`, signal === null || !FROM_OUTSIDE.includes(signal)));
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
      this.#process.send({ id, method, argument }, (error) => {
        if (error) reject(error);
      });
    });
    void this.#clock.sleep(CALL_TIMEOUT_MS, answered.signal).then(() => {
      if (answered.signal.aborted) return;
      this.#die(new DiskProcessDeath(`the disk process did not answer for ${CALL_TIMEOUT_MS} ms`, true));
      this.end();
    });
    try {
      return await answer;
    } finally {
      answered.abort();
    }
  }

  /** Resolves when it is gone. */
  end(): void {
    this.#process.kill('SIGKILL');
  }
}
