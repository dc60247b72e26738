/** Reads the streams of a benchmark in a process of its own, as its parent asks: open, then any number of marks and reports. */
import { Streams, type StreamsReport, type StreamsRequest } from './streams.ts';

/** Message of the parent; each is answered, a report with a report on the streams of these URLs, or on all. */
export type ReaderMessage =
  | { readonly kind: 'open'; readonly streams: StreamsRequest }
  | { readonly kind: 'mark' }
  | { readonly kind: 'begun' }
  | { readonly kind: 'report'; readonly urls: readonly string[] | undefined };

/** Answer of this process: whether every stream has begun; a report where one was asked for. */
export interface ReaderAnswer {
  readonly isBegun: boolean;
  readonly report?: StreamsReport;
}

const streams = new Streams();

async function answer(message: ReaderMessage): Promise<ReaderAnswer> {
  const isBegun = streams.haveBegun;
  if (message.kind === 'report') return { isBegun, report: streams.report(message.urls) };
  if (message.kind === 'open') await streams.open(message.streams);
  if (message.kind === 'mark') streams.mark();
  return { isBegun };
}

process.on('message', (message: ReaderMessage) => {
  void answer(message).then((reply) => process.send?.(reply));
});
process.once('disconnect', () => process.exit());
