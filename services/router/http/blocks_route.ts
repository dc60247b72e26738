/** The route that shows which blocks lie where, as a tree. */
import type { FastifyInstance } from 'fastify';
import { ParameterFailure } from '../api/parameter_failure.ts';
import type { HttpApp } from '../router.ts';
import { compressed } from './compressed.ts';
import { integerOf, refuseUnknown, textOf, type Query } from './query.ts';
import { adminRoute } from './route_access.ts';

const DEFAULT_RUNS = 500;
const MAX_RUNS = 5_000;
const MAX_DEPTH = 1_000;
const KEY = /^[0-9a-f]{16}$/;

/** Adds `/api/blocks` to the server. */
export function addBlocksRoute(app: FastifyInstance, { blocks }: Pick<HttpApp, 'blocks'>): void {
  app.get<{ Querystring: Query }>('/api/blocks', { ...compressed, ...adminRoute }, async ({ query }, reply) => {
    refuseUnknown(query, ['root', 'depth', 'limit']);
    const root = textOf(query, 'root');
    if (root !== undefined && !KEY.test(root))
      throw new ParameterFailure('root: the key of a block, 16 hexadecimal digits as `key` of a run has them', 'root');
    const found = await blocks.look({
      root,
      depth: integerOf(query, 'depth', MAX_DEPTH, { least: 1, most: MAX_DEPTH }),
      limit: integerOf(query, 'limit', DEFAULT_RUNS, { least: 1, most: MAX_RUNS }),
    });
    if (found) return found;
    void reply.status(404);
    throw new ParameterFailure('root: nobody holds this block now; leave it out to see all', 'root', 'not_found');
  });
}
