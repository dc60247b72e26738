/** The file of --bus-password-file: the password of --bus-user, alone. */
import { ConfigError } from '../../shared/base/options.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import { textOf } from './option_files.ts';

/**
 * Returns the password of --bus-password, or the present one of its file. The file is read at each call, so that another text in it counts at the next
 * connection. @throws ConfigError where both options are set, or the file cannot be read or has no password, or more than one line
 */
export function busPasswordOf(config: Pick<ProcessConfig, 'bus_password' | 'bus_password_file'>): string {
  const { bus_password: password, bus_password_file: file } = config;
  if (file === '') return password;
  if (password !== '')
    throw new ConfigError(
      'set either --bus-password-file or PENSTOCK_BUS_PASSWORD (--bus-password), not both: only one of them can be right',
    );
  const found = textOf('--bus-password-file', file).trim();
  if (found === '')
    throw new ConfigError(`--bus-password-file ${file} has no password: write the password of --bus-user into it`);
  if (/[\r\n]/.test(found))
    throw new ConfigError(`--bus-password-file ${file} has several lines: it takes one password, on one line`);
  return found;
}
