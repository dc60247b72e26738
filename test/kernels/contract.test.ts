/**
 * Every `.wgsl` file says what its `.ts` twin says: the same entry point, bindings, uniform fields and overrides, in the same
 * order. Dawn cannot see two read-only buffers swapped, or two uniform fields in the wrong order; those would only be wrong
 * numbers. Needs no GPU.
 * Budget: 5 s.
 */
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { test } from 'vitest';
import { wgslUrl, type KernelSpec } from '../../kernels/wgsl/kernel.ts';
import { matvec } from '../../kernels/wgsl/matvec.ts';
import { pagedAttention } from '../../kernels/wgsl/paged_attention.ts';
import { rmsNorm } from '../../kernels/wgsl/rms_norm.ts';

const kernels: KernelSpec[] = [matvec, pagedAttention, rmsNorm];

/** Reads the declarations our convention puts on lines of their own. */
function declarations(wgsl: string): unknown {
  const matches = (pattern: RegExp): string[][] => [...wgsl.matchAll(pattern)].map((m) => m.slice(1));
  const struct = /^struct Params \{\n([^}]*)\}/m.exec(wgsl)?.[1] ?? '';
  return {
    entryPoint: matches(/^@compute [^\n]*\nfn (\w+)/gm).flat(),
    params: [...struct.matchAll(/^ {2}(\w+): (\w+),$/gm)].map((m) => m.slice(1)),
    buffers: matches(/^@group\(0\) @binding\((\d+)\) var<storage, (\w+)> (\w+): array<(\w+)>;$/gm),
    constants: matches(/^override (\w+): u32 = (\d+);$/gm),
  };
}

test('every wgsl file has a declaration', () => {
  const files = readdirSync(new URL('.', wgslUrl('matvec')));
  const wgsl = files.filter((f) => f.endsWith('.wgsl')).map((f) => f.slice(0, -'.wgsl'.length));
  assert.deepEqual(wgsl.sort(), kernels.map(({ name }) => name).sort());
});

for (const kernel of kernels) {
  test(`${kernel.name}: wgsl and declaration agree`, () => {
    assert.deepEqual(declarations(readFileSync(wgslUrl(kernel.name), 'utf8')), {
      entryPoint: [kernel.name],
      params: Object.entries(kernel.params),
      buffers: Object.entries(kernel.buffers).map(([name, b], i) => [String(i + 1), b.access, name, b.dtype]),
      constants: Object.entries(kernel.constants).map(([name, value]) => [name, String(value)]),
    });
  });
}
