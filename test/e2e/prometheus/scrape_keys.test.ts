/** The scrape configuration that ships, with the lines for keys, at a router with keys: Debian's Prometheus. Budget: 15 s. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, test } from 'vitest';
import { ADMIN_KEY, CLIENT_KEY, Cluster } from '../../support/cluster.ts';
import { projectPath } from '../../support/project.ts';
import { until } from '../../support/until.ts';
import { PrometheusServer } from './prometheus_server.ts';

const AUTHORIZATION = /^( *)# (authorization: .*)$/gm;
let cluster: Cluster;
beforeAll(async () => {
  cluster = await Cluster.withKeys('--prefill', '0', '--store', '0');
});
afterAll(async () => {
  await cluster.close();
});

/** Returns the configuration with the router of this test, and the key of a file. */
function configuration(file: string): string {
  const { host } = new URL(cluster.url);
  const text = readFileSync(projectPath('config/prometheus.yaml'), 'utf8')
    .replace("'10.0.0.1:8000', '10.0.0.2:8000'", `'${host}'`)
    .replace("'10.0.0.1:8000'", `'${host}'`)
    .replace(/^rule_files.*$/m, '');
  assert.equal(text.match(AUTHORIZATION)?.length, 2, 'each job has the line');
  const withKey = text.replace(AUTHORIZATION, '$1$2').replaceAll('/etc/prometheus/penstock.key', file);
  return `global: { scrape_interval: 1s }\n${withKey}`;
}

test.each([
  ['the key of an admin', ADMIN_KEY, 1],
  ['the key of a tenant', CLIENT_KEY, 0],
])('with %s', async (_, key, up) => {
  const file = join(cluster.dataFolder, 'prometheus.key');
  // An editor leaves a line end.
  writeFileSync(file, `${key}\n`);
  const prometheus = await PrometheusServer.start(configuration(file));
  try {
    const scraped = await until('both jobs have scraped', async () => {
      const found = await prometheus.query('up');
      return typeof found !== 'string' && found.length === 2 && found;
    });
    assert.deepEqual(
      scraped.map(({ value }) => value),
      [up, up],
    );
    if (up === 0) return;
    await until(
      'the instance is there',
      async () => (await prometheus.valueOf('penstock_instances{role="decode"}')) === 1,
    );
    assert.equal(await prometheus.valueOf('count(penstock_bus_connected)'), 1);
  } finally {
    await prometheus.close();
  }
});
