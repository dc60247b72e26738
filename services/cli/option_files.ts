/** Files that options name, as texts. */
import { readFileSync, statSync } from 'node:fs';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';

/** Returns the text of a file of at most `maxBytes`. @throws ConfigError for one that cannot be read, or has more. */
export function textOf(flag: string, file: string, maxBytes = Infinity): string {
  try {
    const { size } = statSync(file);
    if (size > maxBytes) throw new Error(`it has ${size} bytes, more than ${maxBytes}: make it smaller`);
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new ConfigError(`${flag} ${file}: ${messageOf(error)}`);
  }
}
