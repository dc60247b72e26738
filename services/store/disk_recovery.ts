/** Reads the entries that the disk process has found in its environment. */
import type { DiskChild } from './disk_child.ts';
import { decodeEntry, placeOf } from './disk_entries.ts';
import type { DiskEntry, StoredEntry } from './disk_process.ts';
import type { KeyList } from './key_list.ts';

/**
 * Returns the entries that an opening has found, least recently used first. Those that are of no use are removed: their tenant was forgotten,
 * or they are not authentic. @throws DiskProcessDeath
 */
export async function recoverEntries(
  child: DiskChild,
  numEntries: number,
  keys: KeyList | undefined,
): Promise<DiskEntry[]> {
  const found: StoredEntry[] = [];
  while (found.length < numEntries) found.push(...(await child.call('entries', found.length)));
  const entries = found.flatMap((stored) => decodeEntry(stored, keys) ?? []);
  if (entries.length === found.length) return entries;
  const known = new Set(entries.map(({ at }) => at));
  const unknown = found.map(({ id }) => id).filter((id) => !known.has(placeOf(id)));
  await child.call('remove', unknown);
  return entries;
}
