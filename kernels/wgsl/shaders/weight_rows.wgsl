// Rows of a weight in any format, 16 bytes at a time; appended to the kernels that say `uses: ['weight_rows']`.
//
//   FORMAT   0 f32, 1 f16, 2 int8, 3 int4, 4 uint4 (kernels/weights/weight_format.ts says how values lie in the bytes)
//   chunk    16 bytes: 4, 8, 16 or 32 inputs of one output; a group is 32 inputs
//   scales   [outputs][groups padded to even] f16, two in a u32; only int8 and int4 have them, and uint4: [outputs][groups][scale, zero]

const FORMAT: u32 = 0;

const QUADS_PER_CHUNK = array(1u, 2u, 4u, 8u, 8u)[FORMAT];
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
  return vec4f(unpack4xU8(nibbles)) - vec4f(zero);
}

fn scale_of(output: u32, group: u32, scales_per_output: u32) -> f32 {
  if (!HAS_SCALES) {
    return 1.0;
  }
  if (FORMAT == 4) {
    return unpack2x16float(scales[output * (scales_per_output >> 1) + group]).x;
  }
  let at = output * scales_per_output + group;
  return unpack2x16float(scales[at >> 1])[at & 1];
}

// Returns the stored integer that stands for zero: the group's zero point for uint4, 8 for int4. Other formats ignore the result.
fn zero_of(output: u32, group: u32, scales_per_output: u32) -> f32 {
  if (FORMAT == 4) {
    return unpack2x16float(scales[output * (scales_per_output >> 1) + group]).y;
  }
  return 8.0;
}
