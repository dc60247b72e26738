/** KV that a request leaves behind, for layers of any size: places, frames, windows, states. Budget: 5 s. */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { codecNamed, codecOf } from '../../shared/kv/codec.ts';
import { encodeFrameHeader, FrameVerifier } from '../../shared/kv/frame_header.ts';
import {
  blocksOutsideWindow,
  evictionClass,
  kvSpec,
  needed,
  recordBytes,
  type KvSpec,
  type LayerKv,
} from '../../shared/kv/kv_spec.ts';
import { framesIn, readHeader, sealRecord, stateHashOf, verifyRecord } from '../../shared/kv/record.ts';

const paged = (...planes: number[]): LayerKv => ({ kind: 'paged', planes, window: 0 });
const windowed = (window: number, ...planes: number[]): LayerKv => ({ kind: 'window', planes, window });
const recurrent = (...planes: number[]): LayerKv => ({ kind: 'state', planes, window: 0 });
const digest = 'ab'.repeat(16) as Digest;
const [hash] = chainOf(digest, 4, [1, 2, 3, 4]);

/** A layer of a kind that models have, of any widths. */
function anyLayer(random: Random): LayerKv {
  const width = (): number => 4 * (1 + random.below(40));
  const kind = random.below(5);
  if (kind === 0) return recurrent(width(), width());
  if (kind === 1) return paged(width());
  if (kind === 2) return windowed(1 + random.below(300), width(), width());
  return paged(width(), width());
}

const specs = Array.from({ length: 300 }, (_, seed): KvSpec => {
  const random = new Random(seed);
  const layers = Array.from({ length: 1 + random.below(40) }, () => anyLayer(random));
  const valueType = random.pick(['f16', 'f32'] as const);
  return kvSpec(layers, { blockSize: 4 * (1 + random.below(8)), valueType, minFrameBytes: random.pick([1, 4_096]) });
});

describe('layers of any sizes', () => {
  test('lie one after the other in a block, their planes too', () => {
    for (const { layers, groups, blockSize, valueType, payloadBytes } of specs) {
      let next = 0;
      for (const [index, { offset, bytes, planes }] of layers.entries()) {
        assert.equal(offset, next);
        const group = groups.find((one) => one.layers.includes(index))!;
        const widths = group.kind === 'state' ? [] : group.planes.map(({ width }) => width);
        assert.deepEqual(
          planes.map(({ width }) => width),
          widths,
        );
        let at = 0;
        for (const plane of planes) {
          assert.equal(plane.offset, at);
          assert.equal(plane.tokenBytes, plane.width * (valueType === 'f16' ? 2 : 4));
          at += plane.tokenBytes * blockSize;
        }
        assert.equal(bytes, at);
        next += bytes;
      }
      assert.equal(payloadBytes, next);
    }
  });

  test('are in frames that cover a block, and each layer is whole in one', () => {
    for (const spec of specs) {
      for (const [shape, sizes] of shapesOf(spec)) {
        let [layer, offset, slotOffset] = [0, 0, shape.preambleBytes];
        assert(shape.frames.length <= 8);
        for (const frame of shape.frames) {
          assert.deepEqual([frame.firstLayer, frame.offset, frame.slotOffset], [layer, offset, slotOffset]);
          const own = sizes.slice(layer, layer + frame.numLayers).reduce((sum, bytes) => sum + bytes, 0);
          assert.equal(frame.rawBytes, own);
          assert(frame.rawBytes > 0 || shape.payloadBytes === 0, 'no frame is empty');
          layer += frame.numLayers;
          offset += frame.rawBytes;
          slotOffset += frame.maxStoredBytes;
        }
        assert.deepEqual([layer, offset, slotOffset], [spec.numLayers, shape.payloadBytes, shape.slotBytes]);
        assert.equal(
          recordBytes(
            shape,
            shape.frames.map(({ maxStoredBytes }) => maxStoredBytes),
          ),
          shape.slotBytes,
        );
      }
    }
  });

  test('a frame that is much larger than the rest has a layer of its own', () => {
    const { frames } = kvSpec([paged(8), paged(8), paged(800), paged(8), paged(8)], {
      blockSize: 4,
      valueType: 'f16',
      minFrameBytes: 1,
    });
    expect(frames.map(({ firstLayer, numLayers }) => [firstLayer, numLayers])).toEqual([
      [0, 2],
      [2, 1],
      [3, 2],
    ]);
  });

  test('K2: records of them are sealed, verified and refused frame by frame', () => {
    const random = new Random(1);
    for (const spec of specs.slice(0, 60)) {
      if (spec.payloadBytes === 0) continue;
      const layout = { format: digest, numericsClass: 'test', spec };
      const record = Buffer.from(Array.from({ length: spec.slotBytes }, (_, i) => (i * 31) & 255));
      sealRecord(record, layout, hash!);
      assert.equal(verifyRecord(record, { format: digest, digest: hash!.digest }), undefined);
      expect(framesIn(record).map(({ offset }) => offset)).toEqual(spec.frames.map(({ slotOffset }) => slotOffset));
      for (const frame of spec.frames) {
        const raw = record.subarray(frame.slotOffset, frame.slotOffset + frame.rawBytes);
        const verifier = new FrameVerifier(raw, encodeFrameHeader(raw, frame, hash!.digest), {
          ...frame,
          digest: hash!.digest,
        });
        verifier.received(raw.length);
        assert.equal(verifier.fault, undefined);
        const at = frame.slotOffset + random.below(frame.rawBytes);
        record[at]! ^= 1;
        assert.match(verifyRecord(record)!, /the checksum of layers/);
        record[at]! ^= 1;
      }
    }
  });

  test('a frame of other sizes, or with a codec that is not known, is refused in words', () => {
    const spec = kvSpec([paged(8), paged(16)], { blockSize: 4, valueType: 'f16', minFrameBytes: 1 });
    const [frame] = spec.frames;
    const raw = Buffer.alloc(frame!.rawBytes, 3);
    const faultOf = (header: Buffer, want = frame!): string | undefined => {
      const verifier = new FrameVerifier(raw, header, { ...want, digest: hash!.digest });
      verifier.received(raw.length);
      return verifier.fault;
    };
    const header = encodeFrameHeader(raw, frame!, hash!.digest);
    assert.equal(faultOf(header), undefined);
    assert.match(faultOf(header, { ...frame!, rawBytes: 32 })!, /not of layer 0/);
    assert.match(faultOf(Buffer.alloc(3))!, /has no header/);
    assert.match(faultOf(Buffer.from(header).fill(1, 12, 13))!, /damaged/);
    assert.equal(codecOf(7), undefined);
    const identity = codecNamed('identity');
    assert.equal(identity.sizeFault(64, 64), undefined);
    assert.match(identity.sizeFault(64, 60)!, /60 bytes are stored of 64/);
  });
});

/** Block records and, where there are states, state records; with the bytes of each layer in them. */
function shapesOf(
  spec: KvSpec,
): (readonly [Pick<KvSpec, 'frames' | 'payloadBytes' | 'preambleBytes' | 'slotBytes'>, number[]])[] {
  const stateBytes = spec.layers.map((_, layer) => {
    const group = spec.groups.find(({ layers }) => layers.includes(layer))!;
    return group.kind === 'state' ? 4 * group.planes.reduce((sum, { width }) => sum + width, 0) : 0;
  });
  const blocks = [spec, spec.layers.map(({ bytes }) => bytes)] as const;
  return spec.state ? [blocks, [spec.state, stateBytes]] : [blocks];
}

describe('the digest', () => {
  const options = { blockSize: 32, valueType: 'f16' } as const;
  const base = [paged(64, 64), windowed(100, 64, 64), recurrent(256)];
  const digestOf = (layers: readonly LayerKv[], more: object = {}): string =>
    kvSpec(layers, { ...options, ...more }).digest;

  test('is equal for equal specs and differs with whatever decides the bytes of a record', () => {
    assert.equal(digestOf(base), digestOf(structuredClone(base)));
    const others = [
      digestOf(base),
      digestOf(base, { blockSize: 16 }),
      digestOf(base, { valueType: 'f32' }),
      digestOf(base, { shard: { index: 1, of: 2 } }),
      digestOf(base, { minFrameBytes: 1 }),
      digestOf([paged(64), ...base.slice(1)]),
      digestOf([paged(64, 32), ...base.slice(1)]),
      digestOf([base[1]!, base[0]!, base[2]!]),
      digestOf([base[0]!, windowed(101, 64, 64), base[2]!]),
      digestOf([...base.slice(0, 2), recurrent(128)]),
      digestOf(base.slice(0, 2)),
    ];
    assert.equal(new Set(others).size, others.length);
  });

  test('sizes that make no sense are refused', () => {
    assert.throws(() => kvSpec([paged(0)], options), /width of a plane must be a positive integer, not 0/);
    assert.throws(() => kvSpec([paged(4)], { ...options, blockSize: 1.5 }), /block_size must be a positive integer/);
  });
});

describe('windows', () => {
  test('blocks that lie outside are those of which no row from there on sees a token', () => {
    for (const blockSize of [4, 32])
      for (const window of [1, 2, 3, 5, 31, 32, 33, 64, 100])
        for (let row = 0; row < 200; row++) {
          const firstSeen = Math.max(0, row - window + 1);
          assert.equal(
            blocksOutsideWindow(window, row, blockSize),
            Math.floor(firstSeen / blockSize),
            `${window} ${row}`,
          );
        }
    assert.equal(blocksOutsideWindow(0, 1_000, 32), 0, 'a layer without a window sees all');
  });

  test('a frame sees what its widest layer sees; a recurrent layer sees no block', () => {
    const whole = { blockSize: 4, valueType: 'f16', minFrameBytes: 1 << 20 } as const;
    const windowOf = (layers: readonly LayerKv[]): number => kvSpec(layers, whole).frames[0]!.window;
    assert.equal(windowOf([windowed(512, 8), windowed(1_024, 8), windowed(512, 8)]), 1_024);
    assert.equal(windowOf([windowed(512, 8), windowed(1_024, 8), paged(8), recurrent(8)]), 0);
    const each = { blockSize: 4, valueType: 'f16', minFrameBytes: 1 } as const;
    expect(kvSpec([windowed(512, 8), paged(8), windowed(256, 8)], each).frames.map(({ window }) => window)).toEqual([
      512, 0, 256,
    ]);
    expect(kvSpec([windowed(9, 8), recurrent(8)], each).frames.map(({ window }) => window)).toEqual([9]);
  });

  test('what is outside every window is needed by nobody, and goes first', () => {
    const spec = kvSpec([windowed(10, 8), paged(8)], { blockSize: 4, valueType: 'f16', minFrameBytes: 1 });
    const [near, all] = spec.frames;
    // The row at 40 sees 31 to 40 through the window: blocks 7 to 10.
    expect([6, 7].map((block) => needed(spec, near!, block, 40))).toEqual([false, true]);
    expect([6, 7].map((block) => evictionClass(spec, near!, block, 40))).toEqual([0, 1]);
    expect([0, 7].map((block) => evictionClass(spec, all!, block, 40))).toEqual([1, 1]);
  });
});

describe('states', () => {
  const spec = kvSpec([recurrent(96, 32), paged(16, 16), recurrent(64)], {
    blockSize: 4,
    valueType: 'f16',
    minFrameBytes: 1,
  });
  const layout = { format: digest, numericsClass: 'test', spec };
  const name = stateHashOf(hash!);

  test('take no room in blocks, and lie in records of their own, in f32', () => {
    expect(spec.layers.map(({ bytes }) => bytes)).toEqual([0, 4 * 32 * 2, 0]);
    expect(spec.frames.map(({ firstLayer, numLayers }) => [firstLayer, numLayers])).toEqual([[0, 3]]);
    expect(spec.state!.payloadBytes).toBe(4 * (96 + 32 + 64));
    expect(spec.state!.frames.map(({ firstLayer, numLayers, rawBytes }) => [firstLayer, numLayers, rawBytes])).toEqual([
      [0, 2, 512],
      [2, 1, 256],
    ]);
    assert.equal(kvSpec([paged(4)], { blockSize: 4, valueType: 'f16' }).state, undefined);
  });

  test('are named by their block and their kind (K1), and verified as blocks are (K2)', () => {
    assert.notEqual(name.key, hash!.key);
    assert.notEqual(name.digest, hash!.digest);
    assert.deepEqual(stateHashOf(hash!), name);
    const record = Buffer.alloc(spec.state!.slotBytes, 5);
    sealRecord(record, layout, name, [], 'state');
    const header = readHeader(record);
    assert(!('fault' in header));
    assert.deepEqual([header.kind, header.parent, header.numFrames], ['state', hash!.key, 2]);
    assert.equal(verifyRecord(record, { format: digest, digest: name.digest }), undefined);
    assert.match(verifyRecord(record, { format: digest, digest: hash!.digest })!, /keys collide/);
    for (let bit = 0; bit < record.length * 8; bit += 7) {
      record[bit >> 3]! ^= 1 << (bit & 7);
      assert.notEqual(verifyRecord(record, { format: digest, digest: name.digest }), undefined, `bit ${bit}`);
      record[bit >> 3]! ^= 1 << (bit & 7);
    }
  });

  test('a model without any cannot seal one', () => {
    const plain = { ...layout, spec: kvSpec([paged(4)], { blockSize: 4, valueType: 'f16' }) };
    assert.throws(() => sealRecord(Buffer.alloc(1_024), plain, name, [], 'state'), /no recurrent state/);
  });
});
