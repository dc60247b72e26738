/** Windows on the wasm device, see window_suite.ts. Budget: 20 s. */
import { windowSuite } from './window_suite.ts';

windowSuite(['mistral', 'gemma3', 'qwen2-tied-window']);
