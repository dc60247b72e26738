/**
 * The hardware of simulated instances: how long a step takes, how fast blocks move, how many tokens of KV there is room for. Read from a
 * file, from a running cluster (`/api/hardware`), or the one below.
 *
 *   step seconds = fixed + max(weights, per_row * rows) + per_attended_pair * pairs
 *                + per_context_token_of_a_decode_row * context tokens + per_sequence * sequences
 *
 * Few rows are bound by reading the weights, many by arithmetic.
 */
import { z } from 'zod';
import { Failure, messageOf } from '../../shared/base/failure.ts';
import { TRACE_BLOCK_TOKENS, type Trace } from '../../shared/trace/trace.ts';

/** Coefficients of the seconds that a step takes; see the formula above. */
interface StepSeconds {
  readonly fixed: number;
  /** Reading all weights once. */
  readonly weights: number;
  /** Arithmetic of one row with all weights. */
  readonly perRow: number;
  /** One row of a prompt attending to one token. */
  readonly perAttendedPair: number;
  /** Reading the KV of one token for a sequence that generates. */
  readonly perContextToken: number;
  readonly perSequence: number;
}

/** Hardware of one instance, and of its links. */
export interface Hardware {
  readonly name: string;
  readonly source: string;
  readonly step: StepSeconds;
  readonly kvBytesPerToken: number;
  /** Bytes per second between two instances. */
  readonly linkBytesPerSecond: number;
  readonly dramToDeviceBytesPerSecond: number;
  /** Tokens of KV that fit on the device next to the model, and in the DRAM of the instance. */
  readonly deviceKvTokens: number;
  readonly dramKvTokens: number;
  /** Most rows of a step. */
  readonly maxRows: number;
  /** Tokens per block id of the traces that go with this hardware. */
  readonly traceBlockTokens: number;
}

const seconds = z.number().min(0).max(3_600);
const rate = z.number().positive();
const tokens = z.int().max(2 ** 40);
const text = z.string().max(10_000);

const hardwareSchema = z.strictObject({
  name: text.min(1),
  /** Words for people, which nothing reads. */
  source: text.optional(),
  step_formula: text.optional(),
  speed_up: text.optional(),
  comment: text.optional(),
  /** Keys that a router has not measured, which nothing reads. */
  assumed: z.array(text).max(64).optional(),
  step_seconds: z.strictObject({
    fixed: seconds,
    weights: seconds,
    per_row: seconds,
    per_attended_pair: seconds,
    per_context_token_of_a_decode_row: seconds,
    per_sequence: seconds.default(0),
  }),
  kv_bytes_per_token: z.int().min(1),
  link_bytes_per_second: rate,
  dram_to_device_bytes_per_second: rate,
  device_kv_tokens: tokens.min(1),
  dram_kv_tokens: tokens.min(0),
  max_rows: z.int().min(1).max(1_000_000),
  block_tokens_of_the_trace: z
    .int()
    .min(1)
    .max(2 ** 16)
    .default(TRACE_BLOCK_TOKENS),
  /** Memory of the device and weights of the model, in bytes; with both the file is checked for room. */
  device_memory_bytes: z.int().min(1).optional(),
  weight_bytes: z.int().min(1).optional(),
});

type HardwareFile = z.infer<typeof hardwareSchema>;

/** The hardware without `--hardware`: one GPU whose figures are public, with a model that fits it. */
export const defaultHardware: Hardware = {
  name: 'Llama-3.1-8B, bf16, one H100-SXM5-80GB an instance',
  source:
    'published peaks (989 TFLOP/s dense bf16, 3.35 TB/s), 65 % and 70 % of them; 8.03e9 weights; 32 layers, hidden 4096, ' +
    '8 KV heads of 128: 128 KiB KV a token; 90 % of the memory; 400 Gbit/s and PCIe 5 x16 at 90 %; 256 GiB DRAM',
  step: {
    fixed: 0.001,
    weights: 0.006_848_6,
    perRow: 0.000_024_982,
    perAttendedPair: 8.155_6e-10,
    perContextToken: 5.589_4e-8,
    perSequence: 0,
  },
  kvBytesPerToken: 131_072,
  linkBytesPerSecond: 45e9,
  dramToDeviceBytesPerSecond: 57e9,
  deviceKvTokens: 425_984,
  dramKvTokens: 2_097_152,
  maxRows: 512,
  traceBlockTokens: TRACE_BLOCK_TOKENS,
};

/** Returns the hardware that `json` describes; `where` names the file or URL in messages. @throws Failure that names the key. */
export function parseHardware(json: string, where: string): Hardware {
  let parsed: unknown;
  try {
    parsed = JSON.parse(json);
  } catch (error) {
    throw new Failure('invalid_request', `${where} is not JSON: ${messageOf(error)}`);
  }
  const result = hardwareSchema.safeParse(parsed);
  if (!result.success)
    throw new Failure('invalid_request', `${where}: ${result.error.issues.map(issueText).join('; ')}`);
  checkRoom(result.data, where);
  return hardwareOf(result.data);
}

function issueText(issue: z.core.$ZodIssue): string {
  const path = issue.path.map(String);
  if (issue.code !== 'unrecognized_keys') return `${path.join('.') || 'the file'}: ${issue.message}`;
  const schema = path.length === 0 ? hardwareSchema : hardwareSchema.shape.step_seconds;
  return `${[...path, issue.keys.join(', ')].join('.')}: unknown key; known are ${Object.keys(schema.shape).join(', ')}`;
}

function checkRoom(file: HardwareFile, where: string): void {
  const refuse = (message: string): never => {
    throw new Failure('invalid_request', `${where}: ${message}`);
  };
  const { fixed, weights, per_row: perRow } = file.step_seconds;
  if (fixed + weights + perRow <= 0) refuse('step_seconds: a step takes no time: set fixed, weights or per_row');
  const { device_memory_bytes: memory, weight_bytes: weightBytes } = file;
  if (memory === undefined || weightBytes === undefined) return;
  if (weightBytes >= memory)
    refuse(`weight_bytes: the model's ${weightBytes} bytes do not fit device_memory_bytes, which are ${memory}`);
  const kvBytes = file.device_kv_tokens * file.kv_bytes_per_token;
  if (weightBytes + kvBytes > memory)
    refuse(
      `device_kv_tokens: the model leaves ${memory - weightBytes} bytes on the device, ` +
        `which hold ${Math.floor((memory - weightBytes) / file.kv_bytes_per_token)} tokens, not ${file.device_kv_tokens}`,
    );
}

function hardwareOf(file: HardwareFile): Hardware {
  const { step_seconds: step } = file;
  return {
    name: file.name,
    source: file.source ?? '',
    step: {
      fixed: step.fixed,
      weights: step.weights,
      perRow: step.per_row,
      perAttendedPair: step.per_attended_pair,
      perContextToken: step.per_context_token_of_a_decode_row,
      perSequence: step.per_sequence,
    },
    kvBytesPerToken: file.kv_bytes_per_token,
    linkBytesPerSecond: file.link_bytes_per_second,
    dramToDeviceBytesPerSecond: file.dram_to_device_bytes_per_second,
    deviceKvTokens: file.device_kv_tokens,
    dramKvTokens: file.dram_kv_tokens,
    maxRows: file.max_rows,
    traceBlockTokens: file.block_tokens_of_the_trace,
  };
}

/**
 * Returns the seconds of a step with `rows` rows, of which those of prompts attend to `pairs` tokens together and those of `sequences`
 * generating sequences read the KV of `contextTokens` tokens.
 */
export function stepSeconds(
  { step }: Pick<Hardware, 'step'>,
  rows: number,
  pairs: number,
  contextTokens: number,
  sequences = 0,
): number {
  return (
    step.fixed +
    Math.max(step.weights, step.perRow * rows) +
    step.perAttendedPair * pairs +
    step.perContextToken * contextTokens +
    step.perSequence * sequences
  );
}

/**
 * Checks that the device of an instance holds the KV of each request of a trace. `where` names the trace in messages. @throws Failure that
 * names the line of the longest request and both sizes.
 */
export function checkFits(trace: Trace, { deviceKvTokens, name }: Hardware, where: string): void {
  const { inputTokens, outputTokens } = trace.columns;
  let longest = 0;
  for (let i = 1; i < trace.numRequests; i++)
    if (inputTokens[i]! + outputTokens[i]! > inputTokens[longest]! + outputTokens[longest]!) longest = i;
  const needed = inputTokens[longest]! + outputTokens[longest]!;
  if (needed <= deviceKvTokens) return;
  throw new Failure(
    'invalid_request',
    `${where}:${longest + 1}: input_length ${inputTokens[longest]!} and output_length ${outputTokens[longest]!} need ${needed} tokens of KV, ` +
      `more than the device_kv_tokens of an instance, ${deviceKvTokens} (${name})`,
  );
}
