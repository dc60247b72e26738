/** Logging with pino to standard error, one JSON object per line; standard output is reserved for a command's results. */
import { destination, pino, type Logger } from 'pino';
import type { LogLevel } from './log_levels.ts';

/** Log with the four levels that Penstock writes. */
export type Log = Pick<Logger, 'debug' | 'info' | 'warn' | 'error'>;

/** Creates a log that writes entries of `level` and above to standard error, synchronously. `name` is in every entry. */
export function createLog(name: string, level: LogLevel): Log {
  return pino({ name, level }, destination({ fd: 2, sync: true }));
}

/** Log that writes nothing. */
export const silentLog: Log = pino({ level: 'silent' });
