// gather_blocks: one layer of some blocks, out of the paged cache into records side by side (or back, when SCATTER is 1)
//
//   kv       one layer: [blocks][layer_words] u32
//   list     [blocks moved] u32, block ids
//   staging  [blocks moved][record_words] u32, each a record's payload; the layer begins at layer_at
//
// Grid (layer_words / 4 / WORKGROUP_SIZE, blocks moved); 16 bytes a thread. Params count quads: 16 bytes.

const WORKGROUP_SIZE: u32 = 64;
const SCATTER: u32 = 0;

struct Params {
  layer_at: u32,
  layer_quads: u32,
  record_quads: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read_write> kv: array<vec4u>;
@group(0) @binding(3) var<storage, read_write> staging: array<vec4u>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn gather_blocks(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= params.layer_quads) {
    return;
  }
  let in_cache = list[id.y] * params.layer_quads + id.x;
  let in_record = id.y * params.record_quads + params.layer_at + id.x;
  if (SCATTER == 1) {
    kv[in_cache] = staging[in_record];
  } else {
    staging[in_record] = kv[in_cache];
  }
}
