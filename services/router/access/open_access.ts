/** Who may ask a router, by its options. */
import { MAX_KEYS_BYTES } from '../../../shared/base/client_keys.ts';
import { ConfigError, isLoopback } from '../../../shared/base/options.ts';
import type { RoleContext } from '../../../shared/node/role.ts';
import { oneCaller, type ResolveCaller } from './caller.ts';
import { hasKey } from './credentials.ts';
import { Keys } from './keys.ts';
import { readKeysFile, type KeyEntry } from './keys_file.ts';
import { Sessions } from './sessions.ts';

/** Options that say who may ask. */
export interface AccessConfig {
  readonly keys: string;
  readonly revoke: 'finish' | 'abort';
  readonly no_auth: boolean;
  readonly allow_priority: boolean;
  /** Name of the cluster, whose routers take each other's log-ins. */
  readonly cluster: string;
}

/** Who may ask a router. */
export interface Access {
  readonly callerOf: ResolveCaller;
  /** Whether a tenant had a limit by the minute when the router started. */
  readonly isLimited: boolean;
  /** Undefined where the router asks for no keys. */
  readonly logIns: { readonly keys: Keys; readonly sessions: Sessions } | undefined;
}

/** @throws ConfigError where a router would answer everybody beyond this machine without having been told so */
export function refuseOpenApi(bind: string, { keys, no_auth: isOpen }: Pick<AccessConfig, 'keys' | 'no_auth'>): void {
  if (keys !== '' && isOpen) throw new ConfigError('--keys and --no-auth exclude one another: leave one out');
  if (keys !== '' || isOpen || isLoopback(bind)) return;
  throw new ConfigError(
    `refusing to listen on ${bind} without keys of clients: everybody who reaches it could use the models and see all requests. ` +
      'Give --keys FILE (`penstock key NAME --tenant T --admin` prints a key and its entry), or --no-auth where something in front asks for keys',
  );
}

/** Dependencies of {@link openAccess}. */
type Context = Pick<RoleContext, 'watchFiles' | 'clock' | 'clusterTokens' | 'newId'> & {
  readonly config: AccessConfig;
  readonly signal: AbortSignal;
};

/**
 * Reads the keys, and again when their file changes. `models`: names that the router serves by its own configuration. @throws ConfigError
 * for a file that cannot be used
 */
export function openAccess(
  { config, watchFiles, clock, clusterTokens, newId, signal }: Context,
  models: readonly string[],
): Access {
  const { keys: file, cluster } = config;
  if (file === '') return { callerOf: oneCaller(config), isLimited: false, logIns: undefined };
  const read = ([text = '']: readonly string[]): readonly KeyEntry[] => readKeysFile(file, text, models);
  const shown = ({ length }: readonly KeyEntry[]): object => ({ used: `${length} keys` });
  const effect = 'requests that begin now are judged by it';
  const files = { name: 'file of keys', files: [file], maxBytes: MAX_KEYS_BYTES, read, shown, effect };
  const entries = watchFiles(files, '--keys', signal);
  const keys = new Keys(entries.value, config.revoke === 'abort');
  entries.onReplace((value) => {
    keys.replace(value);
  });
  // A cluster of one machine may have no token: then a log-in holds at this router, until it ends.
  const ownSecret = newId() + newId();
  const sessions = new Sessions({ keys, cluster, secrets: () => clusterTokens.value || ownSecret, clock });
  const callerOf: ResolveCaller = (asking) => {
    const isWithKey = hasKey(asking.headers);
    return (isWithKey ? undefined : sessions.callerOf(asking.headers)) ?? keys.callerOf(asking);
  };
  return { callerOf, isLimited: entries.value.some(isLimitedByMinute), logIns: { keys, sessions } };
}

function isLimitedByMinute({ limits }: KeyEntry): boolean {
  return limits?.requests_per_minute !== undefined || limits?.tokens_per_minute !== undefined;
}
