/** The prefill role: turns tokens into blocks. An engine as any other, which the router places prefills at. */
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import type { EngineConfig } from '../../shared/node/options.ts';
import type { StartRole } from '../../shared/node/role.ts';

/** Starts the prefill role on a host. The command `penstock prefill` loads this function by its name. */
export const start: StartRole<EngineConfig> = startEngineRole;
