/** Slots for recurrent states: what is imported is exported, whole or by layers, and copies take no other slot along. */
import assert from 'node:assert/strict';
import type { Executable } from '../../../kernels/device.ts';
import type { Program } from '../../../kernels/program.ts';
import { bytesOfLayers } from '../../../kernels/kv_layout.ts';
import { slotRecord, layoutOfStates } from '../../../kernels/state_layout.ts';
import { casesOf, loaded, noise, type Conformance } from './suite.ts';

/** Values of the planes of each layer: one without recurrence, one whose planes have an odd number of values. */
const PLANES = [[12, 256], [], [9, 64, 5], [12, 256]];
const NUM_SLOTS = 7;
const layout = layoutOfStates(PLANES);

const program: Pick<Program, 'operations' | 'buffers' | 'kv' | 'state'> = {
  operations: [{ kind: 'soft_cap', x: 'x', cap: 30 }],
  buffers: { x: { rows: 'rows', width: 8 } },
  kv: PLANES.map((planes) => ({ planes: planes.length > 0 ? [] : [16, 16] })),
  state: PLANES.map((planes) => ({ planes })),
};

const all = Array.from({ length: NUM_SLOTS }, (_, slot) => slot);

/** Returns the states of all slots, as a device exports them. */
async function statesOf(executable: Executable, slotBytes: number): Promise<Buffer[]> {
  const slots = Array.from({ length: executable.numStateSlots }, (_, slot) => slot);
  const outs = slots.map(() => Buffer.from(new SharedArrayBuffer(slotBytes)));
  await executable.exportStates(slots, outs);
  return outs;
}

function randomState(): Buffer {
  return Buffer.from(noise(layout.slotBytes / 4).buffer);
}

export function stateSlotsConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name } = device;
  const open = (): Promise<Executable> => loaded(device, program, {}, { state: layout, numStateSlots: NUM_SLOTS });

  test(`${name}: states come out of their slots as they went in, layer by layer too`, async () => {
    const executable = await open();
    assert.equal(executable.numStateSlots, NUM_SLOTS);
    assert((await statesOf(executable, layout.slotBytes)).every((state) => state.every((byte) => byte === 0)));
    const states = all.map(randomState);
    await executable.importStates(all.toReversed(), states.toReversed());
    assert.deepEqual(await statesOf(executable, layout.slotBytes), states);
    // Layers 1 and 2 of two slots, in one call.
    const range = { firstLayer: 1, numLayers: 2 };
    const { at, bytes } = bytesOfLayers(slotRecord(layout), range);
    const parts = [3, 0].map(() => Buffer.from(noise(bytes / 4).buffer));
    await executable.importStates([3, 0], parts, range);
    parts[0]!.copy(states[3]!, at);
    parts[1]!.copy(states[0]!, at);
    assert.deepEqual(await statesOf(executable, layout.slotBytes), states);
    await assert.rejects(async () => executable.importStates([1], [Buffer.alloc(bytes - 4)], range), /bytes, not/);
    await executable.close();
  });

  test(`${name}: copyStates copies all layers of states, one to several, and no other`, async () => {
    const executable = await open();
    const states = all.map(randomState);
    await executable.importStates(all, states);
    executable.copyStates([5, 1, 5], [0, 6, 2]);
    const expected = [5, 1, 5, 3, 4, 5, 1].map((slot) => states[slot]);
    assert.deepEqual(await statesOf(executable, layout.slotBytes), expected);
    assert.throws(() => {
      executable.copyStates([0], [NUM_SLOTS]);
    }, /7 state slots/);
    await executable.close();
  });

  test(`${name}: a segment without its state, with a slot that does not exist, or with one that another writes, is refused`, async () => {
    const executable = await open();
    const segment = { tokens: [0, 0], start: 0, blockTable: [0] };
    const save = (slot: number, rows = 2): { saves: { rows: number; slot: number }[] } => ({ saves: [{ rows, slot }] });
    await executable.run([{ ...segment, state: { from: 1, ...save(1) } }]);
    await executable.run([
      { ...segment, state: { from: 1, ...save(2) } },
      { ...segment, state: { from: 1, ...save(3, 1) } },
    ]);
    for (const [batch, message] of [
      [[segment], /says where its state is/],
      [[{ ...segment, state: save(NUM_SLOTS) }], /7 state slots/],
      [[{ ...segment, state: { from: -1, saves: [] } }], /7 state slots/],
      [[{ ...segment, state: save(1, 3) }], /after 3 of 2 rows/],
      [[{ ...segment, state: { saves: [...save(1, 2).saves, ...save(2, 1).saves] } }], /after 1 of 2 rows/],
      [
        [
          { ...segment, state: save(1) },
          { ...segment, state: { from: 1, ...save(2) } },
        ],
        /which another segment of the step writes/,
      ],
      [
        [
          { ...segment, state: save(1) },
          { ...segment, state: save(1) },
        ],
        /two states of a step/,
      ],
    ] as const)
      await assert.rejects(async () => executable.run(batch), message);
    await executable.close();
  });

  test(`${name}: slots that do not fit are refused with the bytes that they need`, async () => {
    const large = layoutOfStates(PLANES.map((planes) => (planes.length > 0 ? [2 ** 24] : [])));
    const load = loaded(device, program, {}, { state: large, numStateSlots: 2 ** 20 });
    await assert.rejects(load, { name: 'DeviceError', message: /state slots.*201326592\.0 MiB/ });
  });
}
