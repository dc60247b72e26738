/** Groups of routes, each in a scope of the server: with hooks and a form of errors of its own, and added in the order of the calls. */
import type { FastifyInstance } from 'fastify';

/** Adds routes in a scope of their own. What `add` throws ends the start of the server. */
export function inScope(app: FastifyInstance, add: (scope: FastifyInstance) => void): void {
  void app.register((scope, _options, done) => {
    try {
      add(scope);
      done();
    } catch (error) {
      done(error as Error);
    }
  });
}
