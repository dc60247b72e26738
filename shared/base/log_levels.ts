/** Levels of the log, apart from the log itself: option tables name them, and need no logger. */

/** Levels that a user can choose, most verbose first; `silent` writes nothing. */
export const logLevels = ['debug', 'info', 'warn', 'error', 'silent'] as const;

/** Name of a level. */
export type LogLevel = (typeof logLevels)[number];
