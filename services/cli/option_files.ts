/** Files that options name, as texts. */
import { readFileSync } from 'node:fs';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';

/** @throws ConfigError for a file that cannot be read. */
export function textOf(flag: string, file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    throw new ConfigError(`${flag} ${file}: ${messageOf(error)}`);
  }
}
