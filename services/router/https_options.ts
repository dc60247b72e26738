/** Options of TLS between a router and its clients. */
import { z } from 'zod';
import { option } from '../../shared/base/options.ts';

/** Options of a router that serves HTTPS. */
export const httpsOptions = {
  https_cert: option(
    'Router',
    'FILE',
    z.string(),
    '',
    'certificate (PEM) that clients of the HTTP API are shown, with those of the authorities between it and one that they know; set it with --https-key to serve HTTPS at --bind; both files are read again when they change',
    { isPath: true },
  ),
  https_key: option('Router', 'FILE', z.string(), '', 'key of that certificate (PEM, without a passphrase)', {
    isPath: true,
  }),
} as const;
