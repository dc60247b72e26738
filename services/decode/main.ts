/** The decode role: turns blocks into tokens. An engine as any other, which the router places decodes at. */
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import type { EngineConfig } from '../../shared/node/options.ts';
import type { StartRole } from '../../shared/node/role.ts';

/** Starts the decode role on a host. The command `penstock decode` loads this function by its name. */
export const start: StartRole<EngineConfig> = startEngineRole;
