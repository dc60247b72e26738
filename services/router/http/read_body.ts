/**
 * Receives the body of an HTTP request within the limits of api/bodies.ts. A refused body is still read, for clients that look for
 * an answer only after sending all of it, up to MAX_DROPPED_BYTES: a longer one gets the error before its end.
 */
import type { IncomingMessage } from 'node:http';
import { asFailure, Failure } from '../../../shared/base/failure.ts';
import type { Bodies, Body } from '../api/bodies.ts';
import { isAsking, MAX_DROPPED_BYTES, wantBody } from './unwanted_bodies.ts';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Whether the handler receives the request body. Other routes discard theirs. */
    takesBody?: boolean;
  }
}

/**
 * Receives a body; `declared` is its content-length header. Rejects with Failure `overloaded`, an Error with status 413 for a body
 * over the limit, or Failure `cancelled` when the client leaves.
 */
export function readBody(bodies: Bodies, payload: IncomingMessage, declared: string | undefined): Promise<Body> {
  return new Promise((resolve, reject) => {
    const refuse = (error: unknown): void => {
      payload.off('data', add);
      payload.off('end', end);
      const answer = (): void => {
        reject(error instanceof Error ? error : asFailure(error));
      };
      let numDropped = 0;
      payload.on('data', (chunk: Buffer) => {
        numDropped += chunk.length;
        if (numDropped > MAX_DROPPED_BYTES) answer();
      });
      payload.once('end', answer);
      if (payload.complete || isAsking(payload)) answer();
    };
    const add = (chunk: Buffer): void => {
      try {
        bodySlot?.add(chunk);
      } catch (error) {
        refuse(error);
      }
    };
    const end = (): void => {
      if (bodySlot) resolve(bodySlot.end());
    };
    let bodySlot: ReturnType<Bodies['begin']> | undefined;
    try {
      bodySlot = bodies.begin(Number(declared ?? 0));
    } catch (error) {
      refuse(error);
      return;
    }
    wantBody(payload);
    payload.on('data', add);
    payload.once('end', end);
    payload.once('close', () => {
      if (payload.complete) return;
      bodySlot.drop();
      reject(new Failure('cancelled', 'the client left before its request had arrived'));
    });
  });
}
