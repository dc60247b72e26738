/** Entry of a thread that runs jobs of a replay. */
export { start } from './run_jobs.ts';
