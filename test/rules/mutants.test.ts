/** Every mutant of the simulation can be made of this build: a guard that was rewritten takes its mutant along. Budget: 1 s. */
import { expect, test } from 'vitest';
import { mutantFault, mutants } from '../sim/mutants.ts';

test('each guard that a mutant takes out stands in the build, once', () => {
  expect(mutants.flatMap((mutant) => mutantFault(mutant) ?? [])).toEqual([]);
});
