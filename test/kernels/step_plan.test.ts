/**
 * The order of a step's work: few groups, and no operation next to one that it needs. That results keep their bits is tested by wasm.test.ts
 * (E2), whose steps of 1 and 8 rows run in the order for few rows. Budget: 10 s.
 */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { inputsOf, type Program } from '../../kernels/program.ts';
import { outputsOf } from '../../kernels/wasm/accesses.ts';
import type { StepOrder } from '../../kernels/wasm/step_order.ts';
import { planSteps } from '../../kernels/wasm/step_plan.ts';
import { programOf, shapeOf } from '../../shared/engine/architectures/registry.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { goldenFolder, goldenModels } from '../support/golden.ts';

async function programOfGolden(name: string): Promise<Program> {
  const folder = await openModel(goldenFolder(name));
  return programOf(folder.config, shapeOf(folder), 256);
}

const numGroups = ({ endsGroup }: StepOrder): number => endsGroup.filter(Boolean).length;

test.each([
  { name: 'llama-tied', mostPerLayer: 5, mostInMany: 7 },
  { name: 'qwen2', mostPerLayer: 5, mostInMany: 7 },
  { name: 'gemma2', mostPerLayer: 7, mostInMany: 7 },
])(
  'a step of $name has at most $mostPerLayer groups a layer in few rows',
  async ({ name, mostPerLayer, mostInMany }) => {
    const program = await programOfGolden(name);
    const { few, many } = planSteps(program);
    const numLayers = program.kv.length;
    // Embedding, samples with their norm and the logits, candidates with the sampled token; before a range of layers, one at most.
    expect(numGroups(few)).toBeLessThanOrEqual(mostPerLayer * numLayers + 3);
    expect(numGroups(many)).toBeLessThanOrEqual(mostInMany * numLayers + 5);
  },
);

test('no operation shares a group with one whose output it needs, unless it runs in the same tasks or each thread has its own', async () => {
  for (const name of goldenModels) {
    const program = await programOfGolden(name);
    const { many, few } = planSteps(program);
    assertSound(name, program, many);
    assertSound(name, program, few);
  }
});

/** Compares every two operations of a group, whatever the order was derived from. */
function assertSound(name: string, { operations }: Program, { joined, own, endsGroup }: StepOrder): void {
  let [group, unit] = [0, 0];
  const at = operations.map((_, op) => {
    const before = joined[unit]!;
    if (op > unit + before.count) unit = op;
    if (op > 0 && endsGroup[op - 1]) group++;
    return { group, unit };
  });
  operations.forEach((later, j) => {
    for (let i = j - 1; i >= 0 && at[i]!.group === at[j]!.group; i--) {
      if (at[i]!.unit === at[j]!.unit) continue;
      const earlier = operations[i]!;
      const touched = [...inputsOf(later), ...outputsOf(later)];
      const shared = [
        ...outputsOf(earlier).filter((buffer) => touched.includes(buffer)),
        ...outputsOf(later).filter((buffer) => inputsOf(earlier).includes(buffer)),
      ].filter((buffer) => !own[i]!.includes(buffer) || !own[j]!.includes(buffer));
      assert.deepEqual(shared, [], `${name}: operations ${i} (${earlier.kind}) and ${j} (${later.kind})`);
    }
  });
}
