/** Waits of a thread before it ends: drivers that start threads of their own register theirs. */

const waits = new Set<() => Promise<unknown> | undefined>();

/**
 * Lets this thread end only after what `pending` returns: the start of a driver's own threads, which must not end while they load a native
 * library; undefined when none starts.
 */
export function endAfter(pending: () => Promise<unknown> | undefined): void {
  waits.add(pending);
}

/** Returns what this thread has to wait for before it ends; undefined when it may end at once. */
export function pendingEnd(): Promise<unknown> | undefined {
  const pending = [...waits].flatMap((wait) => wait() ?? []);
  return pending.length > 0 ? Promise.all(pending) : undefined;
}
