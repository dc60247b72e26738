/**
 * Compression of what is asked again and again: `/metrics` and the large answers of `/api/*`. Names of nodes and series repeat in them, so that
 * they become a tenth. The threads of zlib do it, not the event loop. Answers of models are never compressed: they are short, or streams.
 */
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import type { FastifyReply, FastifyRequest } from 'fastify';

const zip = promisify(gzip);
/** Letters of the smallest answer that is compressed. */
const LEAST = 4_096;
/** The lowest level: names that repeat are found by it too, and the router's cores have other work. */
const LEVEL = 1;

/** Returns whether a client takes an answer in gzip, by its `accept-encoding`. */
export function takesGzip(header: string | undefined): boolean {
  return /\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))/.test(header ?? '');
}

/** Options of a route whose answers are compressed. */
export const compressed = {
  onSend: async (request: FastifyRequest, reply: FastifyReply, payload: unknown): Promise<unknown> => {
    if (typeof payload !== 'string' || payload.length < LEAST) return payload;
    const varied = reply.raw.getHeader('vary');
    void reply.header('vary', [varied, 'accept-encoding'].filter((name) => name !== undefined).join(', '));
    if (!takesGzip(request.headers['accept-encoding'])) return payload;
    void reply.header('content-encoding', 'gzip').removeHeader('content-length');
    return zip(payload, { level: LEVEL });
  },
};
