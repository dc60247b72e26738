/** Options of the router role. */
import { z } from 'zod';
import { addressOrNone, bytes, integer, onOrOff, option, positive, type ConfigOf } from '../../shared/base/options.ts';
import { httpsOptions } from './https_options.ts';
import { modelOptions, processOptions } from '../../shared/node/options.ts';
import { MAX_TARGET_MS } from './access/caller.ts';
import { policyNames } from '../../shared/placement/policy_registry.ts';
import { reasoningParserNames, toolParserNames } from '../../shared/text/output/output_format.ts';

/** Option table of the router role: flag group, value name, schema, default and help text per option. */
export const options = {
  ...modelOptions,
  served_model_name: option('Model and engine', 'NAME', z.string(), '', "name in the API; default: the folder's"),
  ...processOptions,
  hub_bind: option(
    'Router',
    'HOST:PORT',
    addressOrNone,
    '',
    'where the router serves the hub that others join; default 127.0.0.1:8001, with --bus a port picked by the system',
  ),
  keys: option(
    'Router',
    'FILE',
    z.string(),
    '',
    'who may ask, and for how much: a YAML list with an entry for each API key, as `penstock key NAME --tenant T` prints it; read again when it changes. Without it everybody who reaches the router may use all of it',
    { isPath: true },
  ),
  revoke: option(
    'Router',
    'HOW',
    z.enum(['finish', 'abort']),
    'finish',
    'open streams of a key that is removed from --keys are finished, or aborted with an error',
  ),
  no_auth: option(
    'Router',
    '',
    onOrOff,
    false,
    'listen beyond this machine without --keys: everybody who reaches the router may use all of it',
  ),
  ...httpsOptions,
  audit_log: option(
    'Router',
    'FILE',
    z.string(),
    '',
    'append a line of JSON for each request to this file: who asked, for which model, how it ended, how many tokens; never a key or a text. Opened anew when it has been renamed or removed',
    { isPath: true },
  ),
  local_prefill_tokens: option(
    'Router',
    'N',
    integer(z.int().min(0)),
    256,
    'policies other than priced: a request with at most this many tokens to compute gets no prefill instance, and the decode instance computes them',
  ),
  strict_roles: option(
    'Router',
    '',
    onOrOff,
    false,
    'roles are walls: prefill instances only compute prompts, and only decode instances generate; otherwise the policy priced uses any instance for either, and a role is a preference',
  ),
  policy: option(
    'Router',
    'NAME',
    z.enum(policyNames),
    'auto',
    `placement policy until \`penstock policy\` sets another: ${policyNames.join(', ')}`,
  ),
  pooling: option(
    'Router',
    'KIND',
    z.enum(['last', 'mean']),
    'last',
    'what an embedding is: the hidden state of the last token (last), or the mean over all tokens (mean), which finds no use for cached blocks',
  ),
  slo_ttft_ms: option(
    'Router',
    'MS',
    integer(z.int().min(0).max(MAX_TARGET_MS)),
    0,
    'target for the time to the first token: a request is refused with 429 that would miss it, or would wait for others longer than a fifth of it; 0: none',
  ),
  slo_tbt_ms: option(
    'Router',
    'MS',
    integer(z.int().min(0).max(MAX_TARGET_MS)),
    0,
    'target for the time between two tokens: a request is refused with 429 that would miss it; 0: none',
  ),
  slo_refuse_hopeless: option(
    'Router',
    '',
    onOrOff,
    false,
    'refuse requests that miss a target by their own work alone, however idle the cluster is; otherwise they are served late',
  ),
  max_requests: option('Router', 'N', positive(2 ** 16), 1024, 'requests in flight; more are refused with 503'),
  max_connections: option('Router', 'N', positive(2 ** 20), 16_384, 'open HTTP connections; more are closed'),
  request_timeout_ms: option(
    'Router',
    'MS',
    positive(86_400_000),
    600_000,
    'a request that takes longer ends with an error',
  ),
  max_body_bytes: option(
    'Router',
    'SIZE',
    bytes,
    0,
    "a larger request body is refused; 0: 32 bytes per token of the model's context, at least 4 MiB",
  ),
  body_timeout_ms: option(
    'Router',
    'MS',
    positive(3_600_000),
    30_000,
    'a request whose headers and body take longer to arrive is refused with 408',
  ),
  stalled_reader_ms: option(
    'Router',
    'MS',
    positive(86_400_000),
    60_000,
    'a client that reads nothing of its stream for this long is ended',
  ),
  sse_keep_alive_ms: option(
    'Router',
    'MS',
    integer(z.int().min(0).max(86_400_000)),
    15_000,
    'an idle event stream sends a keep-alive comment this often (the first after 2 s at most), so that no proxy closes it; 0: never',
  ),
  allowed_origins: option(
    'Router',
    'ORIGIN',
    z
      .string()
      .regex(
        /^(\*|[a-z][a-z0-9+.-]*:\/\/[^\s,/]+)?(,(\*|[a-z][a-z0-9+.-]*:\/\/[^\s,/]+))*$/,
        'origins as browsers send them, such as https://app.example or http://localhost:3000, without a path, or *',
      ),
    '',
    'web pages of these origins may use the API (CORS), separated by commas; * allows all origins, but /api/* only those listed; default: none',
    { isList: true },
  ),
  tool_call_parser: option(
    'Router',
    'NAME',
    z.enum(toolParserNames),
    'auto',
    `format of tool calls in answers: auto (by the chat template), none (calls stay text), ${toolParserNames.slice(2).join(', ')}`,
  ),
  reasoning_parser: option(
    'Router',
    'NAME',
    z.enum(reasoningParserNames),
    'auto',
    `format of reasoning in answers: auto (by the chat template), none (reasoning stays text), ${reasoningParserNames.slice(2).join(', ')}`,
  ),
  keep_reasoning: option(
    'Router',
    '',
    onOrOff,
    false,
    'keep the reasoning of earlier answers in the prompt, and the empty block that turned it off, also where the chat template drops them: every turn hits the blocks of all turns before it, but prompts are longer, and the model reads what its template leaves out',
  ),
  strict_parameters: option(
    'Router',
    '',
    onOrOff,
    false,
    'refuse unknown request keys with an error; otherwise they are ignored and listed in the header x-penstock-ignored',
  ),
  allow_priority: option(
    'Router',
    '',
    onOrOff,
    false,
    'without --keys: let requests state their `priority`, with which they are served before others of the same client address; otherwise it has no effect, and x-penstock-ignored says so',
  ),
  request_log: option(
    'Router',
    'N',
    positive(100_000),
    10_000,
    'finished requests that `/api/requests` keeps, about 2 KB each and 64 MiB at most: the oldest go first; those that failed and the 20 slowest of each minute stay for an hour, within the 64 MiB',
  ),
  log_prompts: option(
    'Router',
    '',
    onOrOff,
    false,
    'keep prompt and answer of the last 1,000 chats and completions, 16 KiB of each, in the memory of the router, and show them at `/api/requests/{id}` and in the dashboard to everybody who may read these; otherwise no text and no token id is kept after a request',
  ),
  history_bytes: option(
    'Router',
    'SIZE',
    bytes,
    64 * 2 ** 20,
    'memory for the values over time that `/api/history` has: 0.3 MB for the cluster and each model, 16 KB a node; what finds no room has no history, and an event says so; the cluster always has its own',
  ),
  silence_ms: option(
    'Router',
    'MS',
    positive(600_000),
    3_000,
    'an instance that sends no heartbeat for this long is removed from the cluster',
  ),
} as const;

/** Parsed values of the router's options. */
export type RouterConfig = ConfigOf<typeof options>;
