/** The prefill role: turns tokens into blocks. An engine as any other, which the router places prefills at. */
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import type { EngineConfig } from '../../shared/node/options.ts';
import type { StartRole } from '../../shared/node/role.ts';

export const start: StartRole<EngineConfig> = startEngineRole;
