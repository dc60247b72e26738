/** Files of a role that are read again when they change, such as the keys of clients. */
import type { Clock } from '../../shared/base/clock.ts';
import { Current } from '../../shared/base/current.ts';
import type { Log } from '../../shared/base/log.ts';
import type { WatchFiles } from '../../shared/node/role.ts';
import { textOf } from './option_files.ts';
import { regularText, RenewedFiles, type ReadText } from './renewed_files.ts';

/** Milliseconds between two looks: two of them see a change, within two seconds. */
const LOOK_MS = 500;

/** Returns the {@link WatchFiles} of this machine. `readText`: of the machine, unless a test reads. */
export function watchFilesWith(clock: Clock, log: Log, readText: ReadText = regularText): WatchFiles {
  return (files, flag, signal) => {
    const texts = files.files.map((file) => textOf(flag, file, files.maxBytes));
    const current = new Current(files.read(texts, undefined));
    void new RenewedFiles(files, current, log, readText, texts).watch(clock, signal, LOOK_MS);
    return current;
  };
}
