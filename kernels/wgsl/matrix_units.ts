/**
 * An adapter's matrix units: in which ways the product of many rows could use them, and whether one computes what it should. Drivers
 * differ in how they lay matrices out, so a device tries a small product before it trusts them with a model.
 */
import type { Executable, LoadOptions, WeightSource } from '../device.ts';
import { noKv } from '../kv_layout.ts';
import type { Program } from '../program.ts';
import { floatRows } from '../weights/stored_rows.ts';
import type { MatrixConfig, OpenAdapter } from './adapters.ts';

/** A configuration as matmul_subgroup_matrix.wgsl uses it. */
export interface MatrixUse extends MatrixConfig {
  readonly subgroupSize: number;
  /** Whether the adapter has several subgroup sizes, so that the kernel must request this one. */
  readonly isSizeAsked: boolean;
}

/** Ways in which a device can use an adapter's matrix units, with a note for the log when it uses none. */
export interface MatrixChoice {
  /** The best first. */
  readonly uses: readonly MatrixUse[];
  /** Why there are none, for people; undefined when the adapter has no matrix units, or there are some. */
  readonly note: string | undefined;
}

/** Configurations that are tried one after the other. */
const MAX_TRIED = 4;

/**
 * Returns the configurations that the kernel could use, not yet tried: those with sums in f32, which thousands of inputs need; f16
 * before f32, larger ones first.
 */
export function matrixChoice({ adapter, matrixConfigs }: OpenAdapter): MatrixChoice {
  const none = (why?: string): MatrixChoice => ({ uses: [], note: why && `its matrix units are not used: ${why}` });
  if (matrixConfigs.length === 0) return none();
  for (const feature of ['chromium-experimental-subgroup-matrix', 'subgroups', 'shader-f16']) {
    if (!adapter.features.has(feature)) return none(`the adapter lacks the feature ${feature}`);
  }
  const info = adapter.info as GPUAdapterInfo & {
    readonly subgroupMinSize?: number;
    readonly subgroupMaxSize?: number;
  };
  const { subgroupMinSize: least = 0, subgroupMaxSize: most = 0 } = info;
  const isSizeAsked = least !== most;
  if (least === 0) return none('the driver does not say how large its subgroups are');
  if (isSizeAsked && !adapter.features.has('subgroup-size-control'))
    return none(`subgroups have ${least} to ${most} lanes, and the adapter lacks the feature subgroup-size-control`);
  const usable = matrixConfigs.filter(
    ({ componentType, resultComponentType, M, N, K }) =>
      ['f16', 'f32'].includes(componentType) &&
      resultComponentType === 'f32' &&
      [M, N, K].every((size) => 32 % size === 0) &&
      M <= 16 &&
      K % 4 === 0,
  );
  if (usable.length === 0) return none('none of its configurations multiplies f16 or f32 with sums in f32');
  const rank = ({ componentType, M, N, K }: MatrixConfig): number => (componentType === 'f16' ? 1e6 : 0) + M * N * K;
  const sizes: number[] = [];
  for (let size = least; size <= most; size *= 2) sizes.push(size);
  // 64 lanes hold a tile's sums in half the registers of 32 (RDNA 3: 168, else 256 and spills); Intel's matrices are for its least size.
  sizes.sort((a, b) => Number(b === 64) - Number(a === 64) || a - b);
  const uses = usable
    .sort((a, b) => rank(b) - rank(a))
    .flatMap((config) => sizes.map((subgroupSize) => ({ ...config, subgroupSize, isSizeAsked })));
  return { uses: uses.slice(0, MAX_TRIED), note: undefined };
}

/**
 * Sizes of the trial product: more rows and outputs than a tile of 64, more inputs than a section of 1,024. FEW_ROWS is for the tile
 * of 32 rows.
 */
const [ROWS, FEW_ROWS, INNER, OUTPUTS] = [70, 20, 1_056, 80];
/** Maximum error of a right product, relative to its largest value, with tiles of f16. */
const TOLERANCE = 1e-2;

const program: Program = {
  operations: [{ kind: 'linear', x: 'x', weight: 'w', out: 'out', accumulate: false }],
  buffers: { x: { rows: 'rows', width: INNER }, out: { rows: 'rows', width: OUTPUTS } },
  weights: { w: { outputs: OUTPUTS, inner: INNER, parts: [{ tensor: 'w', outputs: OUTPUTS }] } },
  kv: [],
  rope: {},
};

const options: LoadOptions = {
  maxRows: ROWS,
  maxSamples: 1,
  maxBlocksPerSequence: 3,
  weightFormat: 'int8',
  kv: noKv,
  numBlocks: { min: 1, max: 1 },
};

/** No two rows, outputs or inputs alike, so that a transposed or shifted matrix shows. */
const pattern = (length: number, step: number): Float32Array =>
  Float32Array.from({ length }, (_, i) => Math.sin(i * step) + (i % 7) / 7);

const weights: WeightSource = {
  async *slices() {
    yield await Promise.resolve(floatRows(pattern(OUTPUTS * INNER, 0.37)));
  },
};

type LoadProgram = (program: Program, weights: WeightSource, options: LoadOptions) => Promise<Executable>;

/** Returns the product of all ROWS rows, then that of the first FEW_ROWS rows alone: [ROWS + FEW_ROWS][OUTPUTS] f32. */
async function product(load: LoadProgram): Promise<Float32Array> {
  const executable = await load(program, weights, options);
  try {
    const out = new Float32Array((ROWS + FEW_ROWS) * OUTPUTS);
    await executable.write('x', pattern(ROWS * INNER, 0.11));
    for (const [rows, at] of [
      [ROWS, 0],
      [FEW_ROWS, ROWS * OUTPUTS],
    ] as const) {
      await executable.run([{ tokens: new Array<number>(rows).fill(0), start: 0, blockTable: [0, 0, 0] }]);
      out.set(await executable.read('out', rows), at);
    }
    return out;
  } finally {
    await executable.close();
  }
}

/** The product as the host computes it. */
function expected(): Float32Array {
  const [x, w] = [pattern(ROWS * INNER, 0.11), pattern(OUTPUTS * INNER, 0.37)];
  const out = new Float32Array((ROWS + FEW_ROWS) * OUTPUTS);
  for (let at = 0; at < ROWS * OUTPUTS; at++) {
    const [row, output] = [Math.floor(at / OUTPUTS) * INNER, (at % OUTPUTS) * INNER];
    let sum = 0;
    for (let i = 0; i < INNER; i++) sum += x[row + i]! * w[output + i]!;
    out[at] = sum;
  }
  return out.copyWithin(ROWS * OUTPUTS, 0, FEW_ROWS * OUTPUTS);
}

/** Returns the largest difference, as a share of the largest expected value; NaN when a value is NaN. */
function worstError(have: Float32Array, want: Float32Array): number {
  const largest = want.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return want.reduce((most, value, i) => Math.max(most, Math.abs(value - have[i]!)), 0) / largest;
}

/**
 * Returns the first of `uses` whose product agrees with the host's; `note` is the reason when there is none. `fault` is set when the
 * product of `plain`, without matrix units, is wrong too, so that no use can be tried.
 */
export async function rightMatrices(
  uses: readonly MatrixUse[],
  plain: LoadProgram,
  withMatrices: (use: MatrixUse) => LoadProgram,
): Promise<{
  readonly use: MatrixUse | undefined;
  readonly note?: string | undefined;
  /** Why nothing that the device computes can be trusted. */
  readonly fault?: string;
}> {
  const want = expected();
  const plainError = worstError(await product(plain), want);
  // Even the plain product differs from `want`, because its weights are rounded to int8; the negated test also catches NaN.
  if (!(plainError <= TOLERANCE)) {
    const fault = `it computes a product wrongly (an error of ${percent(plainError)} of its largest value): its tokens cannot be trusted`;
    return { use: uses[0], fault };
  }
  let note: string | undefined;
  for (const use of uses) {
    const which = `its matrix units are not used: ${nameOf(use)} with subgroups of ${use.subgroupSize}`;
    try {
      const error = worstError(await product(withMatrices(use)), want);
      if (error <= TOLERANCE) return { use };
      note ??= `${which} computes a product wrongly (an error of ${percent(error)} of its largest value)`;
    } catch (error) {
      // For instance its shader does not compile: the adapter promised what its driver does not keep.
      note ??= `${which} fails: ${String(error).slice(0, 300)}`;
    }
  }
  return { use: undefined, note };
}

function percent(share: number): string {
  return `${Number((100 * share).toPrecision(2))} %`;
}

/** For people: `f16 to f32 16×16×16`. */
export function nameOf({ componentType, resultComponentType, M, N, K }: MatrixConfig): string {
  return `${componentType} to ${resultComponentType} ${M}×${N}×${K}`;
}
