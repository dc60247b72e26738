// delta_rule: the gated delta rule over the rows of a segment, after delta_inputs; or a state space, after space_steps
//
//   S = decay * S;  d = beta * (v - transpose(S) k);  S = S + k transpose(d);  out[r, head] = transpose(S) q
//
// If IS_DELTA is 0, d = beta * v and out[r, head] = transpose(S) q + skip * v, with q, k and v named c, b and x in a state space.
//
//   qkv     [rows][stride] f32: q [key_heads][key_dim], k likewise, v [value_heads][value_dim]
//   gates   [rows][gates_stride] f32: beta [value_heads], decay [value_heads]
//   skips   [value_heads] f32, read if IS_DELTA is 0
//   out     [rows][out_stride] f32: [value_heads][value_dim]
//   states  [slots][slot_values] f32; S [value_heads][key_dim][value_dim] at plane_at
//
// One workgroup per segment, value head and tile of COLUMNS columns of S, which stay in registers over all rows: a thread has
// 4 * KEY_VECTORS keys of one column, PARTS threads have a column. Rows are staged STAGED at a time. Each sum over keys is made of the
// parts' sums, in order, whatever the number of rows (E2). One barrier a row: what threads exchange has two places, used in turn.

const PARTS: u32 = 4;
const COLUMNS: u32 = 32;
const KEY_VECTORS: u32 = 8;
const STAGED: u32 = 8;
const IS_DELTA: u32 = 1;

struct Params {
  stride: u32,
  gates_stride: u32,
  out_stride: u32,
  slot_values: u32,
  plane_at: u32,
  key_heads: u32,
  value_heads: u32,
  key_dim: u32,
  value_dim: u32,
  is_tiled: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> step: array<u32>;
@group(0) @binding(2) var<storage, read> qkv: array<f32>;
@group(0) @binding(3) var<storage, read> gates: array<f32>;
@group(0) @binding(4) var<storage, read> skips: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> states: array<f32>;

var<workgroup> queries: array<vec4f, STAGED * PARTS * KEY_VECTORS>;
var<workgroup> keys: array<vec4f, STAGED * PARTS * KEY_VECTORS>;
// The parts' sums of S k and of S q: [2][PARTS][COLUMNS].
var<workgroup> recalled: array<f32, 2 * PARTS * COLUMNS>;
var<workgroup> answered: array<f32, 2 * PARTS * COLUMNS>;

// Four values of a vector of key_dim values at `at`; those after its end are 0.
fn four_of(at: u32, key: u32) -> vec4f {
  var four = vec4f(0);
  for (var i = 0u; i < 4; i++) {
    if (key + i < params.key_dim) {
      four[i] = qkv[at + key + i];
    }
  }
  return four;
}

fn sum_answered(place: u32, lane: u32) -> f32 {
  var sum = 0.0;
  for (var part = 0u; part < PARTS; part++) {
    sum += answered[(place * PARTS + part) * COLUMNS + lane];
  }
  return sum;
}

// The output of a row whose value lies at `value_at`.
fn answer(place: u32, lane: u32, head: u32, value_at: u32) -> f32 {
  let sum = sum_answered(place, lane);
  if (IS_DELTA == 0) {
    return fma(skips[head], qkv[value_at], sum);
  }
  return sum;
}

@compute @workgroup_size(PARTS * COLUMNS)
fn delta_rule(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let segment = segment_number(workgroup.x);
  let head = workgroup.y;
  let lane = thread % COLUMNS;
  let part = thread / COLUMNS;
  let column = workgroup.z * COLUMNS + lane;
  let value_dim = params.value_dim;
  let key_dim = params.key_dim;
  let is_column = column < value_dim;
  let group = params.value_heads / params.key_heads;
  let key_head = select(head / group, head % params.key_heads, params.is_tiled == 1);
  let q_at = key_head * key_dim;
  let k_at = (params.key_heads + key_head) * key_dim;
  let v_at = 2 * params.key_heads * key_dim + head * value_dim + column;
  let first_key = part * KEY_VECTORS * 4;
  let plane = params.plane_at + head * key_dim * value_dim + column;

  var s: array<vec4f, KEY_VECTORS>;
  if (segment.from_slot != NO_SLOT && is_column) {
    let at = segment.from_slot * params.slot_values + plane;
    for (var i = 0u; i < KEY_VECTORS; i++) {
      for (var j = 0u; j < 4; j++) {
        let key = first_key + 4 * i + j;
        if (key < key_dim) {
          s[i][j] = states[at + key * value_dim];
        }
      }
    }
  }

  var save = 0u;
  for (var start = 0u; start < segment.rows; start += STAGED) {
    let count = min(STAGED, segment.rows - start);
    workgroupBarrier();
    for (var i = thread; i < count * PARTS * KEY_VECTORS; i += PARTS * COLUMNS) {
      let at = (segment.first_row + start + i / (PARTS * KEY_VECTORS)) * params.stride;
      let key = 4 * (i % (PARTS * KEY_VECTORS));
      queries[i] = four_of(at + q_at, key);
      keys[i] = four_of(at + k_at, key);
    }
    workgroupBarrier();
    for (var staged = 0u; staged < count; staged++) {
      let row = start + staged;
      let line = segment.first_row + row;
      let place = row % 2;
      let vectors = (staged * PARTS + part) * KEY_VECTORS;
      let beta = gates[line * params.gates_stride + head];
      let decay = gates[line * params.gates_stride + params.value_heads + head];
      var value = 0.0;
      if (is_column) {
        value = qkv[line * params.stride + v_at];
      }
      var sum = 0.0;
      if (IS_DELTA == 1) {
        for (var i = 0u; i < KEY_VECTORS; i++) {
          let k = keys[vectors + i];
          sum = fma(s[i].x, k.x, sum);
          sum = fma(s[i].y, k.y, sum);
          sum = fma(s[i].z, k.z, sum);
          sum = fma(s[i].w, k.w, sum);
        }
        recalled[place * PARTS * COLUMNS + thread] = sum;
      }
      workgroupBarrier();
      var difference = beta * value;
      if (IS_DELTA == 1) {
        var total = 0.0;
        for (var other = 0u; other < PARTS; other++) {
          total += recalled[(place * PARTS + other) * COLUMNS + lane];
        }
        difference = beta * fma(-decay, total, value);
      }
      sum = 0.0;
      for (var i = 0u; i < KEY_VECTORS; i++) {
        s[i] = fma(keys[vectors + i], vec4f(difference), s[i] * decay);
        let q = queries[vectors + i];
        sum = fma(s[i].x, q.x, sum);
        sum = fma(s[i].y, q.y, sum);
        sum = fma(s[i].z, q.z, sum);
        sum = fma(s[i].w, q.w, sum);
      }
      answered[place * PARTS * COLUMNS + thread] = sum;
      // The sums of the row before are whole since this row's barrier.
      if (row > 0 && part == 0 && is_column) {
        out[(line - 1) * params.out_stride + head * value_dim + column] =
          answer(1 - place, lane, head, (line - 1) * params.stride + v_at);
      }
      if (save < segment.num_saves && step[segment.saves_at + 2 * save] == row + 1) {
        let at = step[segment.saves_at + 2 * save + 1] * params.slot_values + plane;
        save++;
        for (var i = 0u; i < KEY_VECTORS; i++) {
          for (var j = 0u; j < 4; j++) {
            let key = first_key + 4 * i + j;
            if (is_column && key < key_dim) {
              states[at + key * value_dim] = s[i][j];
            }
          }
        }
      }
    }
  }
  workgroupBarrier();
  if (part == 0 && is_column) {
    let last = segment.rows - 1;
    let line = segment.first_row + last;
    out[line * params.out_stride + head * value_dim + column] =
      answer(last % 2, lane, head, line * params.stride + v_at);
  }
}
