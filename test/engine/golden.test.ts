/** The wasm device against the reference implementation. Budget: 15 s. */
import { goldenSuite } from './golden_suite.ts';

goldenSuite();
