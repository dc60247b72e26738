// Who may import whom. One arrow per line in README.md; this file is that drawing, enforced.
module.exports = {
  forbidden: [
    {
      name: 'no-cycles',
      severity: 'error',
      from: {},
      to: { circular: true, viaOnly: { dependencyTypesNot: ['type-only'] } },
    },
    {
      name: 'services-are-strangers',
      comment: 'Services meet on the wire (shared/protocol), never in memory.',
      severity: 'error',
      from: { path: '^services/([^/]+)/' },
      to: { path: '^services/', pathNot: '^services/$1/' },
    },
    {
      name: 'shared-knows-no-service',
      severity: 'error',
      from: { path: '^shared/' },
      to: { path: '^(services|test)/' },
    },
    {
      name: 'kernels-are-a-leaf',
      comment: 'kernels/ knows GPUs and tensors; it does not know what a request is.',
      severity: 'error',
      from: { path: '^kernels/' },
      to: { path: '^(services|shared|config|test)/' },
    },
    {
      name: 'only-engine-touches-the-kernels',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^shared/engine/' },
      to: { path: '^kernels/' },
    },
    {
      name: 'base-is-the-floor',
      severity: 'error',
      from: { path: '^shared/base/' },
      to: { path: '^shared/(?!base/)' },
    },
    {
      name: 'model-and-kv-stand-on-base',
      severity: 'error',
      from: { path: '^shared/(model|kv)/' },
      to: { path: '^shared/', pathNot: '^shared/(base|$1)/' },
    },
    {
      name: 'protocol-stands-on-kv',
      severity: 'error',
      from: { path: '^shared/protocol/' },
      to: { path: '^shared/(model|bus|net|engine|node)/' },
    },
    {
      name: 'net-and-engine-are-strangers',
      severity: 'error',
      from: { path: '^shared/(net|engine)/' },
      to: { path: '^shared/(bus|net|engine|node)/', pathNot: '^shared/$1/' },
    },
    {
      name: 'the-bus-stands-on-the-network',
      severity: 'error',
      from: { path: '^shared/bus/' },
      to: { path: '^shared/(engine|node)/' },
    },
    {
      name: 'only-the-driver-knows-grpc',
      comment: 'Who carries a call is a driver: above shared/net/network.ts nobody knows which.',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^shared/(net/grpc|protocol/generated)/' },
      to: { path: 'node_modules/(@grpc/|grpc-health-check)' },
    },
    {
      name: 'a-driver-is-chosen-by-whoever-starts-a-process',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^(shared/net/grpc/|services/cli/role_process\\.ts$)' },
      to: { path: '^shared/net/grpc/' },
    },
    {
      name: 'only-the-http-driver-knows-http',
      comment: 'The API takes bytes, a scope and a sink; who brings them is a driver, and the simulation another.',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^services/router/http/' },
      to: { path: '(node_modules/fastify|^node:http$|^http$)' },
    },
    {
      name: 'the-http-driver-is-chosen-by-the-role',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^services/router/(http/|main\\.ts$)' },
      to: { path: '^services/router/http/' },
    },
    {
      name: 'config-is-data',
      severity: 'error',
      from: { path: '^(services|shared|kernels)/' },
      to: { path: '^config/' },
    },
    {
      name: 'production-code-imports-no-test-code',
      severity: 'error',
      from: { pathNot: '^test/' },
      to: { path: '^test/' },
    },
    {
      name: 'time-and-chance-enter-through-base',
      comment:
        'Anything that reads a clock, sleeps or draws must take Clock/Random, or the simulator cannot replay it.',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^(shared/base/|services/[^/]+/main\\.ts$)' },
      to: { path: '^(node:)?(timers|timers/promises|perf_hooks)$' },
    },
  ],
  options: {
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    doNotFollow: { path: 'node_modules' },
    exclude: { path: '\\.as(\\.ts)?$' },
  },
};
