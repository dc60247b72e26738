/** Selects the files of a repository that make a model. */
import { existsSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { messageOf } from '../base/failure.ts';
import { ggufParts } from '../model/gguf/split_name.ts';
import { dividedShards, type UnreadShard } from '../model/left_out.ts';
import { NAMED_TEMPLATES } from '../model/text_files.ts';
import { HubError } from './download.ts';

/** Files of a model's folder that are read, besides its weights and templates by name. */
const SMALL_FILES = [
  'config.json',
  'generation_config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'chat_template.jinja',
];
/** Matches the path of a chat template by name. */
const NAMED_TEMPLATE = new RegExp(`^${NAMED_TEMPLATES}/[\\w-][\\w.-]*\\.jinja$`);

/** Returns the files of a model's folder that are read besides its weights, of those that the hub lists. */
export function smallFiles(files: ReadonlyMap<string, Listed>): Listed[] {
  const named = [...files.values()].filter(({ path }) => NAMED_TEMPLATE.test(path));
  return [...SMALL_FILES.flatMap((path) => files.get(path) ?? []), ...named];
}
/** Name of the index, which maps each tensor to one of several safetensors files. */
export const INDEX = 'model.safetensors.index.json';
/** Matches the path of a GGUF file. */
export const GGUF = /\.gguf$/;
const SHARD = /^[\w.-]+\.safetensors$/;

/** A file as the hub lists it. `oid` is git's SHA-1 of the blob; `lfs` has SHA-256 and size of a file in Git LFS. */
export interface Listed {
  readonly path: string;
  readonly size: number;
  readonly oid?: string;
  readonly lfs?: { readonly oid: string; readonly size: number };
}

/** A file or folder as the hub lists it. */
type Entry = Listed & { readonly type: string };

/**
 * Returns the files of a repository by path, from listings of its folders: the first one and that of chat templates by name, since others
 * hold nothing that is read.
 */
export async function readListing(
  list: (folder: { readonly path?: string }) => AsyncIterable<Entry>,
): Promise<Map<string, Listed>> {
  const files = new Map<string, Listed>();
  const folders = new Set<string>();
  const read = async (folder: { readonly path?: string }): Promise<void> => {
    for await (const entry of list(folder)) {
      if (entry.type === 'file') files.set(entry.path, entry);
      else folders.add(entry.path);
    }
  };
  await read({});
  if (folders.has(NAMED_TEMPLATES)) await read({ path: NAMED_TEMPLATES });
  return files;
}

/** Returns the bytes of a file. */
export function sizeOf({ size, lfs }: Listed): number {
  return lfs?.size ?? size;
}

/** Returns a clause for the user about the shards that stay on the hub, and their bytes; `files` is the hub's list. */
export function unreadNote(unread: readonly UnreadShard[], files: ReadonlyMap<string, Listed>): string {
  const bytes = unread.reduce((sum, { file }) => {
    const listed = files.get(file);
    return sum + (listed ? sizeOf(listed) : 0);
  }, 0);
  const parts = new Set(unread.flatMap((shard) => shard.parts));
  const count = `${unread.length} file${unread.length === 1 ? '' : 's'}`;
  return `${count} with nothing but ${[...parts].join(' and ')}, ${(bytes / 2 ** 20).toFixed(1)} MiB, left on the hub: these parts are not served`;
}

/**
 * Returns the safetensors files that an index lists: those to read, and those with nothing but parts that are not served. @throws HubError
 * for an unreadable index, or one that names a file outside its folder.
 */
export function shardsOf(path: string): ReturnType<typeof dividedShards> {
  let map: unknown;
  try {
    map = (JSON.parse(readFileSync(path, 'utf8')) as { weight_map?: unknown }).weight_map;
  } catch (cause) {
    throw new HubError(`${path} is no index: ${messageOf(cause)}`, { cause });
  }
  const entries = typeof map === 'object' && map !== null ? Object.entries(map as Record<string, unknown>) : [];
  const weightMap = Object.fromEntries(
    entries.map(([tensor, name]): [string, string] => {
      if (typeof name !== 'string' || !SHARD.test(name) || name !== basename(name))
        throw new HubError(`${path} names ${JSON.stringify(name)}, which is no file of the model`);
      return [tensor, name];
    }),
  );
  return dividedShards(weightMap);
}

/** Returns the files of the model that begins with the GGUF file `file`, which may be split. @throws HubError when one is missing. */
export function ggufFiles(name: string, file: string, files: ReadonlyMap<string, Listed>): Listed[] {
  return partsOf(file).map((path) => {
    const found = files.get(path);
    if (found) return found;
    const others = [...files.keys()].filter((other) => GGUF.test(other)).join(', ');
    throw new HubError(`${name} has no ${path}; its GGUF files are: ${others || 'none'}`);
  });
}

/** Returns the paths of all files of a split GGUF model. @throws HubError when `file` is not the first of them. */
function partsOf(file: string): string[] {
  try {
    return ggufParts(file);
  } catch (cause) {
    throw new HubError(messageOf(cause), { cause });
  }
}

/**
 * Returns the first file that a snapshot lacks to be run, or undefined when it is complete. `file` is the GGUF file when the model is
 * one. @throws HubError for a damaged index or a name that is not a model's first file.
 */
export function missingFile(snapshot: string, file: string | undefined): string | undefined {
  if (file !== undefined) return partsOf(file).find((path) => !existsSync(join(snapshot, path)));
  if (!existsSync(join(snapshot, 'config.json'))) return 'config.json';
  if (existsSync(join(snapshot, 'model.safetensors'))) return undefined;
  if (!existsSync(join(snapshot, INDEX))) return 'model.safetensors';
  return shardsOf(join(snapshot, INDEX)).read.find((name) => !existsSync(join(snapshot, name)));
}
