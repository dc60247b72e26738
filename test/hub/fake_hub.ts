/** A server with the routes of a hub, which breaks as it is told to. */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';

export const COMMIT = 'c0ffee'.padEnd(40, '0');

/** Response to the next request for a file. */
export type Fault =
  | { readonly kind: 'cut'; readonly after: number }
  | { readonly kind: 'status'; readonly status: number; readonly retryAfter?: string }
  | { readonly kind: 'wrong' }
  | { readonly kind: 'whole' };

export class FakeHub {
  readonly #server: Server;
  readonly #files = new Map<string, Buffer>();
  /** Faults of the next requests for each file, in order; a file without any is served as it is. */
  readonly faults = new Map<string, Fault[]>();
  /** Statuses for the next file listings, in order. */
  readonly listStatuses: number[] = [];
  readonly requests: {
    readonly path: string;
    readonly range: string | undefined;
    readonly token: string | undefined;
  }[] = [];
  /** Token that `authorization` must carry; undefined accepts any. */
  token: string | undefined;
  commit = COMMIT;

  constructor(folder: string, more: Readonly<Record<string, string>> = {}) {
    for (const name of readdirSync(folder)) this.#files.set(name, readFileSync(join(folder, name)));
    for (const [name, text] of Object.entries(more)) this.#files.set(name, Buffer.from(text));
    this.#server = createServer((request, response) => {
      this.#answer(request, response);
    });
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  close(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  numRequests(file: string): number {
    return this.requests.filter(({ path }) => path.endsWith(`/${file}`)).length;
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const [path = ''] = (request.url ?? '').split('?');
    const { range, authorization } = request.headers;
    this.requests.push({ path, range, token: authorization });
    if (this.token !== undefined && authorization !== `Bearer ${this.token}`) {
      response.writeHead(401).end('{"error":"no"}');
      return;
    }
    const [, file] = /^\/org\/name\/resolve\/[0-9a-f]{40}\/(.+)$/.exec(path) ?? [];
    if (file !== undefined) {
      this.#give(file, range, response);
      return;
    }
    const status = this.listStatuses.shift();
    if (status !== undefined) response.writeHead(status, { 'retry-after': '0' }).end('{"error":"busy"}');
    else if (/^\/api\/models\/org\/name\/revision\/(main|v1)$/.test(path))
      response
        .writeHead(200, { 'content-type': 'application/json' })
        .end(JSON.stringify({ _id: '1', id: 'org/name', sha: this.commit }));
    else if (path.startsWith(`/api/models/org/name/tree/${this.commit}`)) {
      const folder = path.slice(`/api/models/org/name/tree/${this.commit}`.length).replace(/^\//, '');
      response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(this.#list(folder)));
    } else response.writeHead(404).end('{"error":"not found"}');
  }

  /** Lists files with checksums like the hub: large files by SHA-256, others by git's SHA-1 of the blob. */
  #list(folder: string): object[] {
    const inside = [...this.#files].filter(([path]) => folder === '' || path.startsWith(`${folder}/`));
    const isDeeper = (path: string): boolean => path.slice(folder === '' ? 0 : folder.length + 1).includes('/');
    const folders = new Set(inside.flatMap(([path]) => (isDeeper(path) ? [path.slice(0, path.lastIndexOf('/'))] : [])));
    const entries = [...folders].map((path) => ({ type: 'directory', path, size: 0, oid: 'd'.repeat(40) }));
    const files = inside
      .filter(([path]) => !isDeeper(path))
      .map(([path, bytes]) => {
        const oid = createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
        const entry = { type: 'file', path, size: bytes.length, oid };
        if (!path.endsWith('.safetensors')) return entry;
        const lfs = { oid: createHash('sha256').update(bytes).digest('hex'), size: bytes.length, pointerSize: 134 };
        return { ...entry, lfs };
      });
    return [...entries, ...files];
  }

  #give(file: string, range: string | undefined, response: ServerResponse): void {
    const bytes = this.#files.get(file);
    if (!bytes) {
      response.writeHead(404).end();
      return;
    }
    const fault = this.faults.get(file)?.shift() ?? { kind: 'whole' };
    if (fault.kind === 'status') {
      response.writeHead(fault.status, fault.retryAfter === undefined ? {} : { 'retry-after': fault.retryAfter }).end();
      return;
    }
    const from = Number(/^bytes=(\d+)-$/.exec(range ?? '')?.[1] ?? 0);
    const rest = Buffer.from(bytes.subarray(from));
    if (fault.kind === 'wrong') rest[0]! ^= 1;
    response.writeHead(from > 0 ? 206 : 200, { 'content-length': rest.length });
    if (fault.kind === 'cut')
      // eslint-disable-next-line time/speed -- a cut may come at any moment after these bytes
      response.write(rest.subarray(0, fault.after), () => setTimeout(() => response.destroy(), 30));
    else response.end(rest);
  }
}
