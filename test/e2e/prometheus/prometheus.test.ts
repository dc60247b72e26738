/**
 * Debian's Prometheus over two routers, two models and NATS: every query of vLLM's dashboards has data or a reason, those of SGLang's and of our own
 * have data, and sums are right. In the long run. Budget: 120 s.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { harbour, mapConcurrently, run, temporaryFolder, type NodeView } from '../../support/cluster.ts';
import { isLong } from '../../support/long.ts';
import { NatsServer } from '../../support/nats_server.ts';
import { projectPath } from '../../support/project.ts';
import { until } from '../../support/until.ts';
import { PrometheusServer } from './prometheus_server.ts';
import { sglangQueries } from './sglang_queries.ts';
import { dashboardQueries, without } from './vllm_queries.ts';

const tools = projectPath('config/models/harbour-tools');
const members = ['router-1', 'router-2', 'prefill-1', 'decode-1', 'decode-2', 'decode-3', 'store-1'] as const;
const MAX_TOKENS = 6;
/** Requests of each model at each router in a round of traffic: mixed ones, and long ones that take the blocks of everything before. */
const NUM_MIXED = 60;
const NUM_LONG = 6;
/** Some series need luck of placement: a block that was hit twice and evicted, a fetch from another instance. */
const MAX_ROUNDS = 20;
const folder = temporaryFolder();
const children: ChildProcess[] = [];
const urls: string[] = [];
let nats: NatsServer;
let prometheus: PrometheusServer;
/** Requests of each model so far, at both routers. */
let numAsked = 0;

async function start(name: string): Promise<void> {
  const role = name.replace(/-\d$/, '');
  const model = name === 'decode-3' ? tools : harbour;
  const own: Record<string, string[]> = {
    router: ['--model', `${harbour},${tools}`, '--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0'],
    store: ['--data-dir', folder.path],
  };
  // Few blocks, so that some are evicted.
  const engine = ['--model', model, '--threads', '1', '--kv-blocks', '96', '--max-model-len', '1024'];
  const common = ['--name', name, '--bus', nats.url, '--log-level', 'error'];
  const child = run([role, ...common, ...(own[role] ?? engine)], { PENSTOCK_CLUSTER_TOKEN: 'a-secret-of-this-test' });
  children.push(child);
  assert(child.stdout);
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  const url = /ready: (http:\S+),/.exec(line)?.[1];
  if (url) urls.push(url);
}

async function ask(url: string, model: string, prompt: readonly number[]): Promise<void> {
  const response = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model, prompt, max_tokens: MAX_TOKENS, temperature: 0, ignore_eos: true }),
  });
  const text = await response.text();
  assert.equal(response.status, 200, text);
}

/** Asks every model at every router for each of these prompts. */
async function askAll(prompts: readonly (readonly number[])[]): Promise<void> {
  const all = urls.flatMap((url) =>
    ['harbour', 'harbour-tools'].flatMap((model) => prompts.map((prompt) => ({ url, model, prompt }))),
  );
  await mapConcurrently(all, 6, ({ url, model, prompt }) => ask(url, model, prompt));
  numAsked += urls.length * prompts.length;
}

/** Prompts of 200 to 560 tokens, half of which begin as another; then some of 1,000 tokens that nobody has seen. */
async function traffic(round: number): Promise<void> {
  await askAll(
    Array.from({ length: NUM_MIXED }, (_, i) =>
      Array.from({ length: 200 + 40 * (i % 10) }, (_token, at) => 3 + ((at * 7 + (i % 2 === 0 ? 0 : i)) % 200)),
    ),
  );
  await askAll(
    Array.from({ length: NUM_LONG }, (_, i) =>
      Array.from({ length: 1_000 }, (_token, at) => 3 + ((at * 11 + round * NUM_LONG + i) % 200)),
    ),
  );
  await until('the last request is scraped', async () => {
    const found = await prometheus.query('sum(vllm:generation_tokens_total)');
    return typeof found !== 'string' && found[0]?.value === 2 * numAsked * MAX_TOKENS;
  });
}

/** The scrape configuration that ships, over the routers of this test and every half second. */
function configuration(): string {
  const [first = '', second = ''] = urls.map((url) => url.replace('http://', ''));
  const text = readFileSync(projectPath('config/prometheus.yaml'), 'utf8')
    .replaceAll('10.0.0.1:8000', first)
    .replaceAll('10.0.0.2:8000', second)
    .replace('alerts.yaml', projectPath('config/alerts.yaml'))
    .replace('sglang_rules.yaml', projectPath('config/sglang_rules.yaml'));
  return `global: { scrape_interval: 1s, evaluation_interval: 1s }\n${text}`;
}

/** Puts the values of a dashboard's variables into a query; "All" is every value of the variable's own query, joined as Grafana joins them. */
async function expanded(expr: string): Promise<string> {
  const values = async (label: string): Promise<string> => {
    const found = await prometheus.query(`group by (${label}) (vllm:num_requests_running)`);
    assert(typeof found !== 'string' && found.length > 0, label);
    return `(${found.map(({ metric }) => metric[label]).join('|')})`;
  };
  const variables: Record<string, () => Promise<string> | string> = {
    __rate_interval: () => '60s',
    __interval: () => '60s',
    __range: () => '2m',
    Deployment_id: () => values('model_name'),
    ttft_slo: () => '1.0',
    tpot_slo: () => '0.1',
    job: () => values('job'),
    instance: () => values('instance'),
    engine: () => values('engine'),
    model_name: () => (expr.includes('="$model_name"') ? 'harbour' : values('model_name')),
  };
  let text = expr;
  for (const [name, value] of Object.entries(variables))
    if (text.includes(`$${name}`)) text = text.replaceAll(`$${name}`, await value());
  return text;
}

/** The queries that have no value, with what came. */
async function empty(exprs: readonly string[]): Promise<string[]> {
  const answers = await mapConcurrently(exprs, 4, async (expr) => {
    const results = await prometheus.query(await expanded(expr));
    if (typeof results === 'string') return `${expr}: ${results}`;
    return results.some(({ value }) => !Number.isNaN(value)) ? [] : expr;
  });
  return answers.flat();
}

const isExcused = (expr: string): boolean => without.some(([part]) => expr.includes(part));

/** Queries of vLLM's dashboards that must have data. */
const vllmQueries = dashboardQueries.map(({ expr }) => expr).filter((expr) => !isExcused(expr));

const ownQueries = ['cluster', 'kv_pool'].flatMap((name) => {
  const text = readFileSync(projectPath(`config/grafana/${name}.json`), 'utf8');
  const { panels } = JSON.parse(text) as { panels: { targets?: { expr: string }[] }[] };
  return panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
});

/** In no test has happened: a failure, a failover, and a minute of requests with a pacing target. */
const rare = ['penstock_requests_failed_total', 'penstock_recommended_instances', 'penstock_prediction_sum_total'];
const isRare = (expr: string): boolean => rare.some((name) => expr.includes(name));
const ownCommonQueries = ownQueries.filter((expr) => !isRare(expr));

describe.runIf(isLong)('Prometheus', () => {
  beforeAll(async () => {
    nats = await NatsServer.start();
    for (const name of members) await start(name);
    for (const url of urls)
      await until(`${url} sees all`, async () => {
        const { nodes } = (await (await fetch(`${url}/api/pool`)).json()) as { nodes: NodeView[] };
        return nodes.filter(({ state, role }) => role !== 'router' && state === 'alive').length === members.length - 2;
      });
    prometheus = await PrometheusServer.start(configuration());
    // Engines export series of requests from their first one on, and a rate begins with the second scrape.
    await askAll([[3, 4, 5]]);
    await until('it is scraped', async () => {
      const found = await prometheus.query('vllm:request_success_total');
      return typeof found !== 'string' && found.length >= 2;
    });
    let missing: readonly string[] = vllmQueries;
    for (let round = 0; round < MAX_ROUNDS && missing.length > 0; round += 1) {
      await traffic(round);
      missing = await empty([...vllmQueries, ...ownCommonQueries]);
      console.log(`after ${round + 1} rounds ${missing.length} queries have no data: ${missing.join('; ')}`);
    }
  });
  afterAll(async () => {
    await prometheus.close();
    for (const child of children) {
      const exit = once(child, 'exit');
      child.kill('SIGKILL');
      await exit;
    }
    await nats.close();
    folder.remove();
  });

  test('every query of vLLM’s dashboards has data, or the reason why not', async () => {
    expect(await empty(vllmQueries)).toEqual([]);
    // A reason that no longer holds is taken out.
    const excused = dashboardQueries.map(({ expr }) => expr).filter(isExcused);
    expect(await empty(excused)).toHaveLength(excused.length);
    expect(without.filter(([part]) => !excused.some((expr) => expr.includes(part)))).toEqual([]);
  });

  test('SGLang’s dashboard has data by recording rules', async () => {
    await until('rules were evaluated', async () => (await prometheus.query('sglang:gen_throughput')).length > 0);
    await until('all of them have data', async () => (await empty(sglangQueries)).length === 0);
  });

  test('every query of our own dashboards is answered, and those about requests and blocks have data', async () => {
    expect(await empty(ownCommonQueries)).toEqual([]);
    // An error comes with its text.
    expect((await empty(ownQueries)).filter((answer) => !ownQueries.includes(answer))).toEqual([]);
  });

  test('two routers: requests are counted at both, and instances once', async () => {
    for (const model of ['harbour', 'harbour-tools']) {
      const of = `{model_name="${model}"}`;
      expect(await prometheus.valueOf(`sum(vllm:request_success_total${of})`)).toBe(numAsked);
      expect(await prometheus.valueOf(`sum(vllm:generation_tokens_total${of})`)).toBe(numAsked * MAX_TOKENS);
      expect(await prometheus.valueOf(`sum(vllm:prompt_tokens_total${of})`)).toBe(
        await prometheus.valueOf(`sum(vllm:request_prompt_tokens_sum${of})`),
      );
      expect(await prometheus.valueOf(`sum(vllm:prompt_tokens_by_source_total${of})`)).toBe(
        await prometheus.valueOf(`sum(vllm:prompt_tokens_total${of})`),
      );
      expect(await prometheus.valueOf(`sum(vllm:prompt_tokens_cached_by_source_total${of})`)).toBe(
        await prometheus.valueOf(`sum(vllm:prompt_tokens_cached_total${of})`),
      );
    }
    expect(await prometheus.valueOf('count(vllm:num_requests_running)')).toBe(4);
    expect(await prometheus.valueOf('count(vllm:num_requests_running{model_name="harbour-tools"})')).toBe(1);
    expect(await prometheus.query('{__name__=~"vllm:.*", engine="store-1"}')).toEqual([]);
    expect(await prometheus.valueOf('sum(penstock_instances)')).toBe(5);
    await until('blocks are counted once', async () => {
      const { nodes } = (await (await fetch(`${urls[0]}/api/pool`)).json()) as { nodes: NodeView[] };
      const numBlocks = nodes.flatMap(({ tiers }) => Object.values(tiers)).reduce((sum, { blocks }) => sum + blocks, 0);
      return (await prometheus.valueOf('sum(penstock_tier_blocks)')) === numBlocks;
    });
  });

  test('no alert fires in a cluster that is well', async () => {
    expect(await prometheus.query('ALERTS{alertstate="firing"}')).toEqual([]);
  });
});
