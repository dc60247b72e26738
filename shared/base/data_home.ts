/** Folder of a user for what outlives a process: of stores, and of local clusters. */
import { homedir } from 'node:os';
import { join } from 'node:path';

/** Path of this user's data folder: `$XDG_DATA_HOME/penstock`, or `~/.local/share/penstock`. It may not exist. */
export const dataHome = join(process.env['XDG_DATA_HOME'] ?? join(homedir(), '.local', 'share'), 'penstock');
