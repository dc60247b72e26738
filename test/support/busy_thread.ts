/** A thread for tests of CPU time: it computes for ever when it is asked to. */
export function start(): { spin: () => void } {
  const cell = new Int32Array(1);
  return {
    spin: () => {
      for (;;) Atomics.load(cell, 0);
    },
  };
}
