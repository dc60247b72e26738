/** Size of the browser's window, for parts that fill it. */
import { signal, type ReadonlySignal } from '@preact/signals';

const height = signal(innerHeight);
addEventListener('resize', () => (height.value = innerHeight));

/** Height of the window in pixels. */
export const viewportHeight: ReadonlySignal<number> = height;
