/** The process that reads the streams, as its parent asks it. */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { projectPath } from '../../support/project.ts';
import { until } from '../../support/until.ts';
import type { ReaderAnswer, ReaderMessage } from './reader_process.ts';
import type { StreamsReport, StreamsRequest } from './streams.ts';

export class Reader {
  readonly #process: ChildProcess = fork(projectPath('dist/test/bench/stream/reader_process.js'));

  /** Opens streams, and waits until each has had a token. @throws Error when one fails */
  async open(streams: StreamsRequest): Promise<void> {
    await this.#ask({ kind: 'open', streams });
    await until('all streams have begun', async () => (await this.#ask({ kind: 'begun' })).isBegun);
    const { error } = await this.report();
    if (error !== undefined) throw new Error(`a stream failed: ${error}`);
  }

  /** Begins the time that the next reports are of. */
  async mark(): Promise<void> {
    await this.#ask({ kind: 'mark' });
  }

  /** Reports on the streams of these URLs, or on all. */
  async report(urls?: readonly string[]): Promise<StreamsReport> {
    const { report } = await this.#ask({ kind: 'report', urls });
    if (!report) throw new Error('the reader sent no report');
    return report;
  }

  /** Closes all streams. */
  close(): void {
    this.#process.kill('SIGKILL');
  }

  async #ask(message: ReaderMessage): Promise<ReaderAnswer> {
    this.#process.send(message);
    const [answer] = (await once(this.#process, 'message')) as [ReaderAnswer];
    return answer;
  }
}
