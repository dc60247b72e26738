/** Steps that keep a target for the time between tokens. Budget: 1 s. */
import { describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { StepPacing } from '../../shared/engine/step_pacing.ts';
import { pairsOf, stepMs, type StepTime } from '../../shared/protocol/instance_work.ts';

const time: StepTime = { constantMs: 10, rowMs: 0.1, pairMs: 4e-6, contextMs: 1e-4, sequenceMs: 0 };
const TARGET = 50;
const tokens = { rows: 4, pairs: 0, contextTokens: 4_000, sequences: 4 };
const random = new Random(3);

interface Paced {
  readonly ms: number;
  readonly rows: number;
}

/** Runs steps of four chats and one endless prompt from position `start` on; the noise lengthens steps by up to that share. */
function run(pacing: StepPacing, numSteps: number, start: number, noise = 0, now = time): Paced[] {
  return Array.from({ length: numSteps }, () => {
    const most = Math.min(512, pacing.promptRows(4));
    const rows = Math.min(most, pacing.promptTime(tokens)?.rowsFrom(start) ?? Infinity);
    const work = { pairs: pairsOf(start, rows), contextTokens: tokens.contextTokens, sequences: 4 + Math.sign(rows) };
    const ms = stepMs(now, { rows: 4 + rows, ...work }) * (1 + (noise * random.below(1_000)) / 1_000);
    pacing.took({ tokenRows: 4, promptRows: rows, ...work, ms });
    return { ms, rows };
  });
}

const target = (): StepPacing => new StepPacing({ stepMs: 0, tbtTargetMs: TARGET });

describe('with a target', () => {
  test('a step takes about as long as the target allows, at the start of a prompt and deep in it', () => {
    const pacing = target();
    run(pacing, 200, 0);
    const shallow = run(pacing, 100, 0);
    run(pacing, 200, 90_000);
    const deep = run(pacing, 100, 90_000);
    for (const { ms } of [...shallow, ...deep]) {
      expect(ms).toBeGreaterThan(0.8 * TARGET);
      expect(ms).toBeLessThanOrEqual(1.02 * TARGET);
    }
    expect(shallow.at(-1)!.rows).toBeGreaterThan(2 * deep.at(-1)!.rows);
  });

  test('less the spread: where steps take up to 40 % longer, most of them keep it all the same', () => {
    const pacing = target();
    run(pacing, 600, 0, 0.4);
    const steps = run(pacing, 400, 0, 0.4);
    expect(steps.filter(({ ms }) => ms <= TARGET).length).toBeGreaterThan(350);
    expect(pacing.pacedStepMs).toBeLessThan(TARGET - 2);
    expect(pacing.pacedStepMs).toBeGreaterThanOrEqual(TARGET / 2);
  });

  test('before anything is known, steps are measured with and without prompts, and keep it too', () => {
    const steps = run(target(), 60, 0);
    expect(steps[0]!.rows).toBe(0);
    for (const { ms } of steps) expect(ms).toBeLessThanOrEqual(1.02 * TARGET);
  });

  test('a device that turns slower is followed', () => {
    const pacing = target();
    run(pacing, 600, 0);
    const slow = { ...time, rowMs: 3 * time.rowMs };
    run(pacing, 100, 0, 0, slow);
    for (const { ms } of run(pacing, 100, 0, 0, slow)) expect(ms).toBeLessThanOrEqual(1.05 * TARGET);
  });

  test('prompts get four rows at least, and any number while nobody waits', () => {
    const pacing = new StepPacing({ stepMs: 0, tbtTargetMs: 1 });
    run(pacing, 100, 0);
    expect(run(pacing, 1, 0)[0]!.rows).toBe(4);
    expect(pacing.promptTime({ rows: 0, pairs: 0, contextTokens: 0, sequences: 0 })).toBeUndefined();
    const room = pacing.promptTime(tokens)!;
    room.took(0, room.rowsFrom(0));
    expect(room.rowsFrom(0)).toBe(0);
  });
});

test('a stated duration of steps goes before the target, and without either a step may take two and a half times its own', () => {
  const stated = new StepPacing({ stepMs: 30, tbtTargetMs: TARGET });
  expect(stated.promptTime(tokens)).toBeUndefined();
  expect(stated.pacedStepMs).toBe(30);
  const auto = new StepPacing({ stepMs: 0 });
  expect(auto.pacedStepMs).toBe(0);
  auto.took({ tokenRows: 4, promptRows: 0, pairs: 0, contextTokens: 4_000, sequences: 4, ms: 12 });
  expect(auto.promptTime(tokens)).toBeUndefined();
  expect(auto.pacedStepMs).toBe(30);
});
