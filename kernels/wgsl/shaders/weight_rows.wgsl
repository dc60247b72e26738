// Rows of a weight in any format, 16 bytes at a time; appended to the kernels that say `uses: ['weight_rows']`.
//
//   FORMAT   0 f32, 1 f16, 2 int8, 3 int4, 4 uint4, 5 mxfp4, 6 iq4 (kernels/weights/weight_format.ts says how values lie in the bytes)
//   chunk    16 bytes: 4, 8, 16 or 32 inputs of one output; a group is 32 inputs
//   scales   [outputs][groups padded to even] f16, two in a u32; integers and codes have them, and uint4: [outputs][groups][scale, zero];
//            mxfp4 [outputs][groups padded to fours] u8, four in a u32, each the exponent of an f32

const FORMAT: u32 = 0;

const QUADS_PER_CHUNK = array(1u, 2u, 4u, 8u, 8u, 8u, 8u)[FORMAT];
const CHUNKS_PER_GROUP = 8u / QUADS_PER_CHUNK;
const HAS_SCALES = FORMAT >= 2u;

// Inputs [4 * quad, 4 * quad + 4) of a chunk, without the group's scale; `zero` is that of the group.
fn quad_of(chunk: vec4u, quad: u32, zero: f32) -> vec4f {
  if (FORMAT == 0) {
    return bitcast<vec4f>(chunk);
  }
  if (FORMAT == 1) {
    return vec4f(unpack2x16float(chunk[2 * quad]), unpack2x16float(chunk[2 * quad + 1]));
  }
  if (FORMAT == 2) {
    return vec4f(unpack4xI8(chunk[quad]));
  }
  let nibbles = (chunk[quad >> 1] >> (4 * (quad & 1))) & 0x0f0f0f0fu;
  if (FORMAT == 5) {
    return vec4f(unpack4xU8(raised_mxfp4(nibbles))) - vec4f(12.0);
  }
  if (FORMAT == 6) {
    return vec4f(entry_of_iq4(nibbles & 15), entry_of_iq4((nibbles >> 8) & 15), entry_of_iq4((nibbles >> 16) & 15), entry_of_iq4(nibbles >> 24));
  }
  return vec4f(unpack4xU8(nibbles)) - vec4f(zero);
}

fn scale_of(output: u32, group: u32, scales_per_output: u32) -> f32 {
  if (!HAS_SCALES) {
    return 1.0;
  }
  if (FORMAT == 4) {
    return unpack2x16float(scales[output * (scales_per_output >> 1) + group]).x;
  }
  if (FORMAT == 5) {
    let word = scales[output * (scales_per_output >> 1) + (group >> 2)];
    return bitcast<f32>(((word >> (8 * (group & 3))) & 255) << 23);
  }
  let at = output * scales_per_output + group;
  let scale = unpack2x16float(scales[at >> 1])[at & 1];
  return select(scale, scale * 0.015625, FORMAT == 6);
}

// The integers of four codes of mxfp4, one in each byte, plus 12. A magnitude's code m counts m up to 4, then 6, 8 and 12; bit 3 is the sign.
fn raised_mxfp4(codes: u32) -> u32 {
  let m = codes & 0x07070707u;
  // The lower two bits of codes from 4 on, which add 0, 1, 2 and 5.
  let low = m & (((m >> 2) & 0x01010101u) * 3);
  let magnitude = m + low + ((low & (low >> 1) & 0x01010101u) << 1);
  let negative = magnitude & (((codes >> 3) & 0x01010101u) * 15);
  return 0x0c0c0c0cu + magnitude - 2 * negative;
}

// The table's integer for a code of iq4. The bytes of four words are the table.
fn entry_of_iq4(code: u32) -> f32 {
  let low = select(0xbfad9881u, 0xf6eaddcfu, (code & 4) != 0);
  let high = select(0x26190d01u, 0x71594535u, (code & 4) != 0);
  let four = select(low, high, (code & 8) != 0);
  return f32(bitcast<i32>(four << (24 - 8 * (code & 3))) >> 24);
}

// Returns the stored integer that stands for zero: the group's zero point for uint4, 8 for int4. Other formats ignore the result.
fn zero_of(output: u32, group: u32, scales_per_output: u32) -> f32 {
  if (FORMAT == 4) {
    return unpack2x16float(scales[output * (scales_per_output >> 1) + group]).y;
  }
  return 8.0;
}
