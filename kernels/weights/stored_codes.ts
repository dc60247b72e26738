/** Codes of a table as files store them: repacked for devices, or decoded. Reference for kernels/wasm/as/pack_codes.as.ts. */
import { codeTables, isTable, storedExponent, storedIq4Scale, halfOfFile, type TableFormat } from './code_tables.ts';
import { nibblesOfBlock, viewOf } from './stored_blocks.ts';
import { scalesPerRow, type PackedRows } from './weight_format.ts';

/**
 * Stored formats with codes of a table:
 *   mxfp4, iq4    as weight_format.ts has them
 *   mxfp4_pairs   bytes of two neighbouring inputs each, the first in the low nibble; exponents (e8m0) [rows][groups] elsewhere
 *   mxfp4_blocks  32 values: exponent, 16 bytes whose low nibbles are the first 16
 *   iq4_nl        32 values: d f16, then as mxfp4_blocks
 *   iq4_xs        256 values: d f16, two high bits of the scale of each 32 (2 bytes), four low bits of each (4 bytes), then eight times 16
 *                 bytes as mxfp4_blocks; value = d · (scale - 32) · integer
 */
export type CodeFormat = TableFormat | 'mxfp4_pairs' | 'mxfp4_blocks' | 'iq4_nl' | 'iq4_xs';

const TABLE_OF: Readonly<Record<CodeFormat, TableFormat>> = {
  mxfp4: 'mxfp4',
  mxfp4_pairs: 'mxfp4',
  mxfp4_blocks: 'mxfp4',
  iq4: 'iq4',
  iq4_nl: 'iq4',
  iq4_xs: 'iq4',
};

/** Whether the stored format has codes of a table. */
export function isCodes(format: string): format is CodeFormat {
  return Object.hasOwn(TABLE_OF, format);
}

/** Returns the storage format of the devices that holds these codes. */
export function tableOf(format: CodeFormat): TableFormat {
  return TABLE_OF[format];
}

/** Rows of codes; `scales` of mxfp4, iq4 and mxfp4_pairs, others have theirs in the data. */
interface StoredCodes {
  readonly format: CodeFormat;
  readonly data: Uint8Array;
  readonly scales?: Uint8Array;
}

/** Returns rows of `inner` values, a multiple of 32 unless they are packed already, as devices store them; codes are not changed. */
export function codeRows({ format, data, scales }: StoredCodes, numRows: number, inner: number): PackedRows {
  if (isTable(format))
    return {
      data: new Uint32Array(Uint8Array.from(data).buffer),
      scales: new Uint16Array(Uint8Array.from(scales ?? []).buffer),
    };
  const groups = inner / 32;
  const table = TABLE_OF[format];
  const perRow = scalesPerRow(table, inner);
  const out = { data: new Uint32Array(4 * numRows * groups), scales: new Uint16Array(numRows * perRow) };
  const bytes = new Uint8Array(out.scales.buffer);
  const view = viewOf(data);
  for (let row = 0, at = 0; row < numRows; row++) {
    for (let group = 0; group < groups; group++, at++) {
      putCodes(format, view, at, out.data);
      const scale = scaleAt(format, view, scales, at);
      if (table === 'mxfp4') bytes[2 * perRow * row + group] = storedExponent(scale);
      else out.scales[perRow * row + group] = storedIq4Scale(scale);
    }
  }
  return out;
}

/** Decodes whole rows of a file's own layout into `out`, f32; a scale that is infinite or NaN gives zeros. */
export function codeValues({ format, data, scales }: StoredCodes, numValues: number, out: Float32Array): void {
  const view = viewOf(data);
  const words = new Uint32Array(4);
  const table = TABLE_OF[format];
  const integers = codeTables[table];
  for (let group = 0; group * 32 < numValues; group++) {
    putCodes(format, view, group, words, 0);
    const stored = scaleAt(format, view, scales, group);
    const scale = table === 'iq4' ? stored : stored === 255 ? NaN : 2 ** (stored - 128);
    for (let i = 0; i < 32; i++) {
      const code = (words[i >> 3]! >>> (8 * (i & 3) + (i & 4))) & 15;
      out[group * 32 + i] = Number.isFinite(scale) ? scale * integers[code]! : 0;
    }
  }
}

/** Unpacks the codes of a group, in the order of weight_format.ts: four words from out[to] on. */
function putCodes(format: CodeFormat, view: DataView, group: number, out: Uint32Array, to = 4 * group): void {
  switch (format) {
    case 'mxfp4_pairs':
      for (let word = 0; word < 4; word++) out[to + word] = ofPairs(view.getUint32(16 * group + 4 * word, true));
      break;
    case 'mxfp4_blocks':
      nibblesOfBlock(view, 17 * group + 1, out, to);
      break;
    case 'iq4_nl':
      nibblesOfBlock(view, 18 * group + 2, out, to);
      break;
    case 'iq4_xs':
      nibblesOfBlock(view, 136 * (group >> 3) + 8 + 16 * (group & 7), out, to);
      break;
    case 'mxfp4':
    case 'iq4':
      for (let word = 0; word < 4; word++) out[to + word] = view.getUint32(16 * group + 4 * word, true);
  }
}

/** Eight nibbles in order become those of a device's word: inputs 0 to 3 in the low nibbles, 4 to 7 in the high ones. */
function ofPairs(word: number): number {
  const spread = (four: number): number => {
    const pairs = (four | (four << 8)) & 0x00ff00ff;
    return (pairs | (pairs << 4)) & 0x0f0f0f0f;
  };
  return spread(word & 0xffff) | (spread(word >>> 16) << 4);
}

/** Returns the scale of a group of a file's layout: an exponent (e8m0) of MXFP4, else what an integer counts. */
function scaleAt(format: CodeFormat, view: DataView, scales: Uint8Array | undefined, group: number): number {
  if (format === 'mxfp4_pairs') return scales?.[group] ?? 0;
  if (format === 'mxfp4_blocks') return view.getUint8(17 * group);
  if (format === 'iq4_nl') return halfOfFile(view.getUint16(18 * group, true));
  const [block, i] = [136 * (group >> 3), group & 7];
  const low = (view.getUint8(block + 4 + (i >> 1)) >> (4 * (i & 1))) & 15;
  const high = (view.getUint16(block + 2, true) >> (2 * i)) & 3;
  return Math.fround(halfOfFile(view.getUint16(block, true)) * ((low | (high << 4)) - 32));
}
