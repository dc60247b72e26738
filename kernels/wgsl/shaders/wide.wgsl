// Integers of 64 bits as vec2u(low, high); appended to the kernels that say `uses: ['wide']`.

fn wide_add(a: vec2u, b: vec2u) -> vec2u {
  let low = a.x + b.x;
  return vec2u(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn wide_sub(a: vec2u, b: vec2u) -> vec2u {
  return vec2u(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn wide_less(a: vec2u, b: vec2u) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// The whole product.
fn wide_mul(a: u32, b: u32) -> vec2u {
  let low = (a & 0xffff) * (b & 0xffff);
  let left = (a >> 16) * (b & 0xffff);
  let right = (a & 0xffff) * (b >> 16);
  let middle = (low >> 16) + (left & 0xffff) + (right & 0xffff);
  return vec2u((low & 0xffff) | (middle << 16), (a >> 16) * (b >> 16) + (left >> 16) + (right >> 16) + (middle >> 16));
}

// The lower 64 bits.
fn wide_scale(a: vec2u, b: u32) -> vec2u {
  return wide_add(wide_mul(a.x, b), vec2u(0, a.y * b));
}

fn wide_shift(a: vec2u, shift: u32) -> vec2u {
  if (shift == 0) {
    return a;
  }
  if (shift < 32) {
    return vec2u((a.x >> shift) | (a.y << (32 - shift)), a.y >> shift);
  }
  return vec2u(a.y >> (shift - 32), 0);
}

// The upper 64 bits of the product.
fn wide_mul_high(a: vec2u, b: vec2u) -> vec2u {
  let first = wide_add(wide_mul(a.y, b.x), vec2u(wide_mul(a.x, b.x).y, 0));
  let second = wide_add(wide_mul(a.x, b.y), vec2u(first.x, 0));
  return wide_add(wide_add(wide_mul(a.y, b.y), vec2u(first.y, 0)), vec2u(second.y, 0));
}

// ⌈a / b⌉, which fits 32 bits; b is not 0, but a compiler that knew where the loop begins would unroll it.
fn wide_ceil_div(a: vec2u, b: u32) -> u32 {
  var rest = wide_add(a, vec2u(b - 1, 0));
  var quotient = 0u;
  for (var bit = 31 - i32(b == 0); bit >= 0; bit--) {
    let taken = vec2u(b << u32(bit), select(b >> (32 - u32(bit)), 0, bit == 0));
    if (!wide_less(rest, taken)) {
      rest = wide_sub(rest, taken);
      quotient |= 1u << u32(bit);
    }
  }
  return quotient;
}
