/**
 * The file of `--keys`: who may ask, in YAML. A key itself is in no file: an entry has its SHA-256.
 *
 *   - name: alice               shown in logs and metrics
 *     sha256: 64 hex digits     of the key; `penstock key alice --tenant research` makes both
 *     tenant: research          whose blocks, limits and share of the engines its requests have
 *     admin: true               may use metrics, /api/* and the dashboard
 *     models: [harbour]         left out: all
 *     sharing: all              of the tenant: its blocks are shared with all others that say so; left out: its own
 *     targets: {ttft_ms: 500, tbt_ms: 50}
 *     limits:                   of the tenant, all its keys together; left out: none
 *       requests_per_minute: 600    counted when their headers have come
 *       tokens_per_minute: 200000   of prompts, cached ones included, and answers
 *       requests_in_flight: 8       from their headers to the end of their answers
 *       samples: 4                  of a request: its prompts times the larger of n and best_of
 *     weight: 2                 share of the tenant where several wait
 *     max_priority: 3           levels by which its requests may go before other tenants'
 *
 * It has at most MAX_KEYS entries, and MAX_KEYS_BYTES.
 */
import { createRequire } from 'node:module';
import type * as Yaml from 'yaml';
import { z } from 'zod';
import { CLIENT_NAME, CLIENT_NAME_TEXT, MAX_KEYS } from '../../../shared/base/client_keys.ts';
import { ConfigError } from '../../../shared/base/options.ts';
import { MAX_TARGET_MS } from './caller.ts';

const MAX_MODELS = 256;
/** Largest rates and counts. */
const MOST = 1e9;

const nameText = z.string('a text: put it in quotes').regex(CLIENT_NAME, CLIENT_NAME_TEXT);
const count = z.int('a whole number').min(1, 'at least 1: leave it out for no limit').max(MOST);
const targetMs = z.int('whole milliseconds').min(1).max(MAX_TARGET_MS);

const entrySchema = z.strictObject({
  name: nameText,
  sha256: z
    .string()
    .regex(/^[0-9a-fA-F]{64}$/, 'the SHA-256 of a key, 64 hexadecimal digits: `penstock key NAME --tenant T` prints it')
    .transform((text) => text.toLowerCase()),
  tenant: nameText,
  admin: z.boolean('true or false').default(false),
  models: z.array(z.string().min(1)).min(1, 'at least one name: leave it out for all').max(MAX_MODELS).optional(),
  sharing: z.enum(['own', 'all'], 'own or all').optional(),
  targets: z.strictObject({ ttft_ms: targetMs.optional(), tbt_ms: targetMs.optional() }).optional(),
  limits: z
    .strictObject({
      requests_per_minute: count.optional(),
      tokens_per_minute: count.optional(),
      requests_in_flight: count.optional(),
      samples: count.optional(),
    })
    .optional(),
  weight: z.number('a number').min(0.001, 'at least 0.001').max(1_000).optional(),
  max_priority: z.int('a whole number').min(0, 'at least 0').max(1_000).optional(),
});

/** Keys of an entry that hold for its whole tenant: where several entries state one, they agree. */
const OF_TENANT = ['sharing', 'limits', 'weight'] as const;

/** One key, as its entry has it. */
export type KeyEntry = z.infer<typeof entrySchema>;

/** A place in a file, and what is wrong there. */
type Refuse = (path: readonly (string | number)[], message: string) => never;

/**
 * Returns the entries of a file. `models` are the names that the router serves by its own configuration. @throws ConfigError with the
 * line and what to do
 */
export function readKeysFile(file: string, text: string, models: readonly string[]): readonly KeyEntry[] {
  const { parseDocument, LineCounter, isMap, isNode, isSeq } = createRequire(import.meta.url)('yaml') as typeof Yaml;
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines });
  const at = (offset: number | undefined): string => `${file}:${offset === undefined ? 1 : lines.linePos(offset).line}`;
  const [fault] = document.errors;
  if (fault) throw new ConfigError(`${at(fault.pos[0])}: no YAML: ${fault.message.split('\n', 1)[0] ?? ''}`);
  const refuse: Refuse = (path, message) => {
    // The line of what is named, else of what it lies in: a key that is missing has none.
    let offset: number | undefined;
    for (let depth = 0; depth <= path.length; depth++) {
      const holder: unknown = depth === 0 ? document.contents : document.getIn(path.slice(0, depth), true);
      const pair = keyOf(isMap(holder) ? holder : undefined, path[depth]);
      if (isNode(holder)) offset = holder.range?.[0] ?? offset;
      if (isNode(pair)) offset = pair.range?.[0] ?? offset;
    }
    throw new ConfigError(`${at(offset)}: ${message}`);
  };
  if (!isSeq(document.contents) || document.contents.items.length === 0)
    throw new ConfigError(
      `${at(isNode(document.contents) ? document.contents.range[0] : undefined)}: expected a list with an entry for each key; \`penstock key NAME --tenant T\` prints one`,
    );
  return entriesOf(document.toJS() as unknown[], models, refuse);
}

function keyOf(map: Yaml.YAMLMap | undefined, name: string | number | undefined): unknown {
  return map?.items.find(({ key }) => (key as { value?: unknown }).value === name)?.key;
}

function entriesOf(list: readonly unknown[], models: readonly string[], refuse: Refuse): readonly KeyEntry[] {
  if (list.length > MAX_KEYS) refuse([], `${list.length} keys are more than ${MAX_KEYS}`);
  const [names, digests] = [new Map<string, number>(), new Map<string, number>()];
  const tenants = new Map<string, Map<string, string>>();
  const twice = (seen: Map<string, number>, value: string, path: readonly (string | number)[], word: string): void => {
    const before = seen.get(value);
    if (before !== undefined)
      refuse(path, `the ${word} of entry ${before + 1} again: give each key an entry, a name and a digest of its own`);
    seen.set(value, Number(path[0]));
  };
  return list.map((item, i) => {
    const entry = checked(item, i, refuse);
    twice(names, entry.name, [i, 'name'], 'name');
    twice(digests, entry.sha256, [i, 'sha256'], 'digest');
    const unserved = entry.models?.findIndex((name) => !models.includes(name)) ?? -1;
    if (unserved >= 0) {
      const served = models.join(', ');
      refuse(
        [i, 'models', unserved],
        `the model ${String(entry.models?.[unserved])} is not served: --model of the router has ${served}; add it there, or leave \`models\` out for all`,
      );
    }
    const ofTenant = tenants.get(entry.tenant) ?? new Map<string, string>();
    tenants.set(entry.tenant, ofTenant);
    for (const field of OF_TENANT) {
      if (entry[field] === undefined) continue;
      const [own, before] = [JSON.stringify(entry[field]), ofTenant.get(field)];
      if (before !== undefined && before !== own)
        refuse(
          [i, field],
          `${field}: ${own}, where another entry of the tenant ${entry.tenant} has ${before}: one holds for a tenant`,
        );
      ofTenant.set(field, own);
    }
    return entry;
  });
}

function checked(item: unknown, i: number, refuse: Refuse): KeyEntry {
  const result = entrySchema.safeParse(item);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  if (!issue) throw result.error;
  const path = issue.path.map((part) => (typeof part === 'symbol' ? String(part) : part));
  if (issue.code === 'unrecognized_keys') {
    const [unknown = ''] = issue.keys;
    const known = Object.keys(
      path.includes('limits')
        ? entrySchema.shape.limits.unwrap().shape
        : path.includes('targets')
          ? entrySchema.shape.targets.unwrap().shape
          : entrySchema.shape,
    );
    return refuse([i, ...path, unknown], `${[...path, unknown].join('.')}: unknown; allowed are ${known.join(', ')}`);
  }
  const isMissing =
    path.length === 1 && typeof item === 'object' && item !== null && !Object.hasOwn(item, String(path[0]));
  const where = path.length === 0 ? 'an entry has keys and values, such as name: alice' : path.join('.');
  return refuse(
    [i, ...path],
    isMissing ? `${where}: it is missing; every entry has one` : `${where}: ${issue.message}`,
  );
}
