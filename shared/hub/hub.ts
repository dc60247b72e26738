/** Models by name: finds them in the local cache that Hugging Face's tools share, and downloads from a hub what is missing; only then its library is loaded. */
import { existsSync, mkdirSync, readFileSync, readdirSync, statSync, statfsSync } from 'node:fs';
import { join } from 'node:path';
import { Backoff } from '../base/backoff.ts';
import { messageOf } from '../base/failure.ts';
import { download, HubError, type Fetch, type RemoteFile } from './download.ts';
import {
  GGUF,
  ggufFiles,
  INDEX,
  missingFile,
  readListing,
  shardsOf,
  sizeOf,
  smallFiles,
  unreadNote,
  type Listed,
} from './model_files.ts';
import { hubHome, tokenOf } from './hub_token.ts';
import { leaseModel, type ModelLeaseOptions } from './model_lease.ts';
import { RepoCache } from './hub_cache.ts';
import { parseRepoName, repoOfSnapshot, type RepoName } from '../model/repo_name.ts';

/**
 * Progress of a group of files that are downloaded together: `doneBytes` and `totalBytes` count all of them, `file` is the current
 * one.
 */
export interface Progress {
  readonly file: string;
  readonly doneBytes: number;
  readonly totalBytes: number;
}

/** Settings and callbacks of a Hub. `environment` holds the variables HF_HOME, HF_TOKEN and others of huggingface_hub. */
export interface HubOptions extends ModelLeaseOptions {
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly fetch: Fetch;
  readonly onProgress?: (progress: Progress) => void;
}

/** A commit of a model in the cache. */
export interface CachedModel {
  readonly repo: string;
  readonly commit: string;
  /** Names by which the commit was asked for. */
  readonly revisions: readonly string[];
  readonly bytes: number;
  readonly path: string;
}

/** Git's name of a commit. */
const COMMIT = /^[0-9a-f]{40}$/;
/** Most attempts of one API request, and the shortest and longest milliseconds between two. */
const MAX_ASKED = 4;
const MIN_WAIT_MS = 1_000;
const MAX_WAIT_MS = 30_000;

/** Client of a Hugging Face hub with its local cache: downloads, lists and removes models. */
export class Hub {
  readonly #options: HubOptions;
  readonly #endpoint: string;
  readonly #token: string;
  readonly #root: string;
  readonly #isOffline: boolean;
  readonly #fetch: Fetch;
  /** Options for the hub library. Its `fetch` adds the token here, because the library accepts tokens of one form only. */
  readonly #api: { readonly hubUrl: string; readonly fetch: Fetch };

  constructor(options: HubOptions) {
    const { environment: env } = options;
    this.#options = options;
    this.#endpoint = (env['HF_ENDPOINT'] || 'https://huggingface.co').replace(/\/+$/, '');
    this.#root = cacheRoot(env);
    this.#token = tokenOf(env);
    this.#isOffline = /^(1|true|yes|on)$/i.test(env['HF_HUB_OFFLINE'] ?? '');
    this.#fetch = options.fetch;
    this.#api = { hubUrl: this.#endpoint, fetch: (url, init) => this.#politely(url, init) };
  }

  /**
   * Returns the path of the model `name`, a folder or a file; downloads what the cache lacks. A path, or any text that names no
   * repository, is returned as it is. @throws HubError when the model cannot be had.
   */
  async pathOf(name: string): Promise<string> {
    // A folder that is there wins over a name.
    const repo = existsSync(name) ? undefined : parseRepoName(name);
    if (!repo) return name;
    if (this.#isOffline) return this.#cached(repo, 'HF_HUB_OFFLINE is set');
    try {
      return await this.pull(repo);
    } catch (error) {
      // A model that was downloaded before is served without its hub.
      if (error instanceof Unreachable) return this.#cached(repo, error.message);
      throw error;
    }
  }

  /**
   * Returns the path of a model that is in the cache, without asking the hub. `why` is the reason, for messages. @throws HubError when
   * a file is missing.
   */
  #cached({ repo, revision, file }: RepoName, why: string): string {
    const cache = new RepoCache(this.#root, repo);
    const commit = cache.commitOf(revision);
    const missing = commit === undefined ? 'it' : missingFile(cache.snapshot(commit), file);
    if (commit === undefined || missing !== undefined)
      throw new HubError(`${why}, and ${missing ?? 'it'} of ${repo}@${revision} is not in ${this.#root}`);
    if (!this.#isOffline) this.#options.onNote?.(`${why}; using what is in the cache`);
    return join(cache.snapshot(commit), file ?? '');
  }

  /** Downloads what the cache lacks of the model, and returns its path. @throws HubError */
  async pull({ repo, revision, file }: RepoName): Promise<string> {
    const commit = await this.#commitOf(repo, revision);
    const cache = new RepoCache(this.#root, repo);
    const path = join(cache.snapshot(commit), file ?? '');
    if (cache.commitOf(revision) === commit && missingFile(cache.snapshot(commit), file) === undefined) return path;
    const files = await this.#filesOf(repo, commit);
    mkdirSync(cache.blob(''), { recursive: true });
    const release = await leaseModel(cache.folder, this.#options);
    try {
      if (file === undefined) await this.#bringRepository(`${repo}@${revision}`, repo, commit, cache, files);
      else await this.#bring(repo, commit, cache, ggufFiles(`${repo}@${revision}`, file, files));
      cache.setCommit(revision, commit);
      return path;
    } finally {
      release();
    }
  }

  /**
   * Downloads the files of a repository that a model's folder needs: first the small ones and the index, then the weights. `name` is
   * for messages. @throws HubError
   */
  async #bringRepository(
    name: string,
    repo: string,
    commit: string,
    cache: RepoCache,
    files: ReadonlyMap<string, Listed>,
  ): Promise<void> {
    const small = smallFiles(files);
    const ggufs = [...files.keys()].filter((path) => GGUF.test(path));
    if (!files.has('config.json') && ggufs.length > 0)
      throw new HubError(`${name} has GGUF files: name one, such as ${repo}:${ggufs[0]} (${ggufs.join(', ')})`);
    if (!files.has('config.json'))
      throw new HubError(`${name} has no config.json: this repository is not a model that Penstock can serve`);
    const whole = files.get('model.safetensors');
    const index = files.get(INDEX);
    if (!whole && !index)
      throw new HubError(`${name} has no safetensors: only models with model.safetensors or ${INDEX} are read`);
    await this.#bring(repo, commit, cache, whole ? small : [...small, ...(index ? [index] : [])]);
    if (whole) {
      await this.#bring(repo, commit, cache, [whole]);
      return;
    }
    const { read, unread } = shardsOf(join(cache.snapshot(commit), INDEX));
    const weights = read.map((path) => {
      const found = files.get(path);
      if (!found) throw new HubError(`${name} has no ${path}, which its ${INDEX} names`);
      return found;
    });
    if (unread.length > 0) this.#options.onNote?.(`${name}: ${unreadNote(unread, files)}`);
    await this.#bring(repo, commit, cache, weights);
  }

  async #commitOf(repo: string, revision: string): Promise<string> {
    const { modelInfo } = await import('@huggingface/hub');
    const options = { name: repo, revision, additionalFields: ['sha' as const], ...this.#api };
    const info = await this.#ask(repo, revision, () => modelInfo(options));
    if (!COMMIT.test(info.sha))
      throw new HubError(`${this.#endpoint} returned no commit of ${repo}@${revision}: check HF_ENDPOINT`);
    return info.sha;
  }

  async #filesOf(repo: string, commit: string): Promise<Map<string, Listed>> {
    const { listFiles } = await import('@huggingface/hub');
    return this.#ask(repo, commit, async () => {
      return readListing((folder) => listFiles({ repo, revision: commit, ...folder, ...this.#api }));
    });
  }

  /** Fetches with the token; repeats the request a few times while the hub is busy (429 or 5xx). */
  async #politely(url: Parameters<Fetch>[0], init: RequestInit = {}): Promise<Response> {
    const { clock, signal, onNote } = this.#options;
    const headers = new Headers(init.headers);
    if (this.#token) headers.set('authorization', `Bearer ${this.#token}`);
    const backoff = new Backoff({ clock, firstMs: MIN_WAIT_MS, mostMs: MAX_WAIT_MS });
    for (let attempt = 1; ; attempt++) {
      const response = await this.#fetch(url, { ...init, headers, ...(signal ? { signal } : {}) });
      if (attempt === MAX_ASKED || (response.status !== 429 && response.status < 500)) return response;
      const seconds = Number(response.headers.get('retry-after') ?? NaN);
      const pauseMs = backoff.lengthen();
      const waitMs = Math.min(MAX_WAIT_MS, Number.isFinite(seconds) ? seconds * 1_000 : pauseMs);
      onNote?.(`the hub answers with status ${response.status}; retrying in ${waitMs / 1_000} s`);
      await response.body?.cancel();
      await clock.sleep(waitMs, signal);
    }
  }

  /** Runs an API request and translates its errors. @throws Unreachable when the hub does not answer, HubError when it refuses. */
  async #ask<T>(repo: string, revision: string, question: () => Promise<T>): Promise<T> {
    try {
      return await question();
    } catch (error) {
      const status = error instanceof Error && 'statusCode' in error ? Number(error.statusCode) : 0;
      if (status === 401 || status === 403)
        throw new HubError(
          `${this.#endpoint} refuses ${repo} (${status}): is it there, are its terms accepted, is HF_TOKEN set?`,
        );
      if (status === 404) throw new HubError(`${this.#endpoint} has no ${repo}@${revision}`);
      throw new Unreachable(`${this.#endpoint} does not answer (${status || messageOf(error)})`, { cause: error });
    }
  }

  async #bring(repo: string, commit: string, cache: RepoCache, files: readonly Listed[]): Promise<void> {
    const { clock, onProgress, onNote, signal } = this.#options;
    const missing = files.filter(({ path }) => !cache.has(commit, path));
    const totalBytes = missing.reduce((sum, file) => sum + sizeOf(file), 0);
    const haveBytes = missing.reduce((sum, file) => sum + Math.min(sizeOf(file), bytesThere(cache, file)), 0);
    refuseWithoutRoom(cache.folder, totalBytes - haveBytes, repo);
    let before = 0;
    for (const file of missing) {
      const etag = etagOf(file);
      const blob = cache.blob(etag);
      const remote: RemoteFile = {
        url: `${this.#endpoint}/${repo}/resolve/${commit}/${file.path}`,
        bytes: sizeOf(file),
        checksum: { kind: file.lfs ? 'sha256' : 'git', hex: etag },
      };
      const onBytes = (bytes: number): void => onProgress?.({ file: file.path, doneBytes: before + bytes, totalBytes });
      if (!existsSync(blob)) {
        await download(remote, blob, {
          fetch: this.#fetch,
          clock,
          token: this.#token,
          onBytes,
          ...(signal ? { signal } : {}),
          onRetry: (reason, inMs) => onNote?.(`${file.path}: ${reason}; trying again in ${inMs / 1_000} s`),
        });
      }
      cache.link(commit, file.path, etag);
      before += remote.bytes;
      onBytes(0);
    }
  }

  /** Returns all commits of all models in the cache. */
  list(): CachedModel[] {
    if (!existsSync(this.#root)) return [];
    return readdirSync(this.#root)
      .filter((name) => name.startsWith('models--') && existsSync(join(this.#root, name, 'snapshots')))
      .flatMap((name) =>
        readdirSync(join(this.#root, name, 'snapshots')).flatMap((commit) => {
          const path = join(this.#root, name, 'snapshots', commit);
          const repo = repoOfSnapshot(path);
          if (repo === undefined) return [];
          const revisions = refsOf(join(this.#root, name, 'refs'), commit);
          return [{ repo, commit, revisions, bytes: bytesOf(path), path }];
        }),
      );
  }

  /** Removes all revisions of a model from the cache, and returns how many bytes they had. @throws HubError when it is not there. */
  remove({ repo }: RepoName): number {
    const bytes = this.list().reduce((sum, one) => sum + (one.repo === repo ? one.bytes : 0), 0);
    const cache = new RepoCache(this.#root, repo);
    if (!existsSync(cache.folder)) throw new HubError(`${repo} is not in ${this.#root}`);
    cache.remove();
    return bytes;
  }
}

/** The hub does not answer, so the cache may serve instead. */
class Unreachable extends HubError {}

function cacheRoot(env: HubOptions['environment']): string {
  return env['HF_HUB_CACHE'] || env['HUGGINGFACE_HUB_CACHE'] || join(hubHome(env), 'hub');
}

function etagOf({ path, oid, lfs }: Listed): string {
  const etag = lfs?.oid ?? oid ?? '';
  if (!/^[0-9a-f]{40,64}$/.test(etag)) throw new HubError(`the hub returned no checksum of ${path}`);
  return etag;
}

/** Returns how many bytes of the file are in the cache, as a blob or a partial download. */
function bytesThere(cache: RepoCache, file: Listed): number {
  const blob = cache.blob(etagOf(file));
  const sizes = [blob, `${blob}.incomplete`].map((path) => statSync(path, { throwIfNoEntry: false })?.size ?? 0);
  return Math.max(...sizes);
}

function refuseWithoutRoom(folder: string, bytes: number, repo: string): void {
  const { bavail, bsize } = statfsSync(folder);
  const free = bavail * bsize;
  if (bytes <= free) return;
  const gib = (count: number): string => `${(count / 2 ** 30).toFixed(1)} GiB`;
  throw new HubError(
    `${repo} needs ${gib(bytes)} more, and ${folder} has ${gib(free)}: make room, or set HF_HUB_CACHE`,
  );
}

function refsOf(folder: string, commit: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .filter((path) => readFileSync(path, 'utf8').trim() === commit)
    .map((path) => path.slice(folder.length + 1));
}

/** Returns the bytes of a snapshot's files; a link whose blob is missing counts as 0. */
function bytesOf(snapshot: string): number {
  return readdirSync(snapshot).reduce(
    (sum, name) => sum + (statSync(join(snapshot, name), { throwIfNoEntry: false })?.size ?? 0),
    0,
  );
}
