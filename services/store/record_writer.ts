/** Writes a record from the slab into the file of records, sealed under its tenant's key where there is a list of keys. */
import type { BlockKey } from '../../shared/kv/block_key.ts';
import { contentHashOf, isStateRecord, type RecordHeader } from '../../shared/kv/record.ts';
import { recordAad } from './disk_entries.ts';
import type { DiskEntry } from './disk_process.ts';
import type { KeyList } from './key_list.ts';
import type { RecordsFile } from './records_file.ts';
import { Sealer } from './sealed_box.ts';

/** A record, its identity, and the key under which it is found. */
export interface FreshRecord {
  readonly record: Uint8Array;
  readonly header: RecordHeader;
  readonly key: BlockKey;
}

/**
 * Writes a record. Returns its entry, to be committed; undefined when its tenant has no key in the list. @throws Error, with ENOSPC when
 * there is no room for it.
 */
export function writeRecord(
  records: RecordsFile,
  keys: KeyList | undefined,
  { record, header, key }: FreshRecord,
): DiskEntry | undefined {
  const { digest, format, numerics, parent, tenant } = header;
  const sealing = keys?.byTenant(tenant);
  if (keys && !sealing) return undefined;
  const named = { key, digest, format, tenant, bytes: record.length, keyNumber: sealing?.number ?? 0n };
  const at = records.write(record, (place) => sealing && new Sealer(sealing.key, recordAad({ ...named, at: place })));
  return { ...named, isState: isStateRecord(record), numerics, contentHash: contentHashOf(record), parent, at };
}
