/** How many rows of prompts go with tokens. Budget: 1 s. */
import { describe, expect, test } from 'vitest';
import { StepBudget } from '../../shared/engine/step_budget.ts';

/** A device: so long for tokens, so much longer for a row of a prompt. */
const device = { tokensMs: 20, rowMs: 2 };

/** Runs steps of three chats and an endless prompt; the times of the last ones. */
function run(
  budget: StepBudget,
  numSteps: number,
  { tokensMs, rowMs } = device,
  tokenRows = 3,
): { ms: number; rows: number }[] {
  const steps: { ms: number; rows: number }[] = [];
  for (let i = 0; i < numSteps; i++) {
    const rows = Math.min(512, budget.promptRows(tokenRows));
    const ms = tokensMs + rowMs * rows;
    budget.took({ tokenRows, promptRows: rows, ms });
    steps.push({ ms, rows });
  }
  return steps;
}

const unloaded = (budget: StepBudget, tokensMs = device.tokensMs): void => {
  for (let i = 0; i < 20; i++) budget.took({ tokenRows: 3, promptRows: 0, ms: tokensMs });
};

describe('while others wait for tokens', () => {
  test('a step takes two and a half times what it takes without prompts, and less until a row has shown what it takes', () => {
    const budget = new StepBudget(0);
    unloaded(budget);
    const steps = run(budget, 30);
    for (const { ms } of steps) expect(ms).toBeLessThanOrEqual(2.5 * device.tokensMs);
    expect(steps[0]!.rows).toBe(4);
    for (const { rows } of steps.slice(1)) expect([0, 12]).toContain(rows);
  });

  test('a first step that something disturbed does not set the budget for long', () => {
    const budget = new StepBudget(0);
    budget.took({ tokenRows: 3, promptRows: 0, ms: 5 * device.tokensMs });
    for (const { ms } of run(budget, 40).slice(20)) expect(ms).toBeLessThanOrEqual(3 * device.tokensMs);
    // Nor does one in the middle.
    budget.took({ tokenRows: 3, promptRows: 0, ms: 4 * device.tokensMs });
    for (const { ms } of run(budget, 40)) expect(ms).toBeLessThanOrEqual(4.5 * device.tokensMs);
  });

  test('nothing is known yet: a step without prompts tells', () => {
    expect(new StepBudget(0).promptRows(3)).toBe(0);
  });

  test('prompts that never end, and ever more who wait: what a step takes without them is measured again', () => {
    const budget = new StepBudget(0);
    unloaded(budget);
    run(budget, 40);
    // Sixty sequences where three were: thrice the time.
    const steps = run(budget, 400, { tokensMs: 60, rowMs: 0.5 }, 60);
    const rows = steps.slice(100).map((step) => step.rows);
    expect(Math.max(...rows)).toBeGreaterThanOrEqual(112);
    expect(rows.filter((count) => count === 0).length).toBeLessThan(rows.length / 20);
    expect(rows.reduce((sum, count) => sum + count, 0) / rows.length).toBeGreaterThan(100);
    for (const { ms } of steps.slice(100)) expect(ms).toBeLessThanOrEqual(150);
    // Numbers that change with every step leave room for prompts all the same.
    let numRows = 0;
    for (let i = 0; i < 100; i++) numRows += run(budget, 1, device, i % 2 ? 1 : 9)[0]!.rows;
    expect(numRows).toBeGreaterThan(300);
  });

  test('a prompt alone before has shown it already', () => {
    const budget = new StepBudget(0);
    budget.took({ tokenRows: 0, promptRows: 512, ms: 1_024 });
    unloaded(budget);
    expect(run(budget, 1)[0]!.rows).toBe(12);
  });

  test('a stated time is kept', () => {
    const budget = new StepBudget(100);
    unloaded(budget);
    const steps = run(budget, 30);
    for (const { ms } of steps.slice(1)) expect(ms).toBeLessThanOrEqual(100);
    expect(steps.at(-1)!.rows).toBe(40);
  });

  test('a device that turns slower is followed at once, one that turns faster in time', () => {
    const budget = new StepBudget(100);
    unloaded(budget);
    run(budget, 10);
    const slow = run(budget, 10, { tokensMs: 20, rowMs: 10 });
    expect(slow.slice(4).every(({ ms }) => ms <= 105)).toBe(true);
    expect(run(budget, 60).at(-1)!.rows).toBeGreaterThanOrEqual(36);
  });

  test('four rows at least, whatever the target: nobody is starved', () => {
    const budget = new StepBudget(1);
    unloaded(budget);
    expect(run(budget, 5).at(-1)!.rows).toBe(4);
  });
});

test('nobody waits for a token: what is fastest', () => {
  const budget = new StepBudget(0);
  budget.took({ tokenRows: 0, promptRows: 512, ms: 1_024 });
  unloaded(budget);
  expect(budget.promptRows(0)).toBe(Infinity);
});
