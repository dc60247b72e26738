/**
 * Names of models: a path of a folder or file, a repository of a hub (`org/name[@revision]`), or one of its files
 * (`org/name[@revision]:file.gguf`).
 */

/** A hub's repository, a revision of it and, for GGUF, one of its files. */
export interface RepoName {
  /** `org/name`, or one word for a few old ones. */
  readonly repo: string;
  /** A branch, a tag or a commit. */
  readonly revision: string;
  /** A GGUF file of it, the first where a model is split; undefined: the model is the repository. */
  readonly file?: string;
}

const WORD = '[A-Za-z0-9][A-Za-z0-9._-]{0,95}';
const FILE = '[A-Za-z0-9][A-Za-z0-9._/-]{0,255}\\.gguf';
const PATTERN = new RegExp(`^(${WORD}/${WORD})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{0,255}))?(?::(${FILE}))?$`);

/** Parses the name of a repository. Returns undefined for other text, such as a path. */
export function parseRepoName(text: string): RepoName | undefined {
  const [, repo, revision = 'main', file] = PATTERN.exec(text) ?? [];
  if (repo === undefined || repo.includes('..') || repo.includes('--') || revision.includes('..')) return undefined;
  if (file?.split('/').some((part) => part === '' || part === '..')) return undefined;
  return { repo, revision, ...(file === undefined ? {} : { file }) };
}

/** Returns the repository of a snapshot folder in the hub's cache; undefined for any other folder. */
export function repoOfSnapshot(path: string): string | undefined {
  const [, folder] = /[\\/]models--([^\\/]+)[\\/]snapshots[\\/][0-9a-f]{40}$/.exec(path) ?? [];
  return folder?.replace('--', '/');
}
