/**
 * Experts of checkpoints whose tensors stack those of a whole layer, read under the names of single experts
 * (`EXPERTS.N.gate_proj.weight` and the like), which other mixtures have.
 *
 *   EXPERTS.gate_up_proj  [experts][gates, then ups][hidden]
 *   EXPERTS.down_proj     [experts][hidden][inner]
 */
import type { TensorInfo } from './safetensors.ts';

/** Rows of a stacked tensor that are one matrix of an expert. */
interface StackedMatrix {
  readonly tensor: string;
  readonly firstRow: number;
  readonly shape: readonly [outputs: number, inner: number];
}

const GATE_UP = /^(.*\.experts)\.gate_up_proj$/;

/** Returns the matrices of single experts by name. Tensors whose experts are stored transposed, as gpt-oss has them, are left out. */
export function stackedExperts(tensors: ReadonlyMap<string, TensorInfo>): ReadonlyMap<string, StackedMatrix> {
  const matrices = new Map<string, StackedMatrix>();
  for (const [tensor, { shape }] of tensors) {
    const experts = GATE_UP.exec(tensor)?.[1];
    if (experts === undefined) continue;
    const down = `${experts}.down_proj`;
    const [count = 0, pairs = 0, hidden = 0] = shape;
    const inner = pairs / 2;
    if (tensors.get(down)?.shape.join() !== [count, hidden, inner].join()) continue;
    for (let expert = 0; expert < count; expert++) {
      const put = (name: string, from: string, firstRow: number, of: StackedMatrix['shape']): void => {
        matrices.set(`${experts}.${expert}.${name}.weight`, { tensor: from, firstRow, shape: of });
      };
      put('gate_proj', tensor, expert * pairs, [inner, hidden]);
      put('up_proj', tensor, expert * pairs + inner, [inner, hidden]);
      put('down_proj', down, expert * hidden, [hidden, inner]);
    }
  }
  return matrices;
}
