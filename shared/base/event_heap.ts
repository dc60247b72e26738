/** The events of simulated time, in order: by time, and among equal times in the order in which they were added. */

/** An event of a simulation. `order` breaks ties, so that events of one time run in the order in which they were added. */
export interface TimedEvent {
  readonly atMs: number;
  readonly order: number;
}

/** Binary heap of events, the earliest first. Its owner bounds it: a simulation has as many events as its processes wait for. */
export class EventHeap<E extends TimedEvent> {
  readonly #heap: E[] = [];

  get size(): number {
    return this.#heap.length;
  }

  /** Returns the earliest event, which stays. */
  first(): E | undefined {
    return this.#heap[0];
  }

  push(event: E): void {
    const heap = this.#heap;
    let at = heap.push(event) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(event, heap[parent]!)) break;
      heap[at] = heap[parent]!;
      at = parent;
    }
    heap[at] = event;
  }

  /** Takes the earliest event out; undefined when there is none. */
  pop(): E | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (!last || heap.length === 0) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child++;
      if (!isBefore(heap[child]!, last)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
    return first;
  }
}

function isBefore(a: TimedEvent, b: TimedEvent): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
}
