/** Command line of `penstock top`. */
import { onOrOff, option } from '../../../shared/base/options.ts';
import { apiOption } from '../api_option.ts';

/** Options of `penstock top`. */
export const topOptions = {
  ...apiOption,
  once: option('Process', '', onOrOff, false, 'print the table once; also where standard output is no terminal'),
} as const;
