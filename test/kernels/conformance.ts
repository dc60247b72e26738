/**
 * Tests that every device must pass: each operation against its equation in f64, at the edges of sizes. A device's own test file names
 * the suites and their tolerance.
 */
import { attentionConformance } from './conformance/attention.ts';
import { samplerConformance } from './conformance/sample.ts';
import { embedConformance } from './conformance/embed.ts';
import { apartGateConformance, gateConformance, softCapConformance } from './conformance/gates.ts';
import { hiddenConformance } from './conformance/hidden.ts';
import { latentConformance } from './conformance/latent.ts';
import { linearConformance } from './conformance/linear.ts';
import { mixtureConformance, scaledRoutingConformance, sigmoidRoutingConformance } from './conformance/mixture.ts';
import { layerConformance } from './conformance/program.ts';
import { qkNormConformance, rmsNormConformance } from './conformance/rms_norm.ts';
import { copyBlocksConformance } from './conformance/copy_blocks.ts';
import { ropeStoreConformance } from './conformance/rope_store.ts';
import { recurrenceConformance } from './conformance/recurrence.ts';
import { stateSpaceConformance } from './conformance/state_space.ts';
import { stateSlotsConformance } from './conformance/state_slots.ts';
import { sampleConformance } from './conformance/samples.ts';
import type { Conformance } from './conformance/suite.ts';

export function conformance(device: Conformance): void {
  layerConformance(device);
  rmsNormConformance(device);
  qkNormConformance(device);
  linearConformance(device);
  gateConformance(device);
  apartGateConformance(device);
  softCapConformance(device);
  mixtureConformance(device);
  sigmoidRoutingConformance(device);
  scaledRoutingConformance(device);
  embedConformance(device);
  ropeStoreConformance(device);
  copyBlocksConformance(device);
  stateSlotsConformance(device);
  recurrenceConformance(device);
  stateSpaceConformance(device);
  hiddenConformance(device);
  sampleConformance(device);
  samplerConformance(device);
  attentionConformance(device);
  latentConformance(device);
}

/** Tests of what has a kernel for each size of subgroups: products, alone, of experts and with other operations. */
export function subgroupConformance(device: Conformance): void {
  layerConformance(device);
  linearConformance(device);
  mixtureConformance(device);
}

/** Tests of weight formats alone: products of every format, and rows of the embedding. */
export function weightConformance(device: Conformance): void {
  linearConformance(device);
  embedConformance(device);
}
