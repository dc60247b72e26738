/** All operations of the webgpu device: a kind that is missing here does not compile. */
import type { Operation, OperationOf } from '../program.ts';
import type { DispatchPlan } from './dispatch_plan.ts';
import { attention } from './ops/attention.ts';
import { clampedSwiglu } from './ops/clamped_swiglu.ts';
import { causalConv } from './ops/causal_conv.ts';
import { candidates } from './ops/candidates.ts';
import { sample } from './ops/sample.ts';
import { deltaRule } from './ops/delta_rule.ts';
import { embed } from './ops/embed.ts';
import { expertLinear } from './ops/expert_linear.ts';
import { gatedNorm } from './ops/gated_norm.ts';
import { geluMul } from './ops/gelu_mul.ts';
import { gatherSamples } from './ops/gather_samples.ts';
import { headLinear } from './ops/head_linear.ts';
import { latentAttention } from './ops/latent_attention.ts';
import { latentStore } from './ops/latent_store.ts';
import { linear } from './ops/linear.ts';
import { combine, permute, route } from './ops/mixture.ts';
import { mul } from './ops/mul.ts';
import type { Fusion, WgslOperation } from './ops/operation.ts';
import { qkNorm } from './ops/qk_norm.ts';
import { rmsNorm } from './ops/rms_norm.ts';
import { ropeStore } from './ops/rope_store.ts';
import { sigmoidMul } from './ops/sigmoid_mul.ts';
import { siluMul } from './ops/silu_mul.ts';
import { softCap } from './ops/soft_cap.ts';
import { stateSpace } from './ops/state_space.ts';

const wgslOperations = {
  embed,
  rms_norm: rmsNorm,
  qk_norm: qkNorm,
  linear,
  rope_store: ropeStore,
  attention,
  head_linear: headLinear,
  latent_store: latentStore,
  latent_attention: latentAttention,
  silu_mul: siluMul,
  gelu_mul: geluMul,
  clamped_swiglu: clampedSwiglu,
  mul,
  sigmoid_mul: sigmoidMul,
  causal_conv: causalConv,
  delta_rule: deltaRule,
  state_space: stateSpace,
  gated_norm: gatedNorm,
  route,
  permute,
  expert_linear: expertLinear,
  combine,
  gather_samples: gatherSamples,
  soft_cap: softCap,
  candidates,
  sample,
} satisfies { readonly [K in Operation['kind']]: WgslOperation<OperationOf<K>> };

/** Adds the dispatches of one operation to the plan. @throws DeviceError for shapes that the kernels do not support. */
export function addDispatches(plan: DispatchPlan, op: Operation, fusion: Fusion): void {
  // The table maps each kind to its own operation type; TypeScript cannot follow that through an indexed access.
  (wgslOperations[op.kind] as WgslOperation<Operation>)(plan, op, fusion);
}
