/** Steps that recurrent operations are tried with: several segments, states that they begin with and save, and cuts of rows. */
import assert from 'node:assert/strict';
import type { Executable, Segment, SegmentState } from '../../../kernels/device.ts';
import type { Program } from '../../../kernels/program.ts';
import { layoutOfStates } from '../../../kernels/state_layout.ts';
import { close, loaded, noise, type Conformance } from './suite.ts';

const NUM_SLOTS = 9;

/** Rows of a sequence and where its state is; `rows` many. */
export interface Part extends SegmentState {
  readonly rows: number;
}

/** Returns segments of these parts, all of token 0. */
export const segmentsOf = (parts: readonly Part[]): Segment[] =>
  parts.map(({ rows, ...state }) => ({ tokens: new Array<number>(rows).fill(0), start: 0, blockTable: [0, 1], state }));

const rowsOf = (parts: readonly Part[]): number => parts.reduce((sum, { rows }) => sum + rows, 0);

/** The states of all slots, f32. */
async function states(executable: Executable, values: number): Promise<Float32Array[]> {
  const slots = Array.from({ length: NUM_SLOTS }, (_, slot) => slot);
  const outs = slots.map(() => new Uint8Array(4 * values));
  await executable.exportStates(slots, outs);
  return outs.map((out) => new Float32Array(out.buffer));
}

async function setStates(executable: Executable, values: readonly Float32Array[]): Promise<void> {
  await executable.importStates(
    values.map((_, slot) => slot),
    values.map((state) => new Uint8Array(state.buffer.slice(0))),
  );
}

/** A step with beginnings, rows alone, saves in between, and a slot that is read by two and one that is replaced. */
export const mixed: readonly Part[] = [
  { rows: 1, from: 2, saves: [{ rows: 1, slot: 2 }] },
  {
    rows: 19,
    saves: [
      { rows: 1, slot: 3 },
      { rows: 16, slot: 4 },
      { rows: 19, slot: 0 },
    ],
  },
  {
    rows: 3,
    from: 1,
    saves: [
      { rows: 2, slot: 5 },
      { rows: 3, slot: 6 },
    ],
  },
  { rows: 2, from: 1, saves: [] },
  {
    rows: 5,
    from: 8,
    saves: [
      { rows: 1, slot: 8 },
      { rows: 2, slot: 7 },
    ],
  },
];
/** The parts of {@link mixed} with few rows: a device may compute them otherwise. */
export const few: readonly Part[] = mixed.filter(({ rows }) => rows < 10);

/** A recurrence in f64: computes a row's outputs from its inputs, and changes the state. */
export interface Reference {
  readonly width: number;
  readonly outWidth: number;
  readonly stateValues: number;
  /** Values at the beginning of a state that the operation leaves alone. */
  readonly unused: number;
  readonly step: (row: Float32Array, state: number[]) => number[];
}

/** The outputs of a step in f64, and what the slots hold after it. */
function expectedOf(
  { width, step, stateValues, unused }: Reference,
  x: Float32Array,
  parts: readonly Part[],
  before: readonly Float32Array[],
): { readonly out: number[]; readonly after: number[][] } {
  const after = before.map((state) => [...state]);
  const out: number[] = [];
  let row = 0;
  for (const { rows, from, saves } of parts) {
    const state = from === undefined ? new Array<number>(stateValues).fill(0) : [...before[from]!];
    for (let i = 1; i <= rows; i++, row++) {
      out.push(...step(x.subarray(row * width, (row + 1) * width), state));
      for (const save of saves)
        if (save.rows === i) after[save.slot] = [...before[save.slot]!.subarray(0, unused), ...state.slice(unused)];
    }
  }
  return { out, after };
}

/** Loads the program with room for the states of all parts. */
export function load(
  device: Conformance,
  program: Program,
  tensors: Record<string, Float32Array>,
): Promise<Executable> {
  const state = layoutOfStates(program.state!.map(({ planes }) => planes));
  return loaded(device, program, tensors, { state, numStateSlots: NUM_SLOTS });
}

/** Runs `parts` and compares outputs and states with the reference. */
export async function compare(
  executable: Executable,
  reference: Reference,
  parts: readonly Part[],
  write: (rows: Float32Array) => Promise<void>,
  tolerance: number,
): Promise<void> {
  const rows = noise(rowsOf(parts) * reference.width);
  const before = Array.from({ length: NUM_SLOTS }, () => noise(reference.stateValues));
  await setStates(executable, before);
  await write(rows);
  await executable.run(segmentsOf(parts));
  const { out, after } = expectedOf(reference, rows, parts, before);
  close(await executable.read('out', rowsOf(parts)), out, tolerance);
  const found = await states(executable, reference.stateValues);
  const written = new Set(parts.flatMap(({ saves }) => saves.map(({ slot }) => slot)));
  found.forEach((state, slot) => {
    if (written.has(slot)) close(state, after[slot]!, tolerance);
    else assert.deepEqual(state, before[slot], `no segment saves in slot ${slot}`);
  });
}

/** Cuts of 40 rows, and whether other rows are next to them: the same bits (E2). */
const CUTS: readonly { readonly chunk: number; readonly hasOthers: boolean }[] = [
  { chunk: 40, hasOthers: false },
  { chunk: 1, hasOthers: false },
  { chunk: 7, hasOthers: true },
  { chunk: 40, hasOthers: true },
];

/** Returns outputs and the last state of 40 rows, cut in chunks, beginning with slot 1. */
async function bitsOfCuts(
  executable: Executable,
  reference: Reference,
  rows: Float32Array,
  first: Float32Array,
  { chunk, hasOthers }: (typeof CUTS)[number],
  write: (rows: Float32Array) => Promise<void>,
): Promise<Buffer> {
  const { width, outWidth, stateValues, unused } = reference;
  await setStates(
    executable,
    Array.from({ length: NUM_SLOTS }, (_, slot) => (slot === 1 ? first : noise(stateValues))),
  );
  const outs: Buffer[] = [];
  for (let start = 0; start < 40; start += chunk) {
    const count = Math.min(chunk, 40 - start);
    const own = { rows: count, from: start === 0 ? 1 : 0, saves: [{ rows: count, slot: 0 }] };
    const others = hasOthers
      ? [
          { rows: 9, from: 1, saves: [{ rows: 4, slot: 3 }] },
          { rows: 1, saves: [{ rows: 1, slot: 4 }] },
        ]
      : [];
    const parts = [...others, own];
    const numOthers = rowsOf(others);
    await write(
      Float32Array.from([...noise(numOthers * width), ...rows.subarray(start * width, (start + count) * width)]),
    );
    await executable.run(segmentsOf(parts));
    const out = await executable.read('out', numOthers + count);
    outs.push(Buffer.from(out.slice(numOthers * outWidth).buffer));
  }
  const [state] = await states(executable, stateValues);
  return Buffer.concat([...outs, Buffer.from(state!.slice(unused).buffer)]);
}

/** Asserts that outputs and the last state of 40 rows have the same bits in every cut. */
export async function assertSameCuts(
  executable: Executable,
  reference: Reference,
  write: (rows: Float32Array) => Promise<void>,
): Promise<void> {
  const [rows, first] = [noise(40 * reference.width), noise(reference.stateValues)];
  let expected: Buffer | undefined;
  for (const cut of CUTS) {
    const bits = await bitsOfCuts(executable, reference, rows, first, cut, write);
    expected ??= bits;
    assert(bits.equals(expected), `chunks of ${cut.chunk}, ${cut.hasOthers ? 'others next to them' : 'alone'}`);
  }
}
