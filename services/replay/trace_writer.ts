/** Writes traces in Mooncake's format. */
import type { Trace } from '../../shared/trace/trace.ts';
import { writeWhole } from '../../shared/report/whole_file.ts';

/** Writes a trace as the file `path`, whole or not at all. @throws Failure when that fails */
export function writeTrace(trace: Trace, path: string): Promise<void> {
  return writeWhole(path, traceLines(trace));
}

/** Yields the lines of a trace, each with its line end. */
export function* traceLines(trace: Trace): Generator<string> {
  for (let index = 0; index < trace.numRequests; index++) {
    const { arrivalMs, inputTokens, outputTokens, hashIds, tenant, priority } = trace.requestAt(index);
    const fields = {
      timestamp: arrivalMs,
      input_length: inputTokens,
      output_length: outputTokens,
      hash_ids: [...hashIds],
      tenant,
      priority,
    };
    yield `${JSON.stringify(fields)}\n`;
  }
}
