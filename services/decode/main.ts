/** The decode role: turns blocks into tokens. */
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import type { StartRole } from '../../shared/instance/role.ts';
import { createDecodeHandlers } from './decode_service.ts';

export const start: StartRole = (context) => startEngineRole(context, createDecodeHandlers);
