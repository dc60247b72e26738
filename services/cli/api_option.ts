/** Option of commands that ask a router over HTTP. */
import { address, option } from '../../shared/base/options.ts';

/** Option that names a router by the address of its HTTP API. */
export const apiOption = {
  api: option('Network', 'HOST:PORT', address, '127.0.0.1:8000', "a router's HTTP address, its --bind"),
} as const;
