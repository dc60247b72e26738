/** Entry of the thread that parses large bodies. */
import { BodyReader } from '../api/body_reader.ts';
import { bodyKinds } from './registry.ts';

/** Entry point of the body thread; returns the service that the thread runs. */
export function start(): BodyReader {
  return new BodyReader(bodyKinds);
}
