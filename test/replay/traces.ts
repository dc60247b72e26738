/** Traces for the tests of the replay: made of lines, or the one of ../shared when it is there. */
import { existsSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readTrace } from '../../shared/trace/trace_reader.ts';
import { TraceBuilder, type NewRequest, type Trace } from '../../shared/trace/trace.ts';
import { projectPath } from '../support/project.ts';

/** Mooncake's conversation trace, which is no part of the project. */
export const conversationTrace = projectPath('../shared/data/traces/conversation_trace.jsonl');
export const hasConversationTrace = existsSync(conversationTrace);
/** Hardware next to that trace. */
export const a800Hardware = projectPath('../shared/data/hardware/llama70b_a800.json');

/** Calls `use` with the path of a file `name` that has this content, then removes the file. */
export async function withFile<T>(
  name: string,
  content: string | Uint8Array,
  use: (path: string) => Promise<T>,
): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), 'replay-'));
  try {
    const path = join(folder, name);
    await writeFile(path, content);
    return await use(path);
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Reads a trace of these lines, with blocks of 4 tokens unless another size is named. */
export function traceOf(lines: readonly string[], blockTokens = 4, end = '\n'): Promise<Trace> {
  return withFile('t.jsonl', lines.join('\n') + end, (path) => readTrace(path, { blockTokens }));
}

/** Builds a trace of requests whose blocks have `blockTokens` tokens. */
export function builtTrace(requests: readonly NewRequest[], blockTokens = 4): Trace {
  const builder = new TraceBuilder(blockTokens);
  for (const request of requests) builder.add(request);
  return builder.build();
}

/** A line of a trace with blocks of 4 tokens. */
export function line(fields: Record<string, unknown> = {}): string {
  return JSON.stringify({ timestamp: 0, input_length: 7, output_length: 2, hash_ids: [0, 1], ...fields });
}
