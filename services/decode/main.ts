/** The decode role: turns blocks into tokens. */
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import { runRole } from '../../shared/instance/role_process.ts';
import { createDecodeHandlers } from './decode_service.ts';

await runRole('decode', (context) => startEngineRole(context, createDecodeHandlers));
