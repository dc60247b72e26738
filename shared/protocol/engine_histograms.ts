/** Histograms that only an engine knows, as heartbeats carry them: counts per bucket since the engine's start, with vLLM's bounds. */
import { z } from 'zod';

/** Upper bounds of the tokens that one engine step computes and samples. */
export const iterationBuckets: readonly number[] = [
  1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384,
];
/** Upper bounds, in seconds, of how long blocks stay, idle and wait for their next use. */
export const residencyBuckets: readonly number[] = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800,
];

/** Most counts of one histogram on the wire (P1). */
const MAX_COUNTS = 64;

/** Schema of one histogram: the state of a BucketCounts. */
export const bucketSchema = z.object({ counts: z.array(z.number()).max(MAX_COUNTS).readonly(), sum: z.number() });
/** Schema of how long sampled device blocks stayed before they were evicted, in seconds. */
export const residencySchema = z.object({
  blockLifetime: bucketSchema,
  blockIdle: bucketSchema,
  blockReuseGap: bucketSchema,
});
/** How long sampled device blocks stayed before they were evicted, in seconds. */
export type ResidencyState = z.infer<typeof residencySchema>;
