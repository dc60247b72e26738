/** Removes files from the page cache, so that a benchmark meets them as a first reader does. */
import { execFileSync } from 'node:child_process';

/** The file's pages leave the page cache: GNU dd knows how. What a virtual machine's host remembers of its disk stays. */
export function letGo(path: string): void {
  execFileSync('sync', [path]);
  execFileSync('dd', [`if=${path}`, 'iflag=nocache', 'count=0'], { stdio: 'ignore' });
}
