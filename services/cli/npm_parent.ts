/**
 * npm as the parent of `penstock up`: it hands a signal to the shell that it has started, which may die of it and leave what it runs
 * behind. A cluster that npm started ends when npm, or that shell, does.
 */
import { readFileSync } from 'node:fs';

/** Shells that npm runs a script by. */
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

/** @returns says whether the parent, or the shell's parent where that is one, has died since */
export function watchParent(
  ppid: () => number = () => process.ppid,
  proc = '/proc',
  { parent, above } = PARENT,
): () => boolean {
  return () => ppid() !== parent || (above !== undefined && processOf(proc, parent)?.parent !== above);
}

/** A parent, and its own one where it is a shell. */
export function parentOf(
  parent: number,
  proc: string,
): { readonly parent: number; readonly above: number | undefined } {
  const shell = processOf(proc, parent);
  return { parent, above: shell && SHELL.test(shell.name) ? shell.parent : undefined };
}

/** `PID (NAME) STATE PPID ...`; undefined where there is no such file, or no such system. */
function processOf(proc: string, pid: number): { readonly name: string; readonly parent: number } | undefined {
  try {
    const match = /^\d+ \((.*)\) \S+ (\d+) /s.exec(readFileSync(`${proc}/${pid}/stat`, 'utf8'));
    return match ? { name: match[1] ?? '', parent: Number(match[2]) } : undefined;
  } catch {
    return undefined;
  }
}
