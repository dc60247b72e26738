/** Checks by promtool: the metrics, the alerts and the recording rules. Budget: 20 s. */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { Cluster } from '../../support/cluster.ts';
import { freePortRow } from '../../support/free_ports.ts';
import { assertNoLines } from '../../support/no_lines.ts';
import { projectPath } from '../../support/project.ts';
import { promtool } from './prometheus_server.ts';

let cluster: Cluster;
let port: number;
beforeAll(async () => {
  // The router's, and one for each instance.
  port = await freePortRow(3);
  cluster = await Cluster.up('--prefill', '0', '--metrics-bind', `127.0.0.1:${port}`);
  await cluster.completion({ prompt: 'Hello, my name is', max_tokens: 3 });
});
afterAll(async () => {
  await cluster.close();
});

test('promtool check metrics complains of vLLM’s names only', async () => {
  const urls = [`${cluster.url}/metrics`, ...[0, 1, 2].map((index) => `http://127.0.0.1:${port + index}/metrics`)];
  for (const url of urls) {
    const text = await (await fetch(url)).text();
    const said = promtool(['check', 'metrics'], text)
      .text.split('\n')
      .filter((line) => line !== '');
    // Names of vLLM have a colon, and its histogram of tokens per step the suffix of a counter.
    const isTheirs = (line: string): boolean =>
      line.startsWith('vllm:') &&
      (line.endsWith("metric names should not contain ':'") ||
        line === 'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix');
    assertNoLines(
      said.filter((line) => !isTheirs(line)),
      url,
    );
  }
});

test('each process serves its own series, and no other’s', async () => {
  const text = async (index: number): Promise<string> =>
    (await fetch(`http://127.0.0.1:${port + index}/metrics`)).text();
  const [router, store, decode] = [await text(0), await text(1), await text(2)];
  assert.match(router, /^vllm:request_success_total\{engine="decode-1",/m);
  assert.doesNotMatch(router, /^vllm:num_requests_running/m);
  assert.match(decode, /^vllm:num_requests_running\{engine="decode-1",role="decode",model_name="harbour"\} 0$/m);
  assert.match(decode, /^vllm:iteration_tokens_total_sum\{engine="decode-1".*\} [1-9]/m);
  assert.match(store, /^penstock_tier_bytes\{engine="store-1",role="store",tier="dram"\}/m);
  assert.doesNotMatch(store, /^vllm:\w+\{/m);
  for (const one of [router, store, decode]) assert.match(one, /^process_resident_memory_bytes \d/m);
});

test('alerts and recording rules are sound, and fire or record what they should', () => {
  const files = ['alerts', 'sglang_rules'].map((name) => projectPath(`config/${name}.yaml`));
  const checked = promtool(['check', 'rules', ...files]);
  assert.equal(checked.code, 0, checked.text);
  const tested = promtool(['test', 'rules', projectPath('test/e2e/prometheus/rules_test.yaml')]);
  assert.equal(tested.code, 0, tested.text);
});
