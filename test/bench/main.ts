/** `npm run bench -- NAME [options]`: prints figures with the machine, writes them as JSON when asked. */
import { renameSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { parseArgs } from 'node:util';
import type { Device } from '../../kernels/device.ts';
import { weightFormats, type WeightFormat } from '../../kernels/weights/weight_format.ts';
import { kernelSets, type KernelSet } from '../../kernels/wgsl/kernel_set.ts';
import { benchEngine, engineBenchDefaults, shapeNames } from './engine.ts';
import { figureLine, print, report, type Figure } from './figures.ts';
import { LlamaPeer, peerInstructions, type PeerInstructions } from './llama_peer.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { LongestPrefixPolicy } from '../../shared/placement/longest_prefix_policy.ts';
import { openDevice } from '../../shared/engine/open_device.ts';
import { benchBus } from './bus_traffic.ts';
import { PricedPolicy } from '../../shared/placement/priced/priced_policy.ts';
import { benchCluster } from './cluster.ts';
import { benchConductor } from './conductor.ts';
import { benchGrammar } from './grammar.ts';
import { benchGuided } from './guided.ts';
import { benchIdle } from './idle.ts';
import { kvSizes } from './kv_sizes.ts';
import { benchIndex } from './prefix_index.ts';
import { benchLoad } from './load.ts';
import { benchMix } from './mix.ts';
import { benchPath } from './path.ts';
import { benchPipeline } from './pipeline.ts';
import { benchRouter } from './router.ts';
import { benchRouterStream, type RouterStreamOptions } from './router_stream.ts';
import { benchSampling, type SamplingBenchOptions } from './sampling.ts';
import { SglangRouter } from './sglang_peer.ts';
import { benchSamples } from './samples.ts';
import { benchStore } from './store.ts';
import { benchTokenize, tokenizerKinds, tokenizersPeer } from './tokenize.ts';
import { mooncakeName } from './mooncake_peer.ts';
import { benchTransfer } from './transfer.ts';
import { benchWatch } from './watch.ts';
import { attentionShapeNames } from './uniform_model.ts';
import { vocabularyFolder } from '../support/downloads.ts';

const { wasm, webgpu } = engineBenchDefaults;
const USAGE = `usage: npm run bench -- NAME [options]

  path                     the whole path on this machine, wasm engines, the repository's model and a 135M shape (some minutes)
  mix                      time between tokens of chats while long prompts arrive, split, placed by price, aggregated (135M; some minutes)
  cluster                  chats that share system prompts, placed by the default policy and by the longest prefix in turn: predicted and real
                           times, and the throughput at twice the rate (2 prefill, 2 decode instances, the repository's model; some minutes)
  samples                  16 samples of a prompt against a single request, and against 16 requests (135M)
  sampling                 what sampling a token costs, by vocabulary, batch and kind of request
    --device, --threads, --batches, --shapes (the first), --weights (the first), --peer   as for engine
    --vocabs LIST          (default 32000,128256,256000)
  index                    the prefix index: look-ups, ingest and bytes at 10 million blocks and 64 holders
    --peer dynamo          next to it: NVIDIA Dynamo's radix tree, a tenth of the blocks, into the cache folder
  conductor                decisions of two policies with 64 and 1,000 instances, prompts of 3,000 blocks in 1 to 50 ranges, the index included
  transfer                 bytes of KV and state of published models (computed); records between two processes of this machine, over
                           calls and over plain sockets next to them
    --sizes LIST           of a record, in KiB (default 100,737,4096)
    --streams LIST         fetches at once (default 1,4)
    --peer mooncake        next to it: Mooncake's store over TCP, into the cache folder (needs Debian's libibverbs1)
  store                    a store's disk tier against a plain file on the same disk
    --sizes LIST           of a record, in KiB (default 100,737,4096)
    --folder DIR           on the disk to measure (default: the folder for temporary files)
  load                     models from files into a wasm engine, against a plain read of the file
    --shapes LIST          (default 1b), --threads   as for engine
  tokenize                 text to token ids, against the library, by every kind of tokenizer that tests have
    --peer tokenizers      next to it: Hugging Face's Rust package on one thread, into the cache folder
  grammar                  token table, compile and masks of outputs that follow a grammar, against the library alone
  guided                   8 streams that follow a grammar against 8 free ones (135M with 128k tokens; some minutes)
  bus                      what a cluster says over its bus, in bytes a second (computed, under simulated time)
  router                   what a request of known token ids costs the router, against instances that answer at once
    --peer sglang          next to it: sglang-router, its prompts as text, into the cache folder
    --lengths LIST         (default 1000,32000,100000)
    --stream               instead: what a streamed token costs the router, readers at 30 tokens/s against two instances that emit on a clock
      --readers LIST       readers at once (default 100,300,1000)
      --seconds N          of each measurement (default 10)
      --stalled N          further readers that stop reading (default none)
      --routers N          divide the readers over N routers with a nats-server (of the PATH), after a run with one: figures of all, next to one's
      --kill               kill one of the instances in the middle: streams with a gap, a repeat or another text, and the longest pause
      --kill-router        kill one of several routers instead: streams that end with it, and the same of the other routers' streams
  watch                    what it costs to watch a pool of 1,000 members: the router, its routes, its page in Chromium; members leave and return
                           (some minutes)
    --members N            (default 1000), --requests N (default 10000), --span SECONDS of each figure (default 20)
  idle                     what a cluster takes while nobody asks: memory, threads, CPU and wake-ups by process; the default one and the small form
                           (Linux)
    --requests N           of one token, after which it is measured again (default 0), --span SECONDS (default 30)
  engine                   one engine by itself, random weights
    --device NAME          wasm (default), webgpu, webgpu:INDEX, webgpu:PART_OF_NAME
    --shapes LIST          of ${shapeNames.join(', ')} (default ${wasm.shapes.join(',')}; webgpu ${webgpu.shapes.join(',')})
    --weights LIST         of ${weightFormats.join(', ')} (default all)
    --kernel-sets LIST     of ${kernelSets.join(', ')} (default the first two; webgpu only)
    --prefill LIST         prompt lengths (default ${wasm.prefillTokens.join(',')}; webgpu ${webgpu.prefillTokens.join(',')})
    --batches LIST         sequences in a decode step (default ${wasm.batches.join(',')}; webgpu ${webgpu.batches.join(',')})
    --contexts LIST        tokens before a decode step (default ${wasm.contexts.join(',')})
    --threads N            of a wasm engine and its peer (default 0: one per core)
    --peer llama.cpp       next to it, on wasm: node-llama-cpp with the same weights, installed into a cache folder
                           (~/.cache/penstock-bench, or in $XDG_CACHE_HOME; 700 MB and the models)
    --peer-instructions I  what it may use of an x64 CPU: ${peerInstructions.join(', ')} (default all; avx512 leaves out matrix units)
    --budget SECONDS       skip a figure that would take longer (default ${wasm.budgetMs / 1_000}; webgpu ${webgpu.budgetMs / 1_000})
    --no-profile           no times of single kernels
  --json FILE              write the figures there too`;

function fail(message: string): never {
  console.error(`${message}\n\n${USAGE}`);
  process.exit(2);
}

function commandLine() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: {
        json: { type: 'string' },
        device: { type: 'string', default: 'wasm' },
        shapes: { type: 'string' },
        weights: { type: 'string' },
        'kernel-sets': { type: 'string' },
        prefill: { type: 'string' },
        batches: { type: 'string' },
        vocabs: { type: 'string' },
        lengths: { type: 'string' },
        stream: { type: 'boolean', default: false },
        readers: { type: 'string' },
        seconds: { type: 'string' },
        stalled: { type: 'string' },
        routers: { type: 'string', default: '1' },
        kill: { type: 'boolean', default: false },
        'kill-router': { type: 'boolean', default: false },
        members: { type: 'string' },
        requests: { type: 'string' },
        span: { type: 'string' },
        sizes: { type: 'string' },
        streams: { type: 'string' },
        folder: { type: 'string' },
        contexts: { type: 'string' },
        threads: { type: 'string', default: '0' },
        budget: { type: 'string' },
        peer: { type: 'string' },
        'peer-instructions': { type: 'string' },
        'no-profile': { type: 'boolean', default: false },
        help: { type: 'boolean', short: 'h', default: false },
      },
    });
  } catch (error) {
    return fail(error instanceof Error ? error.message : String(error));
  }
}

const { values, positionals } = commandLine();
if (values.help) {
  console.log(USAGE);
  process.exit(0);
}

function listOf<T extends string>(text: string | undefined, known: readonly T[]): readonly T[] {
  return text?.split(',').map((name) => oneOf(name, known)) ?? known;
}

function oneOf<T extends string>(name: string, known: readonly T[]): T {
  return known.find((one) => one === name) ?? fail(`${name} is none of ${known.join(', ')}`);
}

function numbersOf(text: string | undefined, fallback: readonly number[]): readonly number[] {
  return (text?.split(',') ?? fallback).map((part) => {
    const value = Number(part);
    return value > 0 ? value : fail(`${part} is no positive number`);
  });
}

function numberOf(text: string | undefined, fallback: number): number {
  return numbersOf(text, [fallback])[0] ?? fallback;
}

const engines: Record<string, string> = {};
const sofar: Figure[] = [];

/** After every figure, so that what ends a run early loses none. */
function save(figures: readonly Figure[]): void {
  if (values.json === undefined) return;
  writeFileSync(`${values.json}.part`, `${JSON.stringify(report(figures, engines), undefined, 2)}\n`);
  renameSync(`${values.json}.part`, values.json);
}

const onFigure = (figure: Figure): void => {
  console.log(figureLine(figure));
  sofar.push(figure);
  save(sofar);
};

function printLine(line: string): void {
  console.log(line);
}

function threadsOf(): number {
  const numThreads = Number(values.threads);
  return Number.isInteger(numThreads) && numThreads >= 0
    ? numThreads
    : fail(`${values.threads} is no number of threads`);
}

/** Returns the peer's instruction limit when a peer is requested, undefined otherwise; exits on bad options. */
function peerOf(): PeerInstructions | undefined {
  if (values.peer !== undefined && (values.peer !== 'llama.cpp' || values.device !== 'wasm'))
    fail(`no peer ${values.peer} for ${values.device}: --peer llama.cpp goes with --device wasm`);
  if (values['peer-instructions'] !== undefined && values.peer === undefined)
    fail('--peer-instructions goes with --peer');
  return values.peer === undefined ? undefined : oneOf(values['peer-instructions'] ?? 'all', peerInstructions);
}

/** Returns the number of routers and what is killed under their streams; exits on bad options. */
function routersAndKill(): Pick<RouterStreamOptions, 'numRouters' | 'killed'> {
  const numRouters = numberOf(values.routers, 1);
  if (!Number.isInteger(numRouters)) fail(`${values.routers} is no number of routers`);
  if (numRouters > 1 && values.peer !== undefined) fail('--peer goes with one router');
  if (values['kill-router'] && numRouters === 1) fail('--kill-router goes with --routers');
  if (values['kill-router'] && values.kill) fail('--kill and --kill-router are two runs');
  return { numRouters, killed: values.kill ? 'instance' : values['kill-router'] ? 'router' : undefined };
}

async function samplingPeer(): Promise<SamplingBenchOptions['peer']> {
  const instructions = peerOf();
  if (!instructions) return undefined;
  const numThreads = threadsOf() || availableParallelism();
  const llama = await LlamaPeer.install(numThreads, instructions, printLine);
  engines['peer'] = `llama.cpp in ${llama.version} with ${llama.instructions}, ${numThreads} threads`;
  return { llama, numThreads };
}

/** @throws DeviceError */
async function deviceOf(name: string): Promise<Device> {
  const choice = { deviceMemoryBytes: 0, deviceSharing: 1, numThreads: threadsOf() };
  return openDevice({ ...choice, device: name, kernelSet: 'deterministic' });
}

const benches: Record<string, () => Promise<Figure[]>> = {
  mix: () => benchMix({ shape: '135m', promptTokens: 2_048, numRounds: 3, onFigure, print: printLine }),
  cluster: () => benchCluster({ numRounds: 3, numChats: 40, rate: 2, onFigure, print: printLine }),
  samples: () =>
    benchSamples({ shape: '135m', promptTokens: 512, numSamples: 16, numRounds: 5, onFigure, print: printLine }),
  sampling: async () => {
    const device = await deviceOf(values.device);
    engines['device'] = device.description;
    return benchSampling({
      device,
      vocabs: numbersOf(values.vocabs, [32_000, 128_256, 256_000]),
      batches: numbersOf(values.batches, [1, 8, 64]),
      shape: values.shapes === undefined ? '135m' : (listOf(values.shapes, attentionShapeNames)[0] ?? '135m'),
      format:
        values.weights === undefined ? 'int8' : (listOf<WeightFormat>(values.weights, weightFormats)[0] ?? 'int8'),
      context: 128,
      numSteps: 40,
      onFigure,
      peer: await samplingPeer(),
      print: printLine,
    });
  },
  index: async () => {
    if (values.peer !== undefined) oneOf(values.peer, ['dynamo']);
    const hasPeer = values.peer !== undefined;
    return benchIndex({ numBlocks: 10_000_000, numHolders: 64, hasPeer, onFigure, print: printLine });
  },
  conductor: () =>
    Promise.resolve(
      benchConductor({
        policies: {
          longest_prefix: () => new LongestPrefixPolicy(256),
          priced: () => new PricedPolicy({ fallback: new LongestPrefixPolicy(256) }),
        },
        numInstances: [64, 1_000],
        promptBlocks: 3_000,
        numDecisions: 2_000,
        clock: systemClock,
        onFigure,
      }),
    ),
  transfer: async () => {
    if (values.peer !== undefined) oneOf(values.peer, ['mooncake']);
    if (values.peer !== undefined) engines['peer'] = mooncakeName;
    const sizes = kvSizes();
    sizes.forEach(onFigure);
    const moved = await benchTransfer({
      peer: values.peer === undefined ? undefined : { print: printLine },
      recordKiBs: numbersOf(values.sizes, [100, 737, 4_096]),
      numStreams: numbersOf(values.streams, [1, 4]),
      totalBytes: 256 << 20,
      measureMs: 3_000,
      onFigure,
    });
    return [...sizes, ...moved];
  },
  store: () =>
    benchStore({
      recordKiBs: numbersOf(values.sizes, [100, 737, 4_096]),
      folder: values.folder ?? tmpdir(),
      totalBytes: 512 << 20,
      numRecovered: 100_000,
      onFigure,
    }),
  tokenize: () => {
    if (values.peer !== undefined) oneOf(values.peer, ['tokenizers']);
    const hasPeer = values.peer !== undefined;
    if (hasPeer) engines['peer'] = `tokenizers ${tokenizersPeer.version} (Rust), one thread`;
    return benchTokenize({ kinds: tokenizerKinds, hasPeer, print: printLine, onFigure });
  },
  load: () => {
    const shape = values.shapes === undefined ? '1b' : (listOf(values.shapes, attentionShapeNames)[0] ?? '1b');
    return benchLoad({ shape, numThreads: threadsOf(), print: printLine, onFigure });
  },
  grammar: () =>
    benchGrammar({
      folder: vocabularyFolder('llama3_2'),
      vocabSize: 128_256,
      numDocuments: 64,
      numGrammars: 100,
      onFigure,
    }),
  guided: () =>
    benchGuided({
      shape: '135m',
      tokenizer: vocabularyFolder('llama3_2'),
      vocabSize: 128_256,
      numStreams: 8,
      numTokens: 48,
      numRounds: 5,
      print: printLine,
      onFigure,
    }),
  bus: () => benchBus({ numMembers: [64, 1_000], onFigure }),
  router: () => {
    if (values.peer !== undefined) oneOf(values.peer, ['sglang']);
    if (values.peer !== undefined) engines['peer'] = `sglang-router ${SglangRouter.version}, cache_aware, text`;
    const common = { hasPeer: values.peer !== undefined, print: printLine, onFigure };
    if (values.stream)
      return benchRouterStream({
        ...common,
        numReaders: numbersOf(values.readers, [100, 300, 1_000]),
        seconds: numberOf(values.seconds, 10),
        numStalled: values.stalled === undefined ? 0 : numberOf(values.stalled, 0),
        ...routersAndKill(),
      });
    return benchRouter({
      ...common,
      lengths: numbersOf(values.lengths, [1_000, 32_000, 100_000]),
      concurrencies: [1, 8],
    });
  },
  idle: () =>
    benchIdle({
      numRequests: values.requests === undefined ? 0 : numberOf(values.requests, 0),
      spanMs: 1_000 * numberOf(values.span, 30),
      onFigure,
      print: printLine,
    }),
  watch: () => {
    const [numMembers, numRequests] = [numberOf(values.members, 1_000), numberOf(values.requests, 10_000)];
    const spanMs = 1_000 * numberOf(values.span, 20);
    return benchWatch({
      numMembers,
      numRequests,
      spanMs,
      numBlocks: 100 * numMembers,
      rate: 50,
      print: printLine,
      onFigure,
    });
  },
  path: async () => {
    const own = await benchPath({ promptTokens: 1_024, numRequests: 24, numTokens: 32 });
    // A model of this size is large enough for a user to split into prefill and decode.
    const shaped = await benchPath({ shape: '135m', promptTokens: 1_024, numRequests: 8, numTokens: 16 });
    const long = await benchPipeline({ shape: '135m', promptTokens: 4_000, numPrompts: 4, chunkTokens: 512 });
    return [...own, ...shaped, ...long];
  },
  engine: () => {
    const defaults = values.device === 'wasm' ? wasm : webgpu;
    return benchEngine({
      device: values.device,
      shapes: values.shapes === undefined ? defaults.shapes : listOf(values.shapes, shapeNames),
      formats: listOf<WeightFormat>(values.weights, weightFormats),
      sets:
        values['kernel-sets'] === undefined
          ? kernelSets.slice(0, 2)
          : listOf<KernelSet>(values['kernel-sets'], kernelSets),
      prefillTokens: numbersOf(values.prefill, defaults.prefillTokens),
      batches: numbersOf(values.batches, defaults.batches),
      contexts: numbersOf(values.contexts, defaults.contexts),
      numThreads: threadsOf(),
      budgetMs: values.budget === undefined ? defaults.budgetMs : (numbersOf(values.budget, [])[0] ?? 0) * 1_000,
      hasProfile: !values['no-profile'],
      peer: peerOf(),
      readRegionBytes: defaults.readRegionBytes,
      onEngine: (what, description) => {
        engines[what] = description;
      },
      print: printLine,
      onFigure,
    });
  },
};

const bench = benches[positionals[0] ?? ''] ?? fail(`no benchmark ${positionals[0] ?? ''}`);
const figures = await bench();
print(report(figures, engines));
save(figures);
process.exit(0);
