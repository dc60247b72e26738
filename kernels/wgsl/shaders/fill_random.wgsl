// fill_random: a weight of random values, made on the device; for benchmarks, where no checkpoint is worth its loading
//
//   words  u32, the weight in FORMAT (KIND 0 f32, 1 f16, 2 int8, 3 four bits), or f16 scales (KIND 4), or f32 ones (KIND 5),
//          or f16 scales with zeros of 8 (KIND 6), or bytes that are the exponent of an f32 (KIND 7)
//
// One thread per word, folded over x and y. Values spread evenly over [-amplitude, amplitude].

const WORKGROUP_SIZE: u32 = 256;
const KIND: u32 = 0;

struct Params {
  words: u32,
  seed: u32,
  grid_x: u32,
  amplitude: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> words: array<u32>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn fill_random(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let at = (workgroup.y * params.grid_x + workgroup.x) * WORKGROUP_SIZE + thread;
  if (at >= params.words) {
    return;
  }
  let bits = hash(hash(at ^ params.seed) + at);
  let low = f32(bits & 0xffff) / 32768.0 - 1.0;
  let high = f32(bits >> 16) / 32768.0 - 1.0;
  switch (KIND) {
    case 0: { words[at] = bitcast<u32>(low * params.amplitude); }
    case 1: { words[at] = pack2x16float(vec2f(low, high) * params.amplitude); }
    // Packed int8 weights never have -128 (0x80): setting each byte's low bit turns it into -127.
    case 2: { words[at] = bits | 0x01010101u; }
    case 3: { words[at] = bits; }
    case 4: { words[at] = pack2x16float(vec2f(params.amplitude)); }
    case 7: { words[at] = (bitcast<u32>(params.amplitude) >> 23) * 0x01010101u; }
    case 6: { words[at] = pack2x16float(vec2f(params.amplitude, 8.0)); }
    default: { words[at] = bitcast<u32>(1.0); }
  }
}

// PCG's output permutation (Jarzynski and Olano, Hash Functions for GPU Rendering, 2020).
fn hash(value: u32) -> u32 {
  let state = value * 747796405u + 2891336453u;
  let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
  return (word >> 22u) ^ word;
}
