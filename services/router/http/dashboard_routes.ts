/** The dashboard's files under `/dashboard`, as config/build.js bundled them. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { takesGzip } from './compressed.ts';
import { adminRoute, openRoute } from './route_access.ts';

/** Path, file and content type of all that the page loads. */
const FILES = [
  ['/dashboard', 'index.html', 'text/html; charset=utf-8'],
  ['/dashboard/app.js', 'app.js', 'text/javascript; charset=utf-8'],
  ['/dashboard/app.css', 'app.css', 'text/css; charset=utf-8'],
  ['/dashboard/icon.svg', 'icon.svg', 'image/svg+xml'],
] as const;

/** Headers of every file: the page loads from its own router only, runs no inline script, and is in no frame. */
const HEADERS = {
  'content-security-policy': "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  // A browser asks each time whether the file is the one that it has: after an update of the router it has the new page.
  'cache-control': 'no-cache',
  vary: 'accept-encoding',
};

/** Adds the dashboard and its files. Each has an ETag; a browser that has the file gets status 304 without a body. */
export function addDashboardRoutes(app: FastifyInstance): void {
  const folder = new URL('../../dashboard/', import.meta.url);
  for (const [path, name, type] of FILES) {
    const body = readFileSync(new URL(name, folder));
    const zipped = gzipSync(body, { level: 9 });
    const etag = `"${createHash('sha256').update(body).digest('base64url').slice(0, 22)}"`;
    app.get(path, adminRoute, (request, reply) => {
      void reply.headers({ ...HEADERS, etag }).type(type);
      if (request.headers['if-none-match'] === etag) return reply.status(304).send();
      return sendBody(request, reply, body, zipped);
    });
  }
  app.get('/', openRoute, (_request, reply) => reply.redirect('/dashboard'));
}

function sendBody(request: FastifyRequest, reply: FastifyReply, body: Buffer, zipped: Buffer): FastifyReply {
  return takesGzip(request.headers['accept-encoding'])
    ? reply.header('content-encoding', 'gzip').send(zipped)
    : reply.send(body);
}
