/** Kind of a request, as its endpoint says it. */
export interface RequestKind {
  /** Name of the endpoint: its first path. */
  readonly endpoint: string;
  /** Counts and rates that the request belongs to; `none`: it asks no engine for tokens or an embedding. */
  readonly counts: 'generation' | 'embedding' | 'none';
  /** Operation by OpenTelemetry's conventions for generative AI; undefined where they have none. */
  readonly operation?: 'chat' | 'text_completion' | 'embeddings' | undefined;
}
