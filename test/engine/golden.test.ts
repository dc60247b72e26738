/** The wasm device against the reference implementation. Budget: 15 s. */
import { goldenFormats } from '../support/golden.ts';
import { goldenSuite } from './golden_suite.ts';

goldenSuite();
goldenSuite({}, goldenFormats);
