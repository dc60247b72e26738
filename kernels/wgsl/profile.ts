/**
 * Measures each kernel of a step by itself: the launches of one label run one after the other, so that each layer's weights come from
 * memory as they do in a step, repeated until the time is long enough to measure.
 */
import type { KernelProfile } from '../device.ts';
import { encode, type Dispatch } from './dispatch_plan.ts';
import type { AttendedTokens, StepCounts } from './step_state.ts';

/** Shorter times are the clock's noise. */
const MEASURABLE_MS = 5;
const MAX_REPEATS = 2_048;

/** Returns the time and cost of a step's kernels, by label. The step must be uploaded already; `done` waits for the device. */
export async function profileDispatches(
  device: GPUDevice,
  dispatches: readonly Dispatch[],
  counts: StepCounts,
  attended: AttendedTokens,
  done: () => Promise<void>,
  nowMs: () => number,
): Promise<KernelProfile[]> {
  const timed = async (launches: readonly ReturnType<Dispatch['launch']>[], repeats: number): Promise<number> => {
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    for (let i = 0; i < repeats; i++) for (const launch of launches) encode(pass, launch);
    pass.end();
    const start = nowMs();
    device.queue.submit([encoder.finish()]);
    await done();
    return nowMs() - start;
  };
  const byLabel = new Map<string, Dispatch[]>();
  for (const dispatch of dispatches) {
    if (!dispatch.launch(counts)) continue;
    byLabel.set(dispatch.label, [...(byLabel.get(dispatch.label) ?? []), dispatch]);
  }
  const profiles: KernelProfile[] = [];
  for (const [label, group] of byLabel) {
    const launches = group.map(({ launch }) => launch(counts));
    await timed(launches, 1);
    let ms = 0;
    for (let repeats = 2; repeats <= MAX_REPEATS; repeats *= 4) {
      // The difference leaves the submit's own cost out.
      const [few, many] = [await timed(launches, 1), await timed(launches, 1 + repeats)];
      ms = Math.max(0, many - few) / repeats;
      if (many - few > MEASURABLE_MS) break;
    }
    const work = group.map((dispatch) => dispatch.work(counts, attended));
    profiles.push({
      label,
      numLaunches: group.length,
      ms,
      bytes: work.reduce((sum, { bytes }) => sum + bytes, 0),
      flops: work.reduce((sum, { flops }) => sum + flops, 0),
    });
  }
  return profiles;
}
