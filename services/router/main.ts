/** The router role: OpenAI API, placement, relay, dashboard; hub of the embedded bus. */
import type { StartRole } from '../../shared/node/role.ts';
import { listenHttp } from './http/http_server.ts';
import type { RouterConfig } from './options.ts';
import { startRouter } from './router.ts';

/** Starts the router role with the HTTP server in front. Rejects with an Error when the start fails. */
export const start: StartRole<RouterConfig> = (context) => startRouter(context, listenHttp);
