/** Option tables shared by roles: options of every process, of members that hold blocks, and of engines. */
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { logLevels } from '../base/log_levels.ts';
import { productsNames } from '../engine/products_names.ts';
import { queueOrderNames } from '../engine/queue_order.ts';
import { address, addressOrNone, bytes, integer, onOrOff, option, positive, type ConfigOf } from '../base/options.ts';
import { busOptions } from './bus_options.ts';
import { deviceMemoryOptions } from './device_memory_options.ts';
import { metricsOptions } from './metrics/metrics_options.ts';
import { traceOptions } from './trace_options.ts';

const defaultModel = fileURLToPath(new URL('../../../config/models/harbour', import.meta.url));

/** Options of every process. */
export const processOptions = {
  bind: option(
    'Network',
    'HOST:PORT',
    addressOrNone,
    '',
    'where to listen; default 127.0.0.1, port 8000 for the router, picked by the system for others',
  ),
  advertise: option(
    'Network',
    'HOST:PORT',
    addressOrNone,
    '',
    'address at which other processes reach this one; default: the bound address, or with 0.0.0.0 that of the interface which leads to the bus',
  ),
  ...metricsOptions,
  cluster_token: option(
    'Network',
    'TOKEN',
    z.string().regex(/^[\x21-\x7e]*$/, 'printable ASCII without spaces'),
    '',
    'secret that all processes of a cluster share, of 16 characters at least where a process listens beyond this machine; better in the environment or a file than in a flag, which the list of processes shows. `up` makes one when it has none, for itself and for commands of the same user',
    { isSecret: true },
  ),
  cluster_token_file: option(
    'Network',
    'FILE',
    z.string(),
    '',
    'file with that secret, one token a line: the first is sent, and all are taken, while one replaces another; read again when it changes',
    { isPath: true },
  ),
  cluster: option(
    'Network',
    'NAME',
    z.string().regex(/^[A-Za-z0-9_-]+$/, 'letters, digits, _ and -'),
    'default',
    'name of the cluster: several can share a bus',
  ),
  ...busOptions,
  tls_cert: option(
    'Network',
    'FILE',
    z.string(),
    '',
    'certificate of this process (PEM), which names the host that others reach it at; set it with --tls-key and --tls-ca to encrypt all traffic between processes; the files are read again when they change',
    { isPath: true },
  ),
  tls_key: option('Network', 'FILE', z.string(), '', 'key of that certificate', { isPath: true }),
  tls_ca: option(
    'Network',
    'FILE',
    z.string(),
    '',
    'authority certificates (PEM) with which the certificates of the other processes are verified',
    {
      isPath: true,
    },
  ),
  name: option(
    'Process',
    'NAME',
    z.string().regex(/^[A-Za-z0-9._:@-]*$/, 'letters, digits and . _ : @ -'),
    '',
    'name in the dashboard; default: role@address',
  ),
  drain_timeout_ms: option(
    'Process',
    'MS',
    positive(3_600_000),
    30_000,
    'after SIGTERM, running requests get this long',
  ),
  ...traceOptions,
  log_level: option('Process', 'LEVEL', z.enum(logLevels), 'info', `one of ${logLevels.join(', ')}`),
} as const;

/** Parsed values of {@link processOptions}. */
export type ProcessConfig = ConfigOf<typeof processOptions>;

/** Options of a process that reads a model's folder: a router, or a process with an engine. */
export const modelOptions = {
  model: option(
    'Model and engine',
    'MODEL',
    z.string().min(1),
    defaultModel,
    'Hugging Face folder (config.json, safetensors files, tokenizer.json), GGUF file, or ORG/NAME[@REVISION][:FILE.gguf] of a hub; a router, and `up`, take several',
    { isPath: true, isList: true },
  ),
  max_model_len: option(
    'Budgets',
    'N',
    integer(z.int().min(0)),
    0,
    'longest prompt and output together; 0: what the model has',
  ),
} as const;

/** Options of a member of a cluster that holds blocks: an instance or a store. */
export const memberOptions = {
  ...processOptions,
  join: option(
    'Network',
    'HOST:PORT',
    address,
    '127.0.0.1:8001',
    "address of the router's hub, its built-in bus; without effect with --bus",
  ),
  transport: option(
    'Network',
    'KIND',
    z.enum(['auto', 'bulk', 'grpc']),
    'auto',
    'how KV blocks are sent: bulk over data channels (sockets next to gRPC), grpc over the gRPC calls, auto through shared memory on one host and else as bulk; gRPC is used where no data channel opens',
  ),
  bulk_port: option(
    'Network',
    'PORT',
    integer(z.int().min(0).max(65_535)),
    0,
    'port on which data channels (see --transport) are accepted; 0: picked by the system',
  ),
  dram_bytes: option(
    'Budgets',
    'SIZE',
    bytes,
    256 * 2 ** 20,
    'host memory for records: outbox of an instance, DRAM tier of a store',
  ),
} as const;

/** Parsed values of {@link memberOptions}. */
export type MemberConfig = ConfigOf<typeof memberOptions>;

/** Options of a process with an engine: prefill or decode. */
export const engineOptions = {
  ...modelOptions,
  device: option(
    'Model and engine',
    'NAME',
    z.string().min(1),
    'auto',
    'what computes: auto, wasm, webgpu, webgpu:INDEX, webgpu:PART_OF_NAME; `penstock devices` lists them',
  ),
  kernel_set: option(
    'Model and engine',
    'SET',
    z.enum(['deterministic', 'fast', 'matrices']),
    'deterministic',
    'webgpu kernels: deterministic (bit-identical output whatever the batch, and after a failover), fast (equal within a tolerance), or matrices (deterministic on matrix units, with activations in f16)',
  ),
  products: option(
    'Model and engine',
    'NAME',
    z.enum(productsNames),
    'auto',
    'products on wasm: plain (SIMD that every runtime has), relaxed (relaxed SIMD), dot (its dot product of bytes, where the runtime makes that one instruction of the CPU), native:avx2, native:vnni256, native:avx512 or native:amx (C kernels in those instructions, where the build has them), native (the fastest of these), or auto (what is fastest here of those that pass a trial at start); all compute the same bits',
  ),
  weights: option(
    'Model and engine',
    'FORMAT',
    z.enum(['auto', 'f32', 'f16', 'int8', 'int4', 'uint4']),
    'auto',
    'format of weights: f32, f16, int8, int4, uint4; auto: as the file has them, else f16 on webgpu, int8 on wasm; one value per cluster',
  ),
  kv_dtype: option(
    'Model and engine',
    'TYPE',
    z.enum(['f16', 'f32']),
    'f16',
    'type of KV blocks: f16, or f32 for exact tests',
  ),
  mix_numerics: option(
    'Model and engine',
    '',
    onOrOff,
    false,
    'engines with different numerics (device kinds, kernel sets) share KV blocks; output is then equal within a tolerance only. `up` sets it where its engines run on two kinds of devices',
  ),
  block_size: option(
    'Model and engine',
    'N',
    integer(z.int().min(4).max(1024).multipleOf(4)),
    32,
    'tokens per KV block, a multiple of 4; one value per cluster',
  ),
  threads: option(
    'Model and engine',
    'N',
    integer(z.int().min(0).max(256)),
    0,
    'threads per engine; 0: the cores, divided among local engines by `up`',
  ),
  device_memory: option(
    'Budgets',
    'SIZE',
    bytes,
    0,
    'memory of a webgpu device that an engine uses, weights included; 0: what there is, less a tenth',
  ),
  device_sharing: option(
    'Budgets',
    'N',
    positive(256),
    1,
    'number of local engines that share a device, each with an equal part of its memory; `up` sets it',
  ),
  ...deviceMemoryOptions,
  max_num_seqs: option('Budgets', 'N', positive(1024), 64, 'sequences an engine runs at once'),
  max_waiting: option(
    'Budgets',
    'N',
    positive(2 ** 20),
    1024,
    'sequences that wait for an engine; more are refused with 503',
  ),
  queue_order: option(
    'Budgets',
    'NAME',
    z.enum(queueOrderNames),
    queueOrderNames[0],
    'order of the queue: first_come, shortest_first (fewest rows left), slices (prompts in turn), feedback (levels by rows computed), shared_prefix (largest group first)',
  ),
  fair_shares: option(
    'Budgets',
    'on|off',
    z.enum(['on', 'off']),
    'on',
    'whether tenants share an engine by the milliseconds that they take of it, above the order of the queue; off: all wait in one queue',
  ),
  // A GPU's grid has at most 65,535 workgroups in a dimension.
  chunk_tokens: option('Budgets', 'N', positive(65_535), 512, 'tokens an engine computes in one step'),
  step_ms: option(
    'Budgets',
    'MS',
    integer(z.int().min(0).max(86_400_000)),
    0,
    'target duration of a step while sequences wait for their next tokens: prompts may not lengthen it further; 0: by --tbt-target-ms, else 2.5 times a step without prompts',
  ),
  tbt_target_ms: option(
    'Budgets',
    'MS',
    integer(z.int().min(0).max(86_400_000)),
    0,
    'target for the time between two tokens of an answer: prompts get what a step may take until then, less the spread of its steps; 0: none',
  ),
  ...memberOptions,
  step_timeout_ms: option(
    'Process',
    'MS',
    positive(86_400_000),
    120_000,
    'longest engine step; after it the device counts as hung, and the instance ends',
  ),
  lose_device_after_steps: option(
    'Process',
    'N',
    integer(z.int().min(0)),
    0,
    'for fault injection: lose the device after this many steps, as in a driver reset; 0: never',
  ),
  hang_after_steps: option(
    'Process',
    'N',
    integer(z.int().min(0)),
    0,
    'for fault injection: hang the engine after this many steps, like a stuck driver; 0: never',
  ),
} as const;

/** Parsed values of {@link engineOptions}. */
export type EngineConfig = ConfigOf<typeof engineOptions>;
