/** The prefill role: turns tokens into blocks. */
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import type { StartRole } from '../../shared/instance/role.ts';
import { createPrefillHandlers } from './prefill_service.ts';

export const start: StartRole = (context) => startEngineRole(context, createPrefillHandlers);
