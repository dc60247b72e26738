/** Files that are larger than config/eslint_sizes.config.js allows, at the size that each has, and why. */
export const larger = [
  {
    file: 'kernels/program.ts',
    lines: 325,
    reason: 'One union of all operations, against which the compiler checks every table of them.',
  },
  {
    file: 'kernels/wasm/as/attention_few.as.ts',
    lineOfFunction: 109,
    reason: 'Blocks of one span, one after the other: what is touched ahead spans all of it.',
  },
  {
    file: 'kernels/wasm/as/attention_many.as.ts',
    lineOfFunction: 78,
    reason: 'One loop, whose sums stay in registers: a call would spill them.',
  },
  {
    file: 'kernels/wasm/as/attention_params.as.ts',
    fields: 23,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/as/attention_parts.as.ts',
    lineOfFunction: 73,
    reason: 'One loop, whose sums stay in registers: a call would spill them.',
  },
  {
    file: 'kernels/wasm/as/latent_attention.as.ts',
    fields: 12,
    lineOfFunction: 62,
    reason: 'A struct that kernels read, in the order of its bytes; and one loop, whose lanes stay in registers.',
  },
  {
    file: 'kernels/wasm/as/latent_store.as.ts',
    fields: 22,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/as/mixture.as.ts',
    fields: 12,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/as/sample_logits.as.ts',
    fields: 21,
    reason: 'The sampler slot, and the fixed-point logits of all kinds of samples by one definition.',
  },
  {
    file: 'kernels/wasm/as/embed.as.ts',
    fields: 10,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/as/gates.as.ts',
    fields: 9,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/as/linear_float.as.ts',
    lineOfFunction: 88,
    reason: 'One loop, whose sums stay in registers: a call would spill them.',
  },
  {
    file: 'kernels/wasm/as/linear_int.as.ts',
    lineOfFunction: 64,
    reason: 'One loop, whose sums stay in registers: a call would spill them.',
  },
  {
    file: 'kernels/wasm/as/linear_int_row.as.ts',
    lineOfFunction: 65,
    reason: 'One loop, whose sums stay in registers: a call would spill them.',
  },
  {
    file: 'kernels/wasm/as/mixture.as.ts',
    fields: 13,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/as/panels.as.ts',
    fields: 10,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/as/recurrence_params.as.ts',
    fields: 19,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/as/rows.as.ts',
    fields: 20,
    reason: 'A struct that kernels read, in the order of its bytes; TypeScript writes it, and a test compares both.',
  },
  {
    file: 'kernels/wasm/program_layout.ts',
    lineOfFunction: 70,
    reason: 'One layout in one order: every region is reserved where the next one begins.',
  },
  {
    file: 'kernels/wgsl/ops/expert_linear.ts',
    lineOfFunction: 73,
    reason: 'One operation, whose dispatches follow one another.',
  },
  {
    file: 'kernels/wgsl/peaks.ts',
    lineOfFunction: 71,
    reason: 'Three measurements one after the other, which share their buffers.',
  },
  {
    file: 'services/router/http/http_server.ts',
    lineOfFunction: 84,
    reason: 'Routes of one server, one after the other.',
  },
  {
    file: 'services/router/metrics/cluster_metrics.ts',
    lineOfFunction: 66,
    reason: 'One metric after the other, as a page shows them.',
  },
  {
    file: 'services/router/metrics/metrics.ts',
    lineOfFunction: 75,
    reason: 'One metric after the other, as a page shows them.',
  },
  {
    file: 'services/router/router.ts',
    lineOfFunction: 80,
    reason: 'What a router is made of, in the order in which each needs the one before.',
  },
  {
    file: 'shared/text/encoder/fast_encoder.ts',
    lines: 304,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'shared/text/encoder/pipeline_stages.ts',
    lines: 330,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'shared/text/encoder/rust_tokenizer.ts',
    lines: 308,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'shared/text/tokenizer_tools.ts',
    lines: 295,
    reason: 'The methods of one thread, with the state that they share.',
  },
  {
    file: 'shared/text/template/expression_parser.ts',
    lines: 344,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'shared/text/template/filters.ts',
    lines: 377,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'shared/text/template/interpreter.ts',
    lines: 423,
    lineOfFunction: 63,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'shared/text/template/operators.ts',
    lines: 314,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'shared/text/template/strings.ts',
    lines: 330,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'shared/text/template/values.ts',
    lines: 429,
    reason: 'A port of another language or encoder, kept next to what it is compared with.',
  },
  {
    file: 'services/store/store.ts',
    lineOfFunction: 108,
    reason: 'What a store is made of, in the order in which each needs the one before.',
  },
  {
    file: 'shared/engine/engine_worker.ts',
    lineOfFunction: 71,
    reason: 'What an engine thread begins with, in order.',
  },
  {
    file: 'shared/engine/load_model.ts',
    lineOfFunction: 72,
    reason: 'Loading in its order: device, program, spec, weights, format.',
  },
  {
    file: 'shared/instance/outbox.ts',
    lines: 285,
    reason: 'One account of records that wait, grow, are sealed and leave.',
  },
  {
    file: 'shared/model/gguf/gguf_tokenizer.ts',
    lines: 292,
    reason: 'One format of another project, translated in its own order.',
  },
  {
    file: 'shared/node/member_life.ts',
    lineOfFunction: 67,
    reason: 'The life of a member in its order, told where it happens.',
  },
  {
    file: 'shared/net/transfer_thread/transfer_methods.ts',
    lineOfFunction: 65,
    reason: 'The methods of one thread, one after the other.',
  },
];
