// delta_inputs: prepares delta_rule, in place: q and k of a key head are divided by their lengths, gates become factors
//
//   qkv     [rows][stride] f32: q [key_heads][key_dim], k likewise
//   gates   [rows][gates_stride] f32: b [value_heads], which becomes sigmoid(b); then a, which becomes e^(-e^a_log * softplus(a + dt_bias))
//
// One workgroup per row and key head, with the value heads that the key head serves. The order of the sums is fixed (E2).

const WORKGROUP_SIZE: u32 = 32;

struct Params {
  stride: u32,
  gates_stride: u32,
  key_heads: u32,
  value_heads: u32,
  key_dim: u32,
  is_tiled: u32,
  epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a_log: array<f32>;
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(4) var<storage, read_write> gates: array<f32>;

var<workgroup> squares: array<vec2f, WORKGROUP_SIZE>;

@compute @workgroup_size(WORKGROUP_SIZE)
fn delta_inputs(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  let head = workgroup.y;
  let q_at = row * params.stride + head * params.key_dim;
  let k_at = q_at + params.key_heads * params.key_dim;
  var sums = vec2f(0);
  for (var i = thread; i < params.key_dim; i += WORKGROUP_SIZE) {
    let pair = vec2f(qkv[q_at + i], qkv[k_at + i]);
    sums = fma(pair, pair, sums);
  }
  squares[thread] = sums;
  workgroupBarrier();
  for (var half = WORKGROUP_SIZE / 2; half > 0; half /= 2) {
    if (thread < half) {
      squares[thread] += squares[thread + half];
    }
    workgroupBarrier();
  }
  let scales = inverseSqrt(squares[0] + vec2f(params.epsilon)) * vec2f(inverseSqrt(f32(params.key_dim)), 1.0);
  for (var i = thread; i < params.key_dim; i += WORKGROUP_SIZE) {
    qkv[q_at + i] *= scales.x;
    qkv[k_at + i] *= scales.y;
  }
  let group = params.value_heads / params.key_heads;
  for (var i = thread; i < group; i += WORKGROUP_SIZE) {
    let value_head = select(head * group + i, head + i * params.key_heads, params.is_tiled == 1);
    let b_at = row * params.gates_stride + value_head;
    let a_at = b_at + params.value_heads;
    gates[b_at] = 1.0 / (1.0 + exp(-gates[b_at]));
    gates[a_at] = exp(-exp(a_log[value_head]) * softplus(gates[a_at] + dt_bias[value_head]));
  }
}
