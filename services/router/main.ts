/** The router role: OpenAI API, placement, relay, dashboard; hub of the embedded bus. */
import { runRole } from '../../shared/instance/role_process.ts';
import { startRouter } from './router.ts';

await runRole('router', startRouter);
