/** Entry of the thread that parses large bodies. */
export { start } from './body_reader.ts';
