/**
 * A server with the built dashboard and a made-up cluster for its APIs. A test moves the cluster on by `tick`; `main` (this file run by
 * node) does so each second: `node dist/test/support/dashboard_fixture.js [PORT] [NODES]`.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import fastify from 'fastify';
import { addDashboardRoutes } from '../../services/router/http/dashboard_routes.ts';
import type { StreamTick } from '../../shared/protocol/router_api.ts';
import { answerDetails } from './dashboard_details.ts';
import { World, type WorldSize } from './dashboard_world.ts';

/** A page and a cluster of a middling size. */
const MIDDLING: WorldSize = { nodes: 12, blocks: 20_000, requests: 400, seed: 7 };

/** The server. */
export class DashboardFixture {
  world: World;
  /** Bytes that were sent as events, and paths that were asked for. */
  sentBytes = 0;
  readonly asked: string[] = [];
  readonly #server: Server;
  readonly #streams = new Set<ServerResponse>();

  private constructor(size: WorldSize, at: number) {
    this.world = new World(size, at);
    const files = fastify();
    addDashboardRoutes(files);
    this.#server = createServer((request, reply) => {
      const url = new URL(request.url ?? '/', 'http://fixture');
      this.asked.push(url.pathname);
      if (answerDetails(this.world, request, url, reply)) return;
      if (url.pathname === '/api/stream') this.#open(reply);
      else if (url.pathname.startsWith('/api/')) void this.#answer(request, url, reply);
      else
        void files
          .inject({ method: 'GET', url: url.pathname, headers: { ...request.headers, 'accept-encoding': 'identity' } })
          .then((answer) => reply.writeHead(answer.statusCode, answer.headers).end(answer.rawPayload));
    });
  }

  /** Starts a fixture. @param at time of its cluster, in milliseconds since 1970. */
  // eslint-disable-next-line time/speed -- the beginning of its history, which tests set
  static async start(size: Partial<WorldSize> = {}, at = Date.now(), port = 0): Promise<DashboardFixture> {
    const fixture = new DashboardFixture({ ...MIDDLING, ...size }, at);
    fixture.#server.listen(port, '127.0.0.1');
    await once(fixture.#server, 'listening');
    return fixture;
  }

  /** Address of the page. */
  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/dashboard`;
  }

  /** Streams that are open. */
  get numStreams(): number {
    return this.#streams.size;
  }

  /** Sends a tick to every page. */
  send(tick: StreamTick): void {
    for (const stream of this.#streams) this.#write(stream, tick);
  }

  /** Moves the cluster on, and sends what changed. */
  tick(at: number, requests?: number): void {
    this.send(this.world.tick(at, requests));
  }

  /** Ends all streams, as a router that is killed does. */
  dropStreams(): void {
    for (const stream of this.#streams) stream.destroy();
  }

  async close(): Promise<void> {
    this.dropStreams();
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #open(reply: ServerResponse): void {
    reply.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    this.#streams.add(reply);
    reply.on('close', () => this.#streams.delete(reply));
    this.#write(reply, this.world.first());
  }

  #write(stream: ServerResponse, tick: StreamTick): void {
    const text = `event: tick\ndata: ${JSON.stringify(tick)}\n\n`;
    this.sentBytes += Buffer.byteLength(text);
    stream.write(text);
  }

  async #answer(request: IncomingMessage, url: URL, reply: ServerResponse): Promise<void> {
    const body = this.#bodyOf(url, await textOf(request));
    reply.writeHead(body === undefined ? 404 : 200, { 'content-type': 'application/json' });
    reply.end(JSON.stringify(body ?? { error: { message: `${url.pathname}: no such path` } }));
  }

  #bodyOf({ pathname, searchParams }: URL, text: string): object | undefined {
    const number = (name: string, otherwise: number): number => Number(searchParams.get(name) ?? otherwise);
    const { world } = this;
    if (pathname === '/api/pool') return world.pool();
    if (pathname === '/api/session') return { logged_in_as: null };
    if (pathname === '/api/reuse') return world.reuse();
    if (pathname === '/api/blocks') return world.blocks(number('limit', 2_000));
    if (pathname === '/api/requests') return world.requestPage(number('limit', 100), number('cursor', 0));
    if (pathname === '/api/lookup') return world.lookup(text);
    if (pathname === '/api/events')
      return { as_of: world.pool().as_of, router: world.pool().router, events: world.events };
    if (pathname === '/api/history') {
      const step = number('step', 1_000);
      return world.history(searchParams.get('scope') ?? 'cluster', step, step === 60_000 ? 1_440 : 900_000 / step);
    }
    const [, id] = /^\/api\/requests\/(.+)$/.exec(pathname) ?? [];
    return id === undefined ? undefined : world.requests.find((one) => one.id === decodeURIComponent(id));
  }
}

async function textOf(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return Buffer.concat(parts).toString();
}

if (process.argv[1] === import.meta.filename) {
  const [port = '8100', nodes = '12'] = process.argv.slice(2);
  const fixture = await DashboardFixture.start({ nodes: Number(nodes) }, undefined, Number(port));
  console.log(fixture.url);
  // eslint-disable-next-line time/speed -- by hand, to look at the page
  setInterval(() => fixture.tick(Date.now()), 1_000);
}
