/**
 * Experts of checkpoints whose tensors stack those of a whole layer, read under the names of single experts
 * (`EXPERTS.N.gate_proj.weight` and the like), which other mixtures have.
 *
 *   EXPERTS.gate_up_proj  [experts][gates, then ups][hidden]
 *   EXPERTS.down_proj     [experts][hidden][inner]
 *
 * or, with EXPERTS = MODULE.experts, MODULE.input_linear.weight and MODULE.output_linear.weight.
 */
import type { TensorInfo } from './safetensors.ts';

/** Rows of a stacked tensor that are one matrix of an expert. */
interface StackedMatrix {
  readonly tensor: string;
  readonly firstRow: number;
  readonly shape: readonly [outputs: number, inner: number];
}

/** Names of the two tensors, and of the single experts, by what the first one's name begins with. */
const stacks: readonly {
  readonly gateUp: RegExp;
  readonly down: (module: string) => string;
  readonly experts: (module: string) => string;
}[] = [
  { gateUp: /^(.*\.experts)\.gate_up_proj$/, down: (module) => `${module}.down_proj`, experts: (module) => module },
  {
    gateUp: /^(.*\.block_sparse_moe)\.input_linear\.weight$/,
    down: (module) => `${module}.output_linear.weight`,
    experts: (module) => `${module}.experts`,
  },
];

/** Returns the names of the other tensor and of the experts, where a name is that of gates and ups. */
function stackOf(tensor: string): { readonly down: string; readonly experts: string } | undefined {
  for (const { gateUp, down, experts } of stacks) {
    const module = gateUp.exec(tensor)?.[1];
    if (module !== undefined) return { down: down(module), experts: experts(module) };
  }
  return undefined;
}

/** Returns the matrices of single experts by name. Tensors whose experts are stored transposed, as gpt-oss has them, are left out. */
export function stackedExperts(tensors: ReadonlyMap<string, TensorInfo>): ReadonlyMap<string, StackedMatrix> {
  const matrices = new Map<string, StackedMatrix>();
  for (const [tensor, { shape }] of tensors) {
    const stack = stackOf(tensor);
    if (!stack) continue;
    const { down, experts } = stack;
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
