/** Readers of values that end by themselves, by the kind of a state's text. */
import type { CallWriter } from './call_writer.ts';
import { GemmaReader } from './gemma_reader.ts';
import { CallReader, ObjectReader, type Reader } from './json_reader.ts';
import type { State } from './output_table.ts';
import { PythonCallReader } from './python_reader.ts';
import { ValueReader } from './value_reader.ts';

/** Returns the reader of a state's text; undefined where terminals end it. `isPlain`: a value ends at its first marker, whatever follows. */
export function readerOf({ text: kind, marks }: State, call: CallWriter, isPlain: boolean): Reader | undefined {
  if (marks) return new ValueReader(call, marks, isPlain);
  if (kind === 'call' || kind === 'known_call') return new CallReader(call, kind === 'known_call');
  if (kind === 'python_call' || kind === 'known_python_call')
    return new PythonCallReader(call, kind === 'known_python_call');
  if (kind === 'gemma_object') return new GemmaReader(call);
  if (kind !== 'object') return undefined;
  return new ObjectReader((text) => {
    call.raw(text);
  });
}
