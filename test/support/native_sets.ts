/** The sets of native kernels that this machine and its build have, for tests that need some. */
import { nativeLibrary } from '../../kernels/native/native_library.ts';
import { nativeSets } from '../../kernels/native/native_sets.ts';

const library = nativeLibrary();

/** Sets that tests can run; `penstock devices` says why not others. */
export const setsHere =
  typeof library === 'string' ? [] : nativeSets.filter((set) => typeof library.functionsOf(set) !== 'string');

/** Clause that says why there are none. */
export const whyNone = typeof library === 'string' ? library : 'this CPU has none of the instruction sets';
