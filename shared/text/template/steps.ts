/**
 * Steps of a render: a template that loops ends by what it does, never by how long that takes, so a chat is refused on a busy machine as on
 * a quiet one. A step is a statement, an expression, a turn of a loop, CHARACTERS_A_STEP of a text or ITEMS_A_STEP of a list that an operation
 * reads or makes. Rendering is synchronous, so one count serves a thread.
 */
import { isNumber, sizeOf, stringOf, type Value } from './values.ts';

/**
 * Steps of one render. The templates of models take up to 300 for each message and 100 for each tool; this many take seconds, and no chat
 * that fits a context comes near.
 */
const MAX_STEPS = 8_000_000;
const CHARACTERS_A_STEP = 64;
const ITEMS_A_STEP = 8;

/** The render has taken MAX_STEPS. */
export class StepsExceeded extends Error {
  constructor() {
    super(`it is not done after ${MAX_STEPS.toLocaleString('en')} steps`);
    this.name = 'StepsExceeded';
  }
}

let left = Infinity;

/** Returns the result of `render`. @throws StepsExceeded when it takes more than MAX_STEPS */
export function limited<T>(render: () => T): T {
  const before = left;
  left = MAX_STEPS;
  try {
    return render();
  } finally {
    left = before;
  }
}

/** Counts steps. @throws StepsExceeded */
export function spend(steps: number): void {
  left -= steps;
  if (left < 0) throw new StepsExceeded();
}

/** Counts what an operation reads or makes of a value. @throws StepsExceeded */
export function spendOn(value: Value): void {
  if (value === null || isNumber(value)) return;
  const text = stringOf(value);
  spend(text === undefined ? (sizeOf(value) ?? 0) / ITEMS_A_STEP : text.length / CHARACTERS_A_STEP);
}
