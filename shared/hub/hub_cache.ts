/**
 * Cache of a hub's files in the layout of `huggingface_hub`, so that both find each other's downloads:
 *
 *   models--ORG--NAME/refs/REVISION          the commit
 *   models--ORG--NAME/blobs/ETAG             bytes of a file; ETAG.incomplete during its download
 *   models--ORG--NAME/snapshots/COMMIT/FILE  links to blobs
 */
import {
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  copyFileSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join, relative, sep } from 'node:path';

const COMMIT = /^[0-9a-f]{40}$/;

/** The cached files of one repository. */
export class RepoCache {
  readonly folder: string;

  constructor(root: string, repo: string) {
    this.folder = join(root, `models--${repo.replace('/', '--')}`);
  }

  /** Returns the commit that a revision named when the hub was last asked; undefined when the cache does not have that commit. */
  commitOf(revision: string): string | undefined {
    if (COMMIT.test(revision)) return existsSync(this.snapshot(revision)) ? revision : undefined;
    const path = this.#ref(revision);
    const commit = existsSync(path) ? readFileSync(path, 'utf8').trim() : '';
    return COMMIT.test(commit) && existsSync(this.snapshot(commit)) ? commit : undefined;
  }

  setCommit(revision: string, commit: string): void {
    if (revision === commit) return;
    const path = this.#ref(revision);
    mkdirSync(dirname(path), { recursive: true });
    const part = `${path}.part`;
    writeFileSync(part, commit);
    renameSync(part, path);
  }

  #ref(revision: string): string {
    return join(this.folder, 'refs', ...revision.split('/'));
  }

  snapshot(commit: string): string {
    return join(this.folder, 'snapshots', commit);
  }

  blob(etag: string): string {
    return join(this.folder, 'blobs', etag);
  }

  /** Whether the snapshot has the file, and its bytes are there. */
  has(commit: string, file: string): boolean {
    return existsSync(join(this.snapshot(commit), file));
  }

  /** Makes a blob appear as `file` in the snapshot of `commit`: by a symbolic link, or a copy where links do not work. */
  link(commit: string, file: string, etag: string): void {
    const path = join(this.snapshot(commit), file);
    mkdirSync(dirname(path), { recursive: true });
    rmSync(path, { force: true });
    const blob = this.blob(etag);
    try {
      symlinkSync(relative(dirname(path), blob).split(sep).join('/'), path);
    } catch {
      // A file system, or a system, without links.
      copyFileSync(blob, `${path}.part`);
      renameSync(`${path}.part`, path);
    }
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}
