/**
 * The router's face over a simulated link: what services/router/http is over HTTP. A reader may be slow, stop, or leave; a router that
 * dies resets its connections.
 */
import assert from 'node:assert/strict';
import type { AskingHeaders } from '../../services/router/access/caller.ts';
import type { Path } from '../../services/router/api/surface.ts';
import type { Sink, TargetTexts } from '../../services/router/api/exchange.ts';
import type { HttpApp, ListenHttp } from '../../services/router/router.ts';
import type { SimFabric } from './simulated_network.ts';
import { SimProcess } from './simulation.ts';

/** Written and not read: more, and the writer waits. */
const WINDOW_BYTES = 2_048;
/** A reader that has stopped goes after this. */
const STOPPED_MS = 10_000;
/** The router lets go of a client that left, and cuts off one that stopped, within this. */
const MAX_GONE_MS = 1_000;
const MAX_STALLED_MS = 4_000;
/** Milliseconds that relay and scope need to end a request after its deadline. */
const MAX_LATE_MS = 2_500;

export interface Reader {
  /** Milliseconds the reader takes for each chunk. */
  readonly readMs: number;
  /** Reads no further than this many bytes. */
  readonly stopsAt: number;
  /** Leaves when it has so many bytes. */
  readonly leavesAt: number;
}

export interface Answer {
  status: number;
  headers: Readonly<Record<string, string>>;
  text: string;
  /** When the first bytes were read, in simulated milliseconds; undefined before. */
  firstMs: number | undefined;
  /** How it came to its end: all of it, a connection that broke, or its reader left. */
  end: 'complete' | 'reset' | 'left' | undefined;
}

/** A router that serves. */
export interface Listening {
  readonly process: SimProcess;
  readonly app: HttpApp;
}

export class SimHttp {
  readonly client = new SimProcess('client');
  readonly #fabric: SimFabric;
  readonly #onFault: (fault: string) => void;
  readonly #onListen: (app: HttpApp) => void;
  readonly #open = new Set<SimExchange>();
  readonly #listening = new Set<Listening>();

  /** `onFault` is told what the API did that it must not, `onListen` which router begins to serve. */
  constructor(fabric: SimFabric, onFault: (fault: string) => void, onListen: (app: HttpApp) => void) {
    this.#fabric = fabric;
    this.#onFault = onFault;
    this.#onListen = onListen;
  }

  /** Returns the listen function of a router's process. */
  listenFor(process: SimProcess): ListenHttp {
    return (bind, app) => {
      const listening = { process, app };
      this.#listening.add(listening);
      this.#onListen(app);
      const close = (): Promise<void> => {
        this.#listening.delete(listening);
        this.reset(process);
        return Promise.resolve();
      };
      return Promise.resolve({ url: `http://${bind}`, close });
    };
  }

  /** Routers that serve and whose processes live. */
  get routers(): readonly Listening[] {
    return [...this.#listening].filter(({ process }) => !process.isDead);
  }

  /** A process is gone, and with it its connections. */
  reset(process: SimProcess): void {
    for (const exchange of [...this.#open]) if (exchange.server === process) exchange.finish('reset');
  }

  /** Answers that are under way. */
  get numOpen(): number {
    return this.#open.size;
  }

  /** Sends a request with these targets and a key in its headers, and resolves at the end of its answer. */
  ask(
    path: Path,
    body: string,
    reader: Reader,
    targets: TargetTexts = {},
    headers: AskingHeaders = {},
  ): Promise<Answer> {
    return new Promise((resolve) => {
      // A router is chosen at random, as by a load balancer.
      const { routers } = this;
      const listening = routers.length > 1 ? routers[this.#fabric.below(routers.length)] : routers[0];
      const refused: Answer = { status: 0, headers: {}, text: '', firstMs: undefined, end: 'reset' };
      if (!listening) {
        this.#fabric.simulation.at(this.#fabric.latencyMs, this.client, 'nobody listens', () => {
          resolve(refused);
        });
        return;
      }
      const router = listening.process;
      const onEnd = (answer: Answer): void => {
        this.#open.delete(exchange);
        resolve(answer);
      };
      const exchange = new SimExchange(this.#fabric, this.client, listening, reader, { onEnd, onFault: this.#onFault });
      this.#open.add(exchange);
      this.#fabric.send(this.client, router, body.length, `request ${path}`, () => {
        exchange.serve(path, body, targets, headers);
      });
    });
  }
}

interface ExchangeListener {
  readonly onEnd: (answer: Answer) => void;
  readonly onFault: (fault: string) => void;
}

class SimExchange implements Sink {
  readonly server: SimProcess;
  readonly #fabric: SimFabric;
  readonly #client: SimProcess;
  readonly #app: HttpApp;
  readonly #reader: Reader;
  readonly #listener: ExchangeListener;
  readonly #gone = new AbortController();
  readonly #answer: Answer = { status: 0, headers: {}, text: '', firstMs: undefined, end: undefined };
  #head: Pick<Answer, 'status' | 'headers'> | undefined;
  #isEnded = false;
  #isServed = false;
  #numUnread = 0;
  #numAcked = 0;
  #onRoom: () => void = () => undefined;
  /** The client reads one chunk after the other. */
  #reading: Promise<void> = Promise.resolve();
  hasBegun = false;

  constructor(
    fabric: SimFabric,
    client: SimProcess,
    { process, app }: Listening,
    reader: Reader,
    listener: ExchangeListener,
  ) {
    this.#fabric = fabric;
    this.#client = client;
    this.server = process;
    this.#app = app;
    this.#reader = reader;
    this.#listener = listener;
    if (reader.leavesAt === 0) {
      fabric.simulation.at(5, client, 'client leaves', () => {
        this.#leave();
      });
    }
  }

  /** @throws Failure `invalid_api_key` where the router asks for another key */
  serve(path: Path, text: string, targets: TargetTexts, headers: AskingHeaders): void {
    const { context, surfaces, callerOf } = this.#app;
    const caller = callerOf({ url: path, headers });
    const bodySlot = context.bodies.begin(text.length);
    bodySlot.add(Buffer.from(text));
    const body = bodySlot.end();
    this.#expect(context.requestTimeoutMs + MAX_LATE_MS, 'R1: a request goes on when its time is over', () => false);
    context.admission.answering(1);
    const names = { clientId: undefined, traceId: undefined };
    const exchange = {
      caller,
      names,
      targets,
      body,
      gone: this.#gone.signal,
      sink: this,
    };
    void surfaces.serve(context, path, exchange).then(() => {
      this.#isServed = true;
      context.admission.answering(-1);
      if (this.#gone.signal.aborted) return;
      assert(this.#isEnded, `${path} was served and its answer has no end`);
    });
  }

  begin(status: number, headers: Readonly<Record<string, string>>): void {
    assert(!this.hasBegun, 'an answer begins once');
    this.#head = { status, headers };
  }

  write(text: string): boolean {
    assert(this.#head && !this.#isEnded, 'an answer is written between its head and its end');
    if (this.isBehind && !this.#gone.signal.aborted) this.#fault('P1: a reader that is behind is written to');
    this.hasBegun = true;
    this.#numUnread += text.length;
    this.#send(text, false);
    if (!this.isBehind) return true;
    const numAcked = this.#numAcked;
    this.#expect(MAX_STALLED_MS, 'P1: a reader that stopped is not cut off', () => this.#numAcked > numAcked);
    return false;
  }

  end(text: string): void {
    assert(this.#head && !this.#isEnded, 'an answer ends once');
    this.hasBegun = true;
    this.#isEnded = true;
    this.#send(text, true);
  }

  get isBehind(): boolean {
    return this.#numUnread > WINDOW_BYTES;
  }

  drained(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        signal.removeEventListener('abort', done);
        resolve();
      };
      this.#onRoom = done;
      signal.addEventListener('abort', done);
      if (signal.aborted || !this.isBehind) done();
    });
  }

  destroy(): void {
    this.#isEnded = true;
    this.#gone.abort();
    this.#fabric.send(this.server, this.#client, 0, 'reset', () => {
      this.finish('reset');
    });
  }

  #send(text: string, isLast: boolean): void {
    const head = this.#head;
    assert(head);
    this.#fabric.send(this.server, this.#client, text.length, `bytes ${text.length}`, () => {
      this.#reading = this.#reading.then(() => this.#read(text, head, isLast));
    });
  }

  async #read(text: string, head: Pick<Answer, 'status' | 'headers'>, isLast: boolean): Promise<void> {
    const { readMs, stopsAt, leavesAt } = this.#reader;
    if (this.#answer.text.length >= stopsAt) {
      // The router has written what fits; a reader that stopped for good is cut off by it, or leaves after STOPPED_MS.
      await this.#fabric.simulation.clockOf(this.#client).sleep(STOPPED_MS);
      this.#leave();
    }
    if (readMs > 0) await this.#fabric.simulation.clockOf(this.#client).sleep(readMs);
    if (this.#answer.end) return;
    Object.assign(this.#answer, head);
    this.#answer.text += text;
    this.#answer.firstMs ??= this.#fabric.simulation.nowMs;
    if (isLast) this.finish('complete');
    else if (this.#answer.text.length >= leavesAt) this.#leave();
    else {
      this.#fabric.send(this.#client, this.server, 0, 'ack', () => {
        this.#numUnread -= text.length;
        this.#numAcked++;
        if (!this.isBehind) this.#onRoom();
      });
    }
  }

  #fault(what: string): void {
    this.#listener.onFault(what);
  }

  /** Reports a fault when the router has not ended the exchange within `withinMs` and `isOther` is false. */
  #expect(withinMs: number, what: string, isOther: () => boolean): void {
    this.#fabric.simulation.at(withinMs, this.server, 'looks after a client', () => {
      if (!this.#isServed && !isOther()) this.#fault(what);
    });
  }

  #leave(): void {
    if (this.#answer.end) return;
    this.finish('left');
    this.#fabric.send(this.#client, this.server, 0, 'client leaves', () => {
      this.#gone.abort();
      this.#onRoom();
      this.#expect(MAX_GONE_MS, 'R2: a request goes on whose client has left', () => false);
    });
  }

  finish(end: NonNullable<Answer['end']>): void {
    if (this.#answer.end) return;
    this.#answer.end = end;
    this.#listener.onEnd(this.#answer);
  }
}
