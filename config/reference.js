/**
 * The reference pages, made from what the build made: options of every command, endpoints, series of /metrics, messages of the protocol. `--write`
 * writes them (`npm run reference`); without it the pages in the tree are compared with what the code makes.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { format, resolveConfig } from 'prettier';
import { apiPage } from './api_page.js';
import { NOTE, table } from './reference_table.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const built = (path) => import(new URL(`../dist/${path}`, import.meta.url).href);

async function optionsPage() {
  const { loadTables, tableOf, roles } = await built('services/cli/tables.js');
  const tables = await loadTables();
  const all = tableOf('up', tables);
  const readersOf = (name) => {
    const readers = roles.filter((role) => Object.hasOwn(tables[role], name));
    return readers.length === 0 ? 'up' : readers.length === roles.length ? 'all' : readers.join(', ');
  };
  const groups = [...new Set(Object.values(all).map(({ group }) => group))];
  const rowOf = ([name, { value, help, default: fallback, isPath }]) => {
    const shown = fallback === '' || value === '' || isPath ? '' : `\`${fallback}\``;
    return [`\`--${name.replaceAll('_', '-')}${value ? ` ${value}` : ''}\``, readersOf(name), shown, help];
  };
  const sections = groups.map((group) => {
    const entries = Object.entries(all).filter(([, one]) => one.group === group);
    return `## ${group}\n\n${table(['option', 'read by', 'default', 'meaning'], entries.map(rowOf))}`;
  });
  return `${NOTE}

# Options

Each option is a flag (\`--block-size 32\`), an environment variable (\`PENSTOCK_BLOCK_SIZE=32\`) and a key of the YAML file that \`--config FILE\` names
(\`block_size: 32\`). A flag wins over a variable, a variable over the file. \`penstock up\` reads all of them and hands each to the processes that read it.
Declared in \`shared/node/options.ts\` (all members, holders, engines), \`services/ROLE/options.ts\` and \`services/cli/cluster_options.ts\`.

${sections.join('\n\n')}
`;
}

/** Series that describe no cluster and no request: what prom-client says of any Node process. */
const isProcess = ({ name }) => /^(process|nodejs)_/.test(name);

async function metricsPage() {
  const { RouterMetrics } = await built('services/router/metrics/metrics.js');
  const { clusterMetrics, routerMetrics } = await built('services/router/metrics/cluster_metrics.js');
  const { HttpSeries } = await built('services/router/metrics/http_series.js');
  const { TenantSeries } = await built('services/router/metrics/tenant_series.js');
  const silent = { warn: () => undefined, info: () => undefined, debug: () => undefined, error: () => undefined };
  // Labels are those that a metric declares: its constructor keeps them.
  const tenants = new TenantSeries(() => [], {});
  const ofRouter = [new RouterMetrics('MODEL', silent, {}), new HttpSeries(), tenants]
    .map(({ registry }) => registry)
    .concat(routerMetrics({}));
  const ofCluster = clusterMetrics({});
  const isOfCluster = new Set(ofCluster.getMetricsAsArray().map(({ name }) => name));
  const registries = [...ofRouter, ofCluster];
  const metrics = registries.flatMap((registry) => registry.getMetricsAsArray()).filter((one) => !isProcess(one));
  const rowOf = (metric) => [
    `\`${metric.name}\``,
    metric.type ?? metric.constructor.name.toLowerCase(),
    isOfCluster.has(metric.name) ? 'cluster' : 'router',
    metric.labelNames.map((label) => `\`${label}\``).join(', '),
    metric.help,
  ];
  const sorted = metrics.sort((a, b) => (a.name < b.name ? -1 : 1));
  const [theirs, ours] = [/^(vllm:|http_)/, /^penstock_/].map((prefix) =>
    sorted.filter(({ name }) => prefix.test(name)),
  );
  const head = ['series', 'type', 'scope', 'labels', 'meaning'];
  return `${NOTE}

# Metrics

Served by each router at \`/metrics\`, as Prometheus text. Series of requests carry \`model_name\` as well, those of tenants (with \`--keys\`) count the requests of all models; series of instances come from their last heartbeat.
The process's own (\`process_*\`, \`nodejs_*\`) are those of prom-client. Scope: \`?scope=router\` leaves the series of the cluster out, \`?scope=cluster\` those of the
router; [how to scrape several routers](../INSPECTION.md#prometheus-and-grafana). \`--metrics-bind\` serves the series of one process.
Declared in \`metrics.ts\`, \`request_series.ts\`, \`prediction_metrics.ts\`, \`http_series.ts\`, \`tenant_series.ts\`, \`cluster_metrics.ts\` next to this page, and in
\`shared/protocol/load_fields.ts\` and \`shared/node/metrics/instance_series.ts\`; [how to add one](../README.md#to-add).

## Under vLLM's names

The meaning is vLLM's, so its Grafana dashboards show data.

${table(head, theirs.map(rowOf))}

## Under our own

${table(head, ours.map(rowOf))}
`;
}

/** The comment above a line of the protocol file, and the one after it. */
function protocolItems(text) {
  const blocks = [];
  let comment = [];
  let open;
  let depth = 0;
  for (const raw of text.split('\n')) {
    const line = raw.trim();
    if (line.startsWith('//')) comment.push(line.replace(/^\/\/ ?/, ''));
    else {
      const start = /^(service|message|enum) (\w+) \{(\})?/.exec(line);
      if (start && depth === 0) {
        open = { kind: start[1], name: start[2], comment: comment.join(' '), items: [] };
        blocks.push(open);
        if (!start[3]) depth = 1;
      } else if (/^(oneof|message|enum) \w+ \{$/.test(line)) {
        depth++;
        open.items.push({ text: line.replace(/ \{$/, ''), comment: comment.join(' ') });
      } else if (line === '}') depth--;
      else if (line !== '' && depth > 0) open.items.push({ text: line.replace(/;$/, ''), comment: comment.join(' ') });
      if (line !== '' || depth === 0) comment = [];
    }
  }
  return blocks;
}

async function protocolPage() {
  const blocks = protocolItems(readFileSync(join(root, 'shared/protocol/penstock.proto'), 'utf8'));
  const { subjects } = await built('shared/protocol/membership.js');
  const { PROTOCOL_VERSION } = await built('shared/protocol/messages.js');
  const section = ({ name, comment, items }) =>
    [
      `### ${name}`,
      comment,
      items.length === 0
        ? ''
        : table(
            ['', 'meaning'],
            items.map((one) => [`\`${one.text}\``, one.comment]),
          ),
    ]
      .filter((part) => part !== '')
      .join('\n\n');
  const of = (kind) => blocks.filter((one) => one.kind === kind);
  const subjectOf = (value) => (typeof value === 'function' ? value('EPOCH') : value);
  return `${NOTE}

# Protocol

What processes of a cluster send each other, version ${PROTOCOL_VERSION}; a process of another version is refused when it joins. Calls are gRPC
(\`shared/protocol/penstock.proto\`); heartbeats, registrations and block events go over the bus (\`shared/protocol/membership.ts\`,
\`block_events.ts\`), each sealed under the cluster token (\`shared/bus/sealed/seal.ts\` has the layout). Token ids are packed u32, block hashes packed runs (\`packing.ts\`).

## Subjects of the bus

${table(
  ['name', 'subject'],
  Object.entries(subjects).map(([name, value]) => [name, `\`${subjectOf(value)}\``]),
)}

## Services

${of('service').map(section).join('\n\n')}

## Messages

${[...of('message'), ...of('enum')].map(section).join('\n\n')}
`;
}

async function routerApiPage() {
  const { surfaces } = await built('services/router/surfaces/registry.js');
  const { operations, queries } = await built('services/router/http/openapi.js');
  return apiPage({
    surfaces,
    operations,
    queries,
    notes: readFileSync(join(root, 'services/router/API_NOTES.md'), 'utf8'),
  });
}

const pages = {
  'services/cli/OPTIONS.md': optionsPage,
  'services/router/API.md': routerApiPage,
  'services/router/metrics/METRICS.md': metricsPage,
  'shared/protocol/PROTOCOL.md': protocolPage,
};

for (const [path, make] of Object.entries(pages)) {
  const page = join(root, path);
  const text = await format(await make(), { ...(await resolveConfig(page)), parser: 'markdown' });
  if (process.argv.includes('--write')) writeFileSync(page, text);
  else if (!existsSync(page) || readFileSync(page, 'utf8') !== text) {
    console.error(`${path} is not what the code makes: npm run reference`);
    process.exitCode = 1;
  }
}
