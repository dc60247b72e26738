// Allowed imports between folders. shared/README.md and services/router/README.md draw them; this file enforces the drawings.

/** Rooms of the router, the lowest first. A room imports those below it; rooms of one rung do not know each other. */
const ladder = [
  ['access', 'cluster'],
  ['conductor'],
  ['record'],
  ['metrics', 'observe', 'relay'],
  ['api'],
  ['surfaces'],
  ['http'],
];

/** One rule a room: it imports no other of its rung, and none above. */
const rooms = ladder.flatMap((rung, i) =>
  rung.map((room) => ({
    name: `router-${room}-looks-down-only`,
    severity: 'error',
    from: { path: `^services/router/${room}/` },
    to: {
      path: '^services/router/[^/]+/',
      pathNot: `^services/router/(${[room, ...ladder.slice(0, i).flat()].join('|')})/`,
    },
  })),
);

/** Folders of shared, and the others of it that each may import. */
const floors = {
  base: [],
  model: ['base'],
  hub: ['base', 'model'],
  trace: ['base'],
  report: ['base'],
  grammar: ['base', 'model'],
  text: ['base', 'model', 'grammar'],
  kv: ['base'],
  protocol: ['base', 'kv'],
  placement: ['base', 'kv', 'protocol'],
  net: ['base', 'kv', 'protocol'],
  bus: ['base', 'kv', 'protocol', 'net'],
  engine: ['base', 'kv', 'protocol', 'model', 'grammar'],
  node: ['base', 'kv', 'protocol', 'net', 'bus', 'engine'],
  instance: ['base', 'kv', 'protocol', 'net', 'bus', 'engine', 'model', 'node'],
};

const libraries = Object.entries(floors).map(([folder, below]) => ({
  name: `shared-${folder}-knows-what-it-stands-on`,
  severity: 'error',
  from: { path: `^shared/${folder}/` },
  to: { path: '^shared/[^/]+/', pathNot: `^shared/(${[folder, ...below].join('|')})/` },
}));

module.exports = {
  forbidden: [
    ...rooms,
    ...libraries,
    {
      name: 'a-new-folder-has-a-place',
      comment: 'Give it one in `ladder`, or in `floors`.',
      severity: 'error',
      from: {
        path: '^(services/router|shared)/[^/]+/',
        pathNot: `^(services/router/(${ladder.flat().join('|')})|shared/(${Object.keys(floors).join('|')}))/`,
      },
      to: {},
    },
    {
      name: 'folders-form-no-circle',
      comment: 'Folders that need each other are one folder, or three. Type-only imports included.',
      severity: 'error',
      scope: 'folder',
      from: { path: '^(services|shared|kernels)(/|$)' },
      to: { circular: true },
    },
    {
      name: 'a-room-of-the-router-is-put-together-above-it',
      comment: 'router.ts, core.ts and served_models.ts make the parts; of the rooms only http sees the whole.',
      severity: 'error',
      from: { path: '^services/router/[^/]+/', pathNot: '^services/router/http/' },
      to: { path: '^services/router/[^/]+\\.ts$' },
    },
    {
      name: 'policies-know-no-members',
      comment: 'A policy takes a snapshot, so that each logged decision can be made again from it.',
      severity: 'error',
      from: { path: '^shared/placement/(policies|priced)/' },
      to: { path: '^shared/placement/(conductor|instance|members_view|held_ranges|prefix_index/)' },
    },
    {
      name: 'a-surface-knows-no-other',
      comment: 'But openai, in whose chats the others are written. Their registry is above them.',
      severity: 'error',
      from: { path: '^services/router/surfaces/([^/]+)/' },
      to: { path: '^services/router/surfaces/', pathNot: '^services/router/surfaces/($1|openai)/' },
    },
    {
      name: 'the-page-knows-the-protocol-only',
      severity: 'error',
      from: { path: '^services/dashboard/' },
      to: { path: '^(services|shared|kernels)/', pathNot: '^(services/dashboard/|shared/protocol/)' },
    },
    {
      name: 'the-page-loads-no-schemas',
      comment: 'zod would come into its bundle. It reads types, and the table of load_fields.ts.',
      severity: 'error',
      from: { path: '^(services/dashboard/|shared/protocol/(load_fields|request_detail|router_api)\\.ts$)' },
      to: {
        path: '^shared/protocol/|node_modules/zod/',
        pathNot: '^shared/protocol/(load_fields|request_detail|router_api)\\.ts$',
      },
    },
    {
      name: 'templates-stand-on-text-and-base',
      severity: 'error',
      from: { path: '^shared/text/template/' },
      to: { path: '^(services|kernels|shared/(?!text/|base/))' },
    },
    {
      name: 'no-cycles',
      comment: 'Type-only ones included: two modules that need each other are one, or three.',
      severity: 'error',
      from: {},
      to: { circular: true },
    },
    {
      name: 'services-are-independent',
      comment:
        'Services meet on the wire (shared/protocol), never in memory. The command alone loads them, to start one.',
      severity: 'error',
      from: { path: '^services/([^/]+)/', pathNot: '^services/cli/role_modules\\.ts$' },
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
      name: 'devices-are-independent',
      comment: 'A device knows the program and itself.',
      severity: 'error',
      from: { path: '^kernels/(wasm|wgsl)/' },
      to: { path: '^kernels/(wasm|wgsl)/', pathNot: '^kernels/$1/' },
    },
    {
      name: 'an-operation-knows-no-other',
      comment: 'What operations share is next to them: operation.ts, gated.ts, and what is above ops/.',
      severity: 'error',
      from: { path: '^kernels/[a-z]+/ops/' },
      to: { path: '^kernels/[a-z]+/ops/(?!operation|gated)' },
    },
    {
      name: 'an-architecture-knows-no-other',
      severity: 'error',
      from: { path: '^shared/engine/architectures/(?!registry)' },
      to: { path: '^shared/engine/architectures/(?!architecture|decoder|layer_|program_parts)' },
    },
    {
      name: 'only-engine-touches-the-kernels',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^shared/engine/' },
      to: { path: '^kernels/' },
    },
    {
      name: 'grammar-stands-on-base',
      severity: 'error',
      // Masks are of tokens, whose bytes a model's files say.
      from: { path: '^shared/grammar/', pathNot: '^shared/grammar/matcher/' },
      to: { path: '^(services|kernels|shared/(?!base/|grammar/))' },
    },
    {
      name: 'masks-stand-on-model',
      severity: 'error',
      from: { path: '^shared/grammar/matcher/' },
      to: { path: '^(services|kernels|shared/(?!base/|grammar/|model/))' },
    },
    {
      name: 'instance-is-the-roof-of-shared',
      comment: 'What prefill and decode share stands on all the rest; nothing of it knows them.',
      severity: 'error',
      from: { path: '^(shared/(?!instance/)|services/(?!prefill/|decode/))' },
      to: { path: '^shared/instance/' },
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
      from: {
        path: '^(services|shared)/',
        pathNot: '^(shared/net/grpc/|services/cli/(role_process|policy|tenant|doctor/cluster_probes)\\.ts$)',
      },
      to: { path: '^shared/net/grpc/' },
    },
    {
      name: 'only-the-driver-knows-nats',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^shared/bus/nats/' },
      to: { path: 'node_modules/(nats|nkeys\\.js)/' },
    },
    {
      name: 'the-bus-server-is-chosen-by-whoever-starts-a-process',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^(services/cli/bus_servers\\.ts$|shared/bus/nats/)' },
      to: { path: '^shared/bus/nats/' },
    },
    {
      name: 'only-tracing-knows-opentelemetry',
      comment: 'Loaded by whoever opens tracing, and only then.',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^shared/base/tracing/otlp_tracing\\.ts$' },
      to: { path: 'node_modules/@opentelemetry/' },
    },
    {
      name: 'only-the-http-driver-knows-http',
      comment: 'The API takes bytes, a scope and a sink; who brings them is a driver, and the simulation another.',
      severity: 'error',
      from: { path: '^(services|shared)/', pathNot: '^services/(router/http/|cli/metrics_server\\.ts$)' },
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
