/** Products of integers as bytes with rows that are i16, a tile of up to four rows and a panel at a time. See linear_int.as.ts. */
import { add_group, first_sum, head_bytes, scales_of, SIGNED, UNPACKED, ZEROED, zeros_of } from './int_groups.as';
import { Q_GROUP_BYTES } from './quantise.as';
import { high_codes, low_codes } from './table_codes.as';

/** sums[rows][8] += q · w for bytes of integers with a scale f16 alone. */
export function tiles_int8(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles(SIGNED, q, qStride, w, count, sums, rows);
}

/** sums[rows][8] += q · w for uint4 weights unpacked to bytes; each group's scales and zeros precede its bytes. */
export function tiles_uint8(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles(ZEROED, q, qStride, w, count, sums, rows);
}

/** sums[rows][8] += q · w for codes unpacked to integers; each group's scales, f32, precede its bytes. */
export function tiles_codes(q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  tiles(UNPACKED, q, qStride, w, count, sums, rows);
}

// @ts-ignore: decorator
@inline
function tiles(kind: i32, q: usize, qStride: usize, w: usize, count: u32, sums: usize, rows: u32): void {
  let row: u32 = 0;
  for (; row + 4 <= rows; row += 4) tile(4, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  for (; row + 2 <= rows; row += 2) tile(2, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
  if (row < rows) tile(1, kind, at(q, qStride, row), qStride, w, count, sums + ((row as usize) << 5));
}

/** Unpacks the nibbles of `count` groups to bytes, after a head of `head` bytes, which is copied: 16 for int4, 32 for uint4. */
export function nibbles_to_bytes(head: usize, from: usize, to: usize, count: u32): void {
  for (let group: u32 = 0; group < count; group++) {
    v128.store(to, v128.load(from));
    if (head > 16) v128.store(to, v128.load(from, 16), 16);
    for (let i: usize = 0; i < 128; i += 32) {
      // The bytes of a vector are four outputs, and its nibbles two quads of their inputs.
      const first = v128.load(from + head + i);
      const second = v128.load(from + head + i, 16);
      const at = to + head + 2 * i;
      v128.store(at, low_codes(first));
      v128.store(at, low_codes(second), 16);
      v128.store(at, high_codes(first), 32);
      v128.store(at, high_codes(second), 48);
    }
    from += head + 128;
    to += head + 256;
  }
}

// @ts-ignore: decorator
@inline
function at(q: usize, qStride: usize, row: u32): usize {
  return q + (row as usize) * qStride;
}

/** sums[rows][8] += q[rows, count groups] · w for bytes; `rows` and `kind` are constants, so that each has its own code. */
// @ts-ignore: decorator
@inline
function tile(rows: i32, kind: i32, q0: usize, qStride: usize, w: usize, count: u32, sums: usize): void {
  let q1 = q0 + qStride, q2 = q1 + qStride, q3 = q2 + qStride;
  const low = i16x8.splat(255);
  for (const end = q0 + (count as usize) * Q_GROUP_BYTES; q0 < end; ) {
    let a0 = first_sum(q0), b0 = a0;
    let a1 = rows > 1 ? first_sum(q1) : a0, b1 = a1;
    let a2 = rows > 2 ? first_sum(q2) : a0, b2 = a2;
    let a3 = rows > 2 ? first_sum(q3) : a0, b3 = a3;
    const head = w;
    w += head_bytes(kind);
    // One quad of inputs per iteration: with more, the compiler holds so many loads ahead that sums leave their registers.
    for (const last = w + 256; w < last; w += 32) {
      let wa = v128.load(w), wb = v128.load(w, 16);
      const even_a = v128.and(wa, low);
      const even_b = v128.and(wb, low);
      wa = i16x8.shr_u(wa, 8);
      wb = i16x8.shr_u(wb, 8);
      let s = v128.load32_splat(q0, 16);
      a0 = add_dots(a0, s, even_a);
      b0 = add_dots(b0, s, even_b);
      s = v128.load32_splat(q0, 20);
      a0 = add_dots(a0, s, wa);
      b0 = add_dots(b0, s, wb);
      if (rows > 1) {
        s = v128.load32_splat(q1, 16);
        a1 = add_dots(a1, s, even_a);
        b1 = add_dots(b1, s, even_b);
        s = v128.load32_splat(q1, 20);
        a1 = add_dots(a1, s, wa);
        b1 = add_dots(b1, s, wb);
      }
      if (rows > 2) {
        s = v128.load32_splat(q2, 16);
        a2 = add_dots(a2, s, even_a);
        b2 = add_dots(b2, s, even_b);
        s = v128.load32_splat(q2, 20);
        a2 = add_dots(a2, s, wa);
        b2 = add_dots(b2, s, wb);
        s = v128.load32_splat(q3, 16);
        a3 = add_dots(a3, s, even_a);
        b3 = add_dots(b3, s, even_b);
        s = v128.load32_splat(q3, 20);
        a3 = add_dots(a3, s, wa);
        b3 = add_dots(b3, s, wb);
      }
      (q0 += 8), (q1 += 8), (q2 += 8), (q3 += 8);
    }
    const scaleA = scales_of(kind, head, 0);
    const scaleB = scales_of(kind, head, 4);
    const zeroA = zeros_of(kind, head, 0);
    const zeroB = zeros_of(kind, head, 4);
    add_group(kind, sums, a0, b0, scaleA, scaleB, zeroA, zeroB, q0 - 64);
    if (rows > 1) add_group(kind, sums + 32, a1, b1, scaleA, scaleB, zeroA, zeroB, q1 - 64);
    if (rows > 2) {
      add_group(kind, sums + 64, a2, b2, scaleA, scaleB, zeroA, zeroB, q2 - 64);
      add_group(kind, sums + 96, a3, b3, scaleA, scaleB, zeroA, zeroB, q3 - 64);
    }
    (q0 += 16), (q1 += 16), (q2 += 16), (q3 += 16);
  }
}


// @ts-ignore: decorator
@inline
function add_dots(sum: v128, x: v128, w: v128): v128 {
  return i32x4.add(sum, i32x4.dot_i16x8_s(x, w));
}
