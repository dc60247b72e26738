/** The environment: variables that Kubernetes makes for a Service, and those that somebody has misspelt. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { z } from 'zod';
import {
  address,
  addressOrNone,
  ConfigError,
  integer,
  option,
  positive,
  readCommandLine,
} from '../../shared/base/options.ts';

const table = {
  bulk_port: option('Network', 'PORT', integer(z.int().min(0)), 0, 'a port'),
  name: option('Process', 'NAME', z.string(), 'nobody', 'a name'),
};

function read(environment: Readonly<Record<string, string>>): { config: object; ignored: readonly string[] } {
  const line = readCommandLine(table, { command: 'test', tables: { test: table } }, [], environment);
  return { config: line.config, ignored: line.serviceVariables };
}

test('variables of Services called penstock and penstock-bulk are known by their form, and are no options', () => {
  const ofService = (service: string, host: string): Record<string, string> => ({
    [`${service}_SERVICE_HOST`]: host,
    [`${service}_SERVICE_PORT`]: '8000',
    [`${service}_SERVICE_PORT_HTTP_API`]: '8000',
    [`${service}_PORT`]: `tcp://${host.includes(':') ? `[${host}]` : host}:8000`,
    [`${service}_PORT_8000_TCP`]: `tcp://${host.includes(':') ? `[${host}]` : host}:8000`,
    [`${service}_PORT_8000_TCP_PROTO`]: 'tcp',
    [`${service}_PORT_8000_TCP_PORT`]: '8000',
    [`${service}_PORT_8000_TCP_ADDR`]: host,
    [`${service}_PORT_53_UDP`]: `udp://${host.includes(':') ? `[${host}]` : host}:53`,
  });
  const made = {
    ...ofService('PENSTOCK', '10.0.0.1'),
    ...ofService('PENSTOCK_BULK', 'fd00::7'),
    // Names that end like what is made of them.
    ...ofService('PENSTOCK_SERVICE', '10.0.0.2'),
    ...ofService('PENSTOCK_PORT_80_TCP', '10.0.0.3'),
  };
  const { config, ignored } = read({ ...made, PENSTOCK_NAME: 'd1' });
  assert.deepEqual(config, { bulk_port: 0, name: 'd1' });
  assert.deepEqual(ignored, Object.keys(made));
});

test('an option whose name ends like theirs is an option', () => {
  assert.deepEqual(read({ PENSTOCK_BULK_PORT: '9000' }), { config: { bulk_port: 9_000, name: 'nobody' }, ignored: [] });
});

test.each([
  ['PENSTOCK_NAMES', 'd1'],
  ['PENSTOCK_SERVICE_HOST', 'router.example'],
  ['PENSTOCK_SERVICE_PORT', 'http'],
  ['PENSTOCK_PORTS', 'tcp://10.0.0.1:8000'],
  ['PENSTOCK_PORT', 'https://10.0.0.1:8000'],
  ['PENSTOCK_PORT_8000_TCP_ADDR', 'here'],
])('%s=%s is a misspelt option, and refused', (name, value) => {
  assert.throws(
    () => read({ [name]: value }),
    (error: unknown) => error instanceof ConfigError && error.message.startsWith(`${name}: unknown variable`),
  );
});

test('an address may be a URL as people copy it; a path and other schemes are refused, with how an address looks', () => {
  assert.equal(address.parse('127.0.0.1:8000'), '127.0.0.1:8000');
  assert.equal(address.parse('[::1]:8000'), '[::1]:8000');
  for (const schema of [address, addressOrNone]) {
    assert.equal(schema.parse('http://127.0.0.1:8000/'), '127.0.0.1:8000');
    assert.equal(schema.parse('http://[::1]:8000'), '[::1]:8000');
    assert.equal(schema.parse('HTTP://router.example'), 'router.example:80');
    for (const wrong of [
      'https://127.0.0.1:8000',
      'http://127.0.0.1:8000/v1',
      'http://user@host:1',
      'http://:1',
      'ftp://h:1',
    ])
      assert.throws(() => schema.parse(wrong), /HOST:PORT, for instance/, wrong);
  }
});

test('a variable of a name that two commands have is read by the one that takes its value; a flag is of its command', () => {
  const up = { router: option('Cluster', 'N', positive(4), 1, 'routers') };
  const policy = { router: option('Network', 'HOST:PORT', address, '127.0.0.1:8001', 'a router') };
  const tables = { up, policy };
  const routerOf = (command: keyof typeof tables, args: string[], value?: string): unknown => {
    const environment = value === undefined ? {} : { PENSTOCK_ROUTER: value };
    const { config, isSet } = readCommandLine(tables[command], { command, tables }, args, environment);
    return [(config as { router: unknown }).router, isSet.has('router')];
  };
  assert.deepEqual(routerOf('up', [], '2'), [2, true]);
  assert.deepEqual(routerOf('policy', [], '2'), ['127.0.0.1:8001', false]);
  assert.deepEqual(routerOf('up', [], '10.0.0.1:8001'), [1, false]);
  assert.deepEqual(routerOf('policy', [], '10.0.0.1:8001'), ['10.0.0.1:8001', true]);
  assert.deepEqual(routerOf('up', ['--router', '3'], '10.0.0.1:8001'), [3, true]);
  for (const [command, args, value] of [
    ['up', [], '5'],
    ['policy', [], '5'],
    ['up', ['--router', '10.0.0.1:8001'], undefined],
    ['policy', ['--router', '2'], undefined],
  ] as const)
    assert.throws(() => routerOf(command, [...args], value), ConfigError);
});
