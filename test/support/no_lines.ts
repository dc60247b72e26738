/** Assertions about lines that should not be there: of logs, of standard error, of a browser's console. */
import assert from 'node:assert/strict';

/** Most lines that a message quotes. */
const MAX_QUOTED = 5;

/**
 * Asserts that there are no lines. The first line of the message quotes them, because the report of a run shows no more of a message.
 * `where`: what else the message says.
 */
export function assertNoLines(lines: readonly string[], where = ''): void {
  const quoted = lines.slice(0, MAX_QUOTED).map((line) => line.replaceAll(/\s*\n\s*/g, ' | '));
  const head = `${lines.length} lines that should not be there${where && ` (${where})`}: ${quoted.join(' | ')}`;
  assert(lines.length === 0, `${head}\n${lines.join('\n')}`);
}

/** Asserts that no line matches, as {@link assertNoLines} does. */
export function assertNoneMatches(lines: readonly string[], pattern: RegExp): void {
  assertNoLines(lines.filter((line) => pattern.test(line)));
}
