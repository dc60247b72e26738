/** Options of the bus that several routers need. */
import { z } from 'zod';
import { option } from '../base/options.ts';

/** Options of every process that uses NATS. */
export const busOptions = {
  bus: option(
    'Network',
    'URL,...',
    z
      .string()
      .regex(
        /^((nats|tls):\/\/[^\s,]+(,(nats|tls):\/\/[^\s,]+)*)?$/,
        'nats://HOST:PORT or tls://HOST:PORT, several with commas',
      ),
    '',
    'NATS servers, for clusters with several routers; default: the one router is the hub, see --join',
  ),
  bus_user: option('Network', 'NAME', z.string(), '', 'user at the NATS servers'),
  bus_password: option(
    'Network',
    'WORD',
    z.string(),
    '',
    'password of --bus-user; better in the environment or a file than in a flag',
    { isSecret: true },
  ),
  bus_password_file: option(
    'Network',
    'FILE',
    z.string(),
    '',
    'file with that password, on one line; read again at each connection to a NATS server',
    { isPath: true },
  ),
  bus_token: option(
    'Network',
    'TOKEN',
    z.string(),
    '',
    'token of NATS servers that have one for all their clients; better in the environment than in a flag',
    { isSecret: true },
  ),
  bus_nkey: option('Network', 'FILE', z.string(), '', 'file with the seed of an nkey', { isPath: true }),
  bus_credentials: option('Network', 'FILE', z.string(), '', 'credentials file: a JWT and the seed of its nkey', {
    isPath: true,
  }),
  bus_ca: option(
    'Network',
    'FILE',
    z.string(),
    '',
    'authority certificates (PEM) with which a tls:// NATS server is verified',
    { isPath: true },
  ),
  bus_cert: option('Network', 'FILE', z.string(), '', 'certificate that this process shows a tls:// server', {
    isPath: true,
  }),
  bus_key: option('Network', 'FILE', z.string(), '', 'key of that certificate', { isPath: true }),
} as const;
