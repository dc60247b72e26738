// embed: out[r, :] (+)= table[token(r), :] * scale, unpacked to f32
//
//   weight  [outputs][inner] in FORMAT, the slice of the table that starts at `first_output`
//   step    the step's header, then its rows [rows][3] u32: token, or SLOT_BIT + index into slots; position; KV slot
//   slots   u32, tokens sampled in earlier steps
//   out     [rows][out_stride] f32
//
// One workgroup per row. A table over the binding limit comes in slices; each writes the rows whose token it holds.

const WORKGROUP_SIZE: u32 = 64;
const SLOT_BIT = 0x80000000u;

struct Params {
  first_output: u32,
  outputs: u32,
  quads: u32,
  scales_per_output: u32,
  out_stride: u32,
  vocab: u32,
  scale: f32,
  is_accumulating: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4u>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read> step: array<u32>;
@group(0) @binding(4) var<storage, read> slots: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4f>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn embed(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  var token = step[step[2] + 3 * row];
  if (token >= SLOT_BIT) {
    token = slots[token - SLOT_BIT];
  }
  // Nothing was sampled into the slot: compute an arbitrary row, whose result is not used.
  if (token >= params.vocab) {
    token = 0;
  }
  if (token < params.first_output || token >= params.first_output + params.outputs) {
    return;
  }
  let output = token - params.first_output;
  for (var quad = thread; quad < params.quads; quad += WORKGROUP_SIZE) {
    let chunk = weight[(output * params.quads + quad) / QUADS_PER_CHUNK];
    let scale = scale_of(output, quad / 8, params.scales_per_output);
    let zero = zero_of(output, quad / 8, params.scales_per_output);
    let value = quad_of(chunk, quad % QUADS_PER_CHUNK, zero) * scale * params.scale;
    let at = row * params.out_stride / 4 + quad;
    out[at] = select(value, out[at] + value, params.is_accumulating == 1);
  }
}
