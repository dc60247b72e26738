/**
 * Machine code that a card's compiler makes of a kernel: registers, occupancy, spills, and for each loop the instructions and the
 * loads in flight.
 */
import { spawnSync } from 'node:child_process';
import { projectPath } from '../support/project.ts';
import type { Card } from './cards.ts';

interface Loop {
  /** Loops around it. */
  readonly depth: number;
  /** Instructions of the loop itself, without those of nested loops. */
  readonly instructions: number;
  /** Vector instructions on RDNA; all instructions on Ada. */
  readonly vector: number;
  readonly matrix: number;
  readonly loads: number;
  /** Before the first wait: loads, and their bytes for a lane. */
  readonly inFlight: number;
  readonly bytesInFlight: number;
  readonly barriers: number;
}

export interface MachineCode {
  readonly registers: number;
  /** Subgroups next to each other: of 32 a SIMD on RDNA, of 48 a multiprocessor on Ada. */
  readonly occupancy: number;
  readonly spills: number;
  readonly workgroupBytes: number;
  readonly all: Loop;
  /** From the outermost to the innermost where they are nested, in the order of the code. */
  readonly loops: readonly Loop[];
}

/** Before the code of each file, on standard error. */
export const MARK = '=== kernel ';

/**
 * Compiles each file for the card and returns its machine code, or the compiler's error. One process compiles all files, because a
 * driver starts slowly.
 */
export function compileFor(card: Card, wgslPaths: readonly string[]): (MachineCode | Error)[] {
  const isAmd = card.name === 'RDNA 3';
  const { stderr } = spawnSync(card.execPath, [projectPath('dist/test/gpu/compile_process.js'), ...wgslPaths], {
    env: {
      ...process.env,
      ...card.env,
      ...(isAmd
        ? { RADV_DEBUG: 'shaders,shaderstats,nocache' }
        : { NAK_DEBUG: 'print', MESA_SHADER_CACHE_DISABLE: '1' }),
    },
    encoding: 'utf8',
    maxBuffer: 1 << 30,
  });
  const texts = stderr.split(MARK).slice(1);
  return wgslPaths.map((_, i) => {
    const text = texts[i] ?? 'ERROR the driver ended the process';
    const error = /^ERROR .*/m.exec(text)?.[0];
    if (error !== undefined) return new Error(error);
    return isAmd ? rdnaCode(text) : adaCode(text);
  });
}

/** Each loop's own lines: without those of the loops within it. From the outermost to the innermost, in the order of the code. */
function loopsOf<T>(
  ends: ReadonlyMap<number, number>,
  lines: readonly T[],
  measure: (own: readonly T[], depth: number) => Loop,
): Loop[] {
  const ranges = [...ends].sort(([a], [b]) => a - b);
  return ranges.map(([first, last]) => {
    const within = ranges.filter(([a, b]) => a >= first && b <= last && (a !== first || b !== last));
    const around = ranges.filter(([a, b]) => a <= first && b >= last && (a !== first || b !== last));
    const own = lines.filter((_, i) => i >= first && i <= last && !within.some(([a, b]) => i >= a && i <= b));
    return measure(own, around.length);
  });
}

function numberAfter(label: string, text: string): number {
  return Number(new RegExp(`^${label}: (\\d+)`, 'm').exec(text)?.[1] ?? NaN);
}

function rdnaCode(text: string): MachineCode {
  const listing = text.slice(text.lastIndexOf('disasm:'));
  const code: string[] = [];
  const labels = new Map<string, number>();
  for (const line of listing.split('\n')) {
    const label = /^(BB\d+):/.exec(line)?.[1];
    if (label !== undefined) labels.set(label, code.length);
    else if (/^\t[a-z]\w+/.test(line)) code.push(line.trim());
  }
  const ends = new Map<number, number>();
  code.forEach((line, i) => {
    const target = labels.get(/^s_c?branch\S* (BB\d+)/.exec(line)?.[1] ?? '');
    if (target !== undefined && target <= i) ends.set(target, Math.max(i, ends.get(target) ?? 0));
  });
  return {
    registers: numberAfter('VGPRs', text),
    occupancy: numberAfter('Subgroups per SIMD', text),
    spills: numberAfter('Spilled VGPRs', text) + numberAfter('Spilled SGPRs', text),
    workgroupBytes: numberAfter('LDS size', text),
    all: rdnaLoop(code, 0),
    loops: loopsOf(ends, code, rdnaLoop),
  };
}

function rdnaLoop(body: readonly string[], depth: number): Loop {
  const count = (pattern: RegExp): number => body.filter((line) => pattern.test(line)).length;
  const isLoad = /^(buffer|global)_load/;
  let [inFlight, bytes, most, mostBytes] = [0, 0, 0, 0];
  for (const line of body) {
    if (isLoad.test(line)) {
      inFlight++;
      bytes += Number(/_[bui](\d+)/.exec(line)?.[1] ?? 32) / 8;
      [most, mostBytes] = [Math.max(most, inFlight), Math.max(mostBytes, bytes)];
    }
    const left = Number(/^s_waitcnt\b.*vmcnt\((\d+)\)/.exec(line)?.[1] ?? NaN);
    if (left < inFlight) [bytes, inFlight] = [(bytes * left) / inFlight, left];
  }
  return {
    depth,
    instructions: body.length,
    vector: count(/^v_/),
    matrix: count(/^v_wmma/),
    loads: count(isLoad),
    inFlight: most,
    bytesInFlight: mostBytes,
    barriers: count(/^s_barrier/),
  };
}

function adaCode(text: string): MachineCode {
  const at = text.lastIndexOf('NAK IR after calc_instr_deps:');
  const end = text.indexOf('Stage: compute', at);
  const blocks: { readonly lines: string[]; next: number[] }[] = [];
  for (const line of text.slice(at, end).split('\n')) {
    const current = blocks.at(-1);
    const close = /^\} -> \[(.*)\]/.exec(line)?.[1];
    if (/^block(?:\.u)? \d+/.test(line)) blocks.push({ lines: [], next: [] });
    else if (close !== undefined && current) current.next = close.split(',').filter(Boolean).map(Number);
    else if (/delay=/.test(line)) current?.lines.push(line.trim());
  }
  const ends = new Map<number, number>();
  blocks.forEach(({ next }, i) => {
    for (const target of next) if (target <= i) ends.set(target, Math.max(i, ends.get(target) ?? 0));
  });
  const stats = text.slice(end);
  return {
    registers: numberAfter('Num GPRs', stats),
    occupancy: numberAfter('Max warps/SM', stats),
    spills: numberAfter('Spills to mem', stats),
    workgroupBytes: NaN,
    all: adaLoop(blocks, 0),
    loops: loopsOf(ends, blocks, adaLoop),
  };
}

function adaLoop(blocks: readonly { readonly lines: readonly string[] }[], depth: number): Loop {
  const lines = blocks.flatMap((block) => block.lines);
  const count = (pattern: RegExp): number => lines.filter((line) => pattern.test(line)).length;
  const open = new Map<string, number[]>();
  let [most, mostBytes] = [0, 0];
  for (const line of lines) {
    // A mask of the scoreboards that it waits for.
    const waits = Number.parseInt(/wt=([01]+)/.exec(line)?.[1] ?? '0', 2);
    for (const board of open.keys()) if ((waits >> Number(board)) & 1) open.delete(board);
    if (!line.includes('ld.global')) continue;
    const board = /wr:(\d)/.exec(line)?.[1] ?? '9';
    open.set(board, [...(open.get(board) ?? []), Number(/\.b(\d+)/.exec(line)?.[1] ?? 32) / 8]);
    const all = [...open.values()].flat();
    [most, mostBytes] = [
      Math.max(most, all.length),
      Math.max(
        mostBytes,
        all.reduce((a, b) => a + b, 0),
      ),
    ];
  }
  return {
    depth,
    instructions: lines.length,
    vector: lines.length,
    matrix: count(/= (hmma|imma)/),
    loads: count(/ld\.global/),
    inFlight: most,
    bytesInFlight: mostBytes,
    barriers: count(/bar\.sync/),
  };
}
