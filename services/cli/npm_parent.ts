/**
 * npm as the parent of `penstock up`. npm forwards a signal to the shell that it started, which may die of the signal and leave its
 * own child running. A cluster that npm started therefore ends when npm, or that shell, ends.
 */
import { readFileSync } from 'node:fs';

/** Names of the shells in which npm may run a script. */
const SHELL = /^(ba|da|a|z|k)?sh$/;

/**
 * Parent of this process when the module is loaded. The parent must be read first: downloading a model may take minutes, and the
 * parent may die meanwhile.
 */
const PARENT = parentOf(process.ppid, '/proc');

/** Whether npm started this process: `npm start`, `npm run`, `npx`. */
export function isStartedByNpm(environment: Readonly<Record<string, string | undefined>>): boolean {
  return environment['npm_lifecycle_event'] !== undefined;
}

/** @returns a function that says whether the parent has died since, or the parent's own parent where the parent is a shell */
export function watchParent(
  ppid: () => number = () => process.ppid,
  proc = '/proc',
  { parent, above } = PARENT,
): () => boolean {
  return () => ppid() !== parent || (above !== undefined && processOf(proc, parent)?.parent !== above);
}

/** Returns the pid of a parent and, in `above`, the pid of the parent's own parent when the parent is a shell. */
export function parentOf(
  parent: number,
  proc: string,
): { readonly parent: number; readonly above: number | undefined } {
  const shell = processOf(proc, parent);
  return { parent, above: shell && SHELL.test(shell.name) ? shell.parent : undefined };
}

/**
 * Reads a process's name and parent from /proc/PID/stat (`PID (NAME) STATE PPID ...`); undefined when the process is gone or the
 * system has no /proc.
 */
function processOf(proc: string, pid: number): { readonly name: string; readonly parent: number } | undefined {
  try {
    const match = /^\d+ \((.*)\) \S+ (\d+) /s.exec(readFileSync(`${proc}/${pid}/stat`, 'utf8'));
    return match ? { name: match[1] ?? '', parent: Number(match[2]) } : undefined;
  } catch {
    return undefined;
  }
}
