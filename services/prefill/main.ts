/** The prefill role: turns tokens into blocks. */
import { startEngineRole } from '../../shared/instance/engine_role.ts';
import { runRole } from '../../shared/instance/role_process.ts';
import { createPrefillHandlers } from './prefill_service.ts';

await runRole('prefill', (context) => startEngineRole(context, createPrefillHandlers));
