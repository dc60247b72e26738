/** The router role: OpenAI API, placement, relay, dashboard; hub of the embedded bus. */
export { startRouter as start } from './router.ts';
