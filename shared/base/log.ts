/** Logging: pino to standard error, one JSON object a line; standard output belongs to what a user asked for. */
import { destination, pino, type Logger } from 'pino';

export type Log = Pick<Logger, 'debug' | 'info' | 'warn' | 'error'>;

export const logLevels = ['debug', 'info', 'warn', 'error', 'silent'] as const;

export function createLog(name: string, level: (typeof logLevels)[number]): Log {
  return pino({ name, level }, destination({ fd: 2, sync: true }));
}

export const silentLog: Log = pino({ level: 'silent' });
