/** Logging with pino to standard error, one JSON object per line; standard output is reserved for a command's results. */
import { destination, pino, type Logger } from 'pino';

/** Log with the four levels that Penstock writes. */
export type Log = Pick<Logger, 'debug' | 'info' | 'warn' | 'error'>;

/** Levels that a user can choose, most verbose first; `silent` writes nothing. */
export const logLevels = ['debug', 'info', 'warn', 'error', 'silent'] as const;

/** Creates a log that writes entries of `level` and above to standard error, synchronously. `name` is in every entry. */
export function createLog(name: string, level: (typeof logLevels)[number]): Log {
  return pino({ name, level }, destination({ fd: 2, sync: true }));
}

/** Log that writes nothing. */
export const silentLog: Log = pino({ level: 'silent' });
