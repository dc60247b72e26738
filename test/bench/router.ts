/**
 * Measures the router's cost per request: prompts of known token ids against instances that answer at once. Reports requests per second,
 * the latency that 99 of 100 requests keep, and the CPU time of the router process per request.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Random } from '../../shared/base/random.ts';
import { projectPath } from '../support/project.ts';
import { cpuMsOf } from './cpu_times.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { cacheFolder } from './llama_peer.ts';
import { startRouter } from './router_process.ts';
import { SglangRouter } from './sglang_peer.ts';

export interface RouterBenchOptions {
  readonly lengths: readonly number[];
  readonly concurrencies: readonly number[];
  readonly hasPeer: boolean;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

const VOCAB = 128_256;
const CONTEXT = 131_072;
/** Prompts that are asked in turn. */
const NUM_PROMPTS = 8;
const MEASURE_MS = 5_000;
const WARM_MS = 1_500;
const INSTANCES = 2;

export async function benchRouter({
  lengths,
  concurrencies,
  hasPeer,
  print,
  onFigure,
}: RouterBenchOptions): Promise<Figure[]> {
  const model = join(cacheFolder(), 'ids-only');
  mkdirSync(model, { recursive: true });
  writeFileSync(
    join(model, 'config.json'),
    JSON.stringify({
      architectures: ['LlamaForCausalLM'],
      model_type: 'llama',
      hidden_act: 'silu',
      hidden_size: 64,
      num_hidden_layers: 1,
      num_attention_heads: 2,
      num_key_value_heads: 2,
      head_dim: 32,
      intermediate_size: 128,
      vocab_size: VOCAB,
      max_position_embeddings: CONTEXT,
      rms_norm_eps: 1e-5,
      rope_theta: 1e4,
      tie_word_embeddings: true,
      bos_token_id: 1,
      eos_token_id: 2,
    }),
  );
  const started: ChildProcess[] = [];
  const figures: Figure[] = [];
  try {
    const { url, hub, process: router } = await startRouter(model, started);
    const instances = Array.from({ length: INSTANCES }, () =>
      fork(projectPath('dist/test/bench/instant_decode.js'), [hub, model]),
    );
    started.push(...instances);
    await Promise.all(instances.map((one) => once(one, 'message')));
    const peer = hasPeer ? await SglangRouter.start(print) : undefined;
    if (peer) started.push(...peer.processes);
    const random = new Random(5);
    for (const length of lengths) {
      const bodies = Array.from({ length: NUM_PROMPTS }, () => {
        const prompt = Array.from({ length }, () => 3 + random.below(VOCAB - 3));
        return Buffer.from(JSON.stringify({ model: 'ids-only', prompt, max_tokens: 1, return_token_ids: false }));
      });
      for (const body of bodies) await ask(url, body, 1);
      await sleep(200);
      for (const concurrency of concurrencies) {
        const own = await measure(url, bodies, concurrency, router);
        const name = `router/${length} ids/conc ${concurrency}`;
        const theirs = peer && (await measure(peer.url, peer.bodies(length, NUM_PROMPTS), concurrency, undefined));
        const push = (figure: Figure): void => {
          figures.push(figure);
          onFigure(figure);
        };
        const compared = (what: string, unit: string, value: number, reference: number | undefined): Figure =>
          reference === undefined
            ? { name: `${name}/${what}`, value, unit }
            : withReference(`${name}/${what}`, value, unit, 'sglang-router', reference);
        push(compared('rate', 'requests/s', own.perSecond, theirs?.perSecond));
        push(compared('p50', 'ms', own.p50, theirs?.p50));
        push(compared('p99', 'ms', own.p99, theirs?.p99));
        if (own.cpuMs !== undefined) push({ name: `${name}/cpu`, value: own.cpuMs, unit: 'ms a request' });
      }
    }
    return figures;
  } finally {
    for (const child of started) child.kill('SIGKILL');
  }
}

interface Measured {
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
  readonly cpuMs: number | undefined;
}

async function measure(
  url: string,
  bodies: readonly Buffer[],
  concurrency: number,
  process: ChildProcess | undefined,
): Promise<Measured> {
  const run = async (ms: number): Promise<{ took: number[]; elapsedMs: number }> => {
    const took: number[] = [];
    const startMs = performance.now();
    const work = async (worker: number): Promise<void> => {
      for (let i = worker; performance.now() - startMs < ms; i += concurrency) {
        const askedMs = performance.now();
        await ask(url, bodies[i % bodies.length] ?? Buffer.alloc(0), concurrency);
        took.push(performance.now() - askedMs);
      }
    };
    await Promise.all(Array.from({ length: concurrency }, (_, worker) => work(worker)));
    return { took, elapsedMs: performance.now() - startMs };
  };
  await run(WARM_MS);
  const before = process && cpuMsOf(process);
  const { took, elapsedMs } = await run(MEASURE_MS);
  const cpuMs = process && before !== undefined ? (cpuMsOf(process) - before) / took.length : undefined;
  return {
    perSecond: (1_000 * took.length) / elapsedMs,
    p50: percentile(took, 0.5),
    p99: percentile(took, 0.99),
    cpuMs,
  };
}

const agents = new Map<number, Agent>();

function ask(url: string, body: Buffer, concurrency: number): Promise<void> {
  const agent = agents.get(concurrency) ?? new Agent({ keepAlive: true, maxSockets: concurrency });
  agents.set(concurrency, agent);
  return new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json', 'content-length': body.length };
    const asked = request(`${url}/v1/completions`, { method: 'POST', agent, headers }, (response) => {
      let text = '';
      response.on('data', (chunk: Buffer) => (text += chunk.toString()));
      response.on('end', () => {
        if (response.statusCode === 200) resolve();
        else reject(new Error(`${url}: ${response.statusCode} ${text.slice(0, 300)}`));
      });
    });
    asked.on('error', reject);
    asked.end(body);
  });
}
