/** Streams that one process reads from sockets: requests, the times of all tokens, and what was wrong with their texts. */
import { connect } from 'node:net';
import { percentile } from '../figures.ts';
import { EventReader, type AnswerListener } from './event_reader.ts';
import { FIRST_STALLED_SEED } from './step_clock.ts';
import { ExpectedText } from './stream_text.ts';

/** Streams to open. */
export interface StreamsRequest {
  /** Routers over which the streams are divided in turn. */
  readonly urls: readonly string[];
  readonly model: string;
  readonly numReaders: number;
  /** Readers that stop after the first event. */
  readonly numStalled: number;
  readonly maxTokens: number;
}

/** Observations since the last mark; faults since the streams began. Streams whose readers stopped are left out. */
export interface StreamsReport {
  /** Streams that the report is of. */
  readonly numRead: number;
  readonly numTokens: number;
  /** Tokens of each URL's streams, in the order of the request. */
  readonly tokensOfUrls: readonly number[];
  readonly elapsedMs: number;
  /** Tokens of the stream that had the fewest. */
  readonly leastTokens: number;
  /** Milliseconds between two tokens of a stream. */
  readonly tbtMs: { readonly p50: number; readonly p99: number; readonly most: number };
  /** Streams with tokens left out, sent twice, with any other text, and those that ended. */
  readonly numStreams: {
    readonly gap: number;
    readonly repeat: number;
    readonly otherText: number;
    readonly ended: number;
  };
  /** Text of the first error. */
  readonly error: string | undefined;
  /** CPU time of this process. */
  readonly cpuMs: number;
}

/** Connections that are opened together, and the pause after them, so that no queue of connections is full. */
const OPENED_TOGETHER = 32;
const PAUSE_MS = 20;
const CONTENT = '"content":"';
const PROMPT = 'the quick brown fox jumps over the lazy dog by the harbour with a lamp and a rope '.repeat(3);
/** All connections read into the same bytes, which are used before the next read. */
const BUFFER = Buffer.alloc(1 << 16);

/** A stream and its reader. */
class Stream implements AnswerListener {
  readonly text: ExpectedText;
  readonly isStalled: boolean;
  /** Tokens since the last mark. */
  numTokens = 0;
  /** Milliseconds between tokens since the last mark. */
  gapsMs: number[] = [];
  lastMs: number | undefined;
  hasEnded = false;
  /** Text of the first error. */
  error: string | undefined;
  readonly url: string;
  readonly #reader = new EventReader(this);
  /** Time of the bytes that are read now. */
  #nowMs = 0;

  constructor(seed: number, url: string) {
    this.text = new ExpectedText(seed);
    this.isStalled = seed >= FIRST_STALLED_SEED;
    this.url = url;
  }

  /** Notes bytes that came at this time. */
  read(bytes: string, nowMs: number): void {
    this.#nowMs = nowMs;
    this.#reader.read(bytes);
  }

  onHead(head: string): void {
    if (!/^HTTP\/1\.1 200 /.test(head) || !/chunked/i.test(head)) this.#fail(head);
  }

  onEvent(event: string): void {
    const start = event.indexOf(CONTENT) + CONTENT.length;
    if (start < CONTENT.length) {
      if (event.includes('"error"')) this.#fail(event);
      return;
    }
    const text = event.slice(start, event.indexOf('"', start));
    if (text === '') return;
    this.#received(this.text.take(text));
  }

  onEnd(): void {
    this.hasEnded = true;
  }

  #fail(text: string): void {
    this.hasEnded = true;
    this.error ??= text;
  }

  /** Notes the arrival of tokens. Of several that came together all but the first came at once. */
  #received(numTokens: number): void {
    if (!this.isStalled) {
      if (this.lastMs !== undefined) this.gapsMs.push(this.#nowMs - this.lastMs);
      for (let i = 1; i < numTokens; i++) this.gapsMs.push(0);
    }
    this.lastMs = this.#nowMs;
    this.numTokens += numTokens;
  }
}

/** All streams of this process. */
export class Streams {
  readonly #streams: Stream[] = [];
  #urls: readonly string[] = [];
  #markMs = 0;
  #usage = process.cpuUsage();

  /** Opens streams, a few at a time. */
  async open({ urls, model, numReaders, numStalled, maxTokens }: StreamsRequest): Promise<void> {
    const seeds = [
      ...Array.from({ length: numStalled }, (_, i) => FIRST_STALLED_SEED + i),
      ...Array.from({ length: numReaders }, (_, i) => 1 + i),
    ];
    this.#urls = urls;
    for (const [i, seed] of seeds.entries()) {
      const messages = [{ role: 'user', content: `${seed} ${PROMPT}` }];
      const body = JSON.stringify({ model, messages, seed, max_completion_tokens: maxTokens, stream: true });
      this.#open(urls[i % urls.length] ?? '', seed, body);
      if (i % OPENED_TOGETHER === 0) await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  #open(url: string, seed: number, body: string): void {
    const { hostname, port, host } = new URL(url);
    const stream = new Stream(seed, url);
    const callback = (numBytes: number): boolean => {
      stream.read(BUFFER.toString('latin1', 0, numBytes), performance.now());
      return !stream.isStalled || stream.lastMs === undefined;
    };
    const socket = connect({ host: hostname, port: Number(port), noDelay: true, onread: { buffer: BUFFER, callback } });
    socket.on('error', (error) => {
      stream.error ??= error.message;
    });
    socket.on('close', () => {
      stream.hasEnded = true;
    });
    const headers = [`host: ${host}`, 'content-type: application/json', `content-length: ${Buffer.byteLength(body)}`];
    socket.write(`POST /v1/chat/completions HTTP/1.1\r\n${headers.join('\r\n')}\r\n\r\n${body}`);
    this.#streams.push(stream);
  }

  /** Whether every stream has had a token. */
  get haveBegun(): boolean {
    return this.#streams.every(({ lastMs, hasEnded }) => lastMs !== undefined || hasEnded);
  }

  mark(): void {
    for (const stream of this.#streams) {
      stream.gapsMs = [];
      stream.numTokens = 0;
    }
    this.#markMs = performance.now();
    this.#usage = process.cpuUsage();
  }

  /** Reports on the streams of these URLs. */
  report(urls = this.#urls): StreamsReport {
    const elapsedMs = performance.now() - this.#markMs;
    const { user, system } = process.cpuUsage(this.#usage);
    const read = this.#streams.filter(({ isStalled, url }) => !isStalled && urls.includes(url));
    const gapsMs = read.flatMap((stream) => stream.gapsMs);
    const tokensOf = (streams: readonly Stream[]): number => streams.reduce((sum, one) => sum + one.numTokens, 0);
    const count = (is: (stream: Stream) => boolean): number => read.filter(is).length;
    return {
      numRead: read.length,
      numTokens: tokensOf(read),
      tokensOfUrls: urls.map((url) => tokensOf(read.filter((stream) => stream.url === url))),
      elapsedMs,
      leastTokens: Math.min(...read.map(({ numTokens }) => numTokens)),
      tbtMs: {
        p50: percentile(gapsMs, 0.5),
        p99: percentile(gapsMs, 0.99),
        most: percentile(gapsMs, 1),
      },
      numStreams: {
        gap: count(({ text }) => text.faults.hasGap),
        repeat: count(({ text }) => text.faults.hasRepeat),
        otherText: count(({ text }) => text.faults.hasOtherText),
        ended: count(({ hasEnded }) => hasEnded),
      },
      error: this.#streams.find(({ url, error }) => error !== undefined && urls.includes(url))?.error,
      cpuMs: (user + system) / 1_000,
    };
  }
}
