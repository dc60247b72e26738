/** How a checkpoint's matrices are quantised, as config.json says it. */
import { z } from 'zod';

/** Quantisation method of a checkpoint's matrices, with the details of its layout. */
export type Quantization =
  /** int4 in groups of inputs, symmetric or with zero points; `zeroOffset` is added to the stored zero points. */
  | {
      readonly method: 'gptq';
      readonly zeroOffset: number;
      /** Inputs of a group do not follow one another. */
      readonly isActOrder: boolean;
      /** Whether all zero points are 8, the middle of the range. */
      readonly isSymmetric: boolean;
    }
  /** int4 in groups of inputs with zero points, packed along the outputs. */
  | { readonly method: 'awq' }
  /** e2m1 in blocks of 32 inputs with an 8-bit exponent, in the experts of a mixture. */
  | { readonly method: 'mxfp4' }
  /** e4m3, a scale per output or per tile of `tile` outputs and inputs. */
  | { readonly method: 'fp8'; readonly tile: readonly [number, number] | null };

const positive = z.int().positive();

const schema = z.looseObject({
  quant_method: z.string(),
  bits: z.int().nullish(),
  desc_act: z.boolean().nullish(),
  sym: z.boolean().nullish(),
  checkpoint_format: z.string().nullish(),
  version: z.string().nullish(),
  fmt: z.string().nullish(),
  weight_block_size: z.tuple([positive, positive]).nullish(),
  format: z.string().nullish(),
  config_groups: z
    .record(
      z.string(),
      z.looseObject({
        weights: z.looseObject({ num_bits: z.int(), type: z.string(), strategy: z.string().nullish() }),
      }),
    )
    .nullish(),
});

/** Parses a quantization_config; undefined when there is none. @throws Error for a method, or a variant of one, that is not supported. */
export function readQuantization(raw: unknown): Quantization | undefined {
  if (raw === null || raw === undefined) return undefined;
  const parsed = schema.safeParse(raw);
  if (!parsed.success) throw new Error(`quantization_config: ${z.prettifyError(parsed.error)}`);
  const { quant_method: method, bits, checkpoint_format: format, version, fmt, ...more } = parsed.data;
  const refuse = (what: string): never => {
    throw new Error(
      `quantization_config of ${what} is not supported: there are gptq and awq of 4 bits, mxfp4, fp8 (e4m3), and float-quantized compressed-tensors`,
    );
  };
  switch (method) {
    case 'gptq':
      if (bits !== 4) refuse(`gptq with ${bits} bits`);
      if (format !== null && format !== undefined && format !== 'gptq' && format !== 'gptq_v2')
        refuse(`gptq in ${format}`);
      return {
        method,
        zeroOffset: format === 'gptq_v2' ? 0 : 1,
        isActOrder: parsed.data.desc_act ?? false,
        isSymmetric: parsed.data.sym ?? true,
      };
    case 'awq':
      if (bits !== 4) refuse(`awq with ${bits} bits`);
      if (version && version.toLowerCase() !== 'gemm') refuse(`awq in ${version}`);
      return { method };
    case 'mxfp4':
      return { method };
    case 'fp8':
      if (fmt && fmt !== 'e4m3') refuse(`fp8 in ${fmt}`);
      return { method, tile: more.weight_block_size ?? null };
    case 'compressed-tensors': {
      const groups = Object.values(more.config_groups ?? {});
      const isFloat = groups.every(({ weights }) => weights.type === 'float' && weights.num_bits === 8);
      const isPerOutput = groups.every(({ weights: { strategy } }) => strategy === 'channel' || strategy === 'tensor');
      if (more.format !== 'float-quantized' || !isFloat || !isPerOutput || groups.length === 0)
        refuse(`compressed-tensors in ${more.format}`);
      return { method: 'fp8', tile: null };
    }
    default:
      return refuse(JSON.stringify(method));
  }
}
