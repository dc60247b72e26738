/**
 * Generated traces: five workloads, each a list of sessions (chats, agents, single requests) that begin at random. The same kind, values
 * and seed give the same trace.
 *
 *   multi-turn     chats: a system prompt, then turns that repeat all turns before them, after a pause to think
 *   shared-prefix  single requests after system prompts, some of which are far more frequent than others (Zipf)
 *   bursts         single requests that arrive in bursts, with silence between them
 *   zipf           questions about documents, some of which are asked about far more often than others (Zipf)
 *   agents         loops of model and tools: short pauses, results appended to the context, long shared system prompts
 */
import { Failure } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { Random } from '../../shared/base/random.ts';
import { BlockNumbering, type PromptPart } from './block_numbering.ts';
import { MAX_REQUESTS, TRACE_BLOCK_TOKENS, TraceBuilder, type Trace } from '../../shared/trace/trace.ts';

/** A value of a generator: its default, its bounds and what it means. */
interface Value {
  readonly fallback: number;
  readonly min: number;
  readonly max: number;
  readonly help: string;
}

const value = (fallback: number, help: string, min = 0, max = 1e6): Value => ({ fallback, min, max, help });
const input = (tokens: number, of: string): Value => value(tokens, `mean tokens of ${of}`, 1);
const output = (tokens: number): Value => value(tokens, 'mean tokens of an answer', 1);
const skew = (exponent: number): Value => value(exponent, 'Zipf exponent: 0 makes all equally frequent', 0, 10);

/** Values that every kind has. */
const common = {
  requests: value(1_000, 'requests of the trace', 1, MAX_REQUESTS),
  rate: value(4, 'mean requests per second', 0.001, 10_000),
  seed: value(1, 'seed of the random numbers', 0, 2 ** 32 - 1),
  block: value(TRACE_BLOCK_TOKENS, 'tokens of a block', 1, 65_536),
  context: value(131_072, 'most tokens of prompt and answer together', 64, 2 ** 22),
};

const kinds = {
  'multi-turn': {
    turns: value(5, 'mean turns of a chat', 1, 200),
    think_s: value(20, 'mean seconds between an answer and the next turn'),
    system: value(800, 'tokens of the system prompt'),
    input: input(500, "a user's message"),
    output: output(300),
  },
  'shared-prefix': {
    prefixes: value(20, 'number of system prompts', 1),
    zipf: skew(1),
    system: input(4_000, 'a system prompt'),
    input: input(500, 'the rest of a prompt'),
    output: output(200),
  },
  bursts: {
    on_s: value(5, 'seconds of a burst', 0.001),
    off_s: value(15, 'seconds between bursts'),
    system: value(1_200, 'tokens of the system prompt'),
    input: input(2_000, 'a prompt'),
    output: output(200),
  },
  zipf: {
    documents: value(200, 'number of documents', 1),
    zipf: skew(1),
    document: input(12_000, 'a document'),
    input: input(100, 'a question'),
    output: output(200),
  },
  agents: {
    turns: value(12, 'mean calls of the model in a task', 1, 200),
    think_s: value(1, 'mean seconds that a tool takes'),
    agents: value(4, 'number of kinds of agents, each with its system prompt and tools', 1),
    zipf: skew(1),
    system: input(6_000, 'a system prompt with its tools'),
    input: input(800, 'the result of a tool'),
    output: output(120),
  },
} satisfies Record<string, Record<string, Value>>;

/** Kind of a generated trace. */
type Kind = keyof typeof kinds;
type Values = Readonly<Record<string, number>>;

/** A kind with all its values: what {@link generateTrace} makes a trace of. */
export interface GeneratorSpec {
  readonly kind: Kind;
  readonly values: Values;
}

/** Milliseconds per token until an answer ends and its reader begins to think; a trace is generated before anything is served. */
const ANSWER_TOKEN_MS = 30;
/** Most parts of all prompts while a trace is generated (P1); each takes 8 bytes. */
const MAX_PARTS = 40_000_000;
/** Standard deviation of the logarithm of lengths. */
const LENGTH_SIGMA = 0.6;

/** One request of a session, before block ids are numbered. */
interface Turn {
  readonly atMs: number;
  readonly prompt: readonly PromptPart[];
  readonly outputTokens: number;
}

/**
 * Reads `KIND`, or `KIND:key=value,key=value` (a comma may stand for the colon). @throws ConfigError for an unknown kind or key, or a value
 * out of bounds.
 */
export function parseGenerator(text: string): GeneratorSpec {
  const [kind = '', ...assignments] = text.split(/[:,]/);
  if (!Object.hasOwn(kinds, kind))
    throw new ConfigError(`there is no generated trace ${JSON.stringify(kind)}: use ${Object.keys(kinds).join(', ')}`);
  const known: Record<string, Value> = { ...common, ...kinds[kind as Kind] };
  const values = Object.fromEntries(Object.entries(known).map(([key, { fallback }]) => [key, fallback]));
  for (const assignment of assignments) {
    const [key = '', number = ''] = assignment.split('=');
    const allowed = Object.hasOwn(known, key) ? known[key] : undefined;
    if (!allowed)
      throw new ConfigError(
        `${kind}: ${JSON.stringify(assignment)}: use KEY=NUMBER with ${Object.keys(known).join(', ')}`,
      );
    const given = number.trim() === '' ? NaN : Number(number);
    const isWhole = !['rate', 'zipf', 'think_s', 'on_s', 'off_s', 'turns'].includes(key);
    if (!(given >= allowed.min && given <= allowed.max) || (isWhole && !Number.isInteger(given)))
      throw new ConfigError(
        `${kind}: ${key}=${number} is not allowed: ${isWhole ? 'a whole number' : 'a number'} from ${allowed.min} to ${allowed.max} (${allowed.help})`,
      );
    values[key] = given;
  }
  return { kind: kind as Kind, values };
}

/** Returns the kinds and their values with defaults, for the help. */
export function generatorHelp(): string {
  const lines = ([name, { fallback, help }]: [string, Value]): string =>
    `      ${`${name}=${fallback}`.padEnd(18)} ${help}`;
  const section = ([name, values]: [string, Record<string, Value>]): string =>
    [`    ${name}`, ...Object.entries(values).map(lines)].join('\n');
  return [section(['every kind', common]), ...Object.entries(kinds).map(section)].join('\n');
}

/** Generates a trace, or its first `maxRequests` requests. @throws Failure when it would be larger than a trace may be. */
export function generateTrace({ kind, values }: GeneratorSpec, maxRequests = Infinity): Trace {
  const { requests = 0, block = 0 } = values;
  const numbering = new BlockNumbering(block);
  const builder = new TraceBuilder(block);
  for (const { atMs, prompt, outputTokens } of turnsOf(kind, values)) {
    const inputTokens = prompt.reduce((sum, { tokens }) => sum + tokens, 0);
    // Times as in a file, whole milliseconds: a trace that was written and read is the same one.
    builder.add({ timestampMs: Math.round(atMs), inputTokens, outputTokens, hashIds: numbering.idsOf(prompt) });
    if (builder.numRequests === Math.min(requests, maxRequests)) break;
  }
  return builder.build();
}

/**
 * Returns at least as many turns as the trace has requests, by time. Sessions begin before the trace does and are added until one begins
 * after its last request, so that the rate neither grows at the start nor falls off at the end.
 */
function turnsOf(kind: Kind, values: Values): readonly Turn[] {
  const { requests = 0, rate = 1, turns = 1, seed = 0, think_s: thinkS = 0, output: outputTokens = 0 } = values;
  const sessionMs = turns > 1 ? turns * (1_000 * thinkS + ANSWER_TOKEN_MS * outputTokens) : 0;
  const warmUpMs = Math.min(2 * sessionMs, (1_000 * requests) / rate);
  for (let numSessions = Math.ceil(requests / turns) + 16; ; numSessions *= 2) {
    const source = new SessionSource(kind, values, new Random(seed));
    const kept: Turn[] = [];
    let numParts = 0;
    for (let i = 0; i < numSessions; i++) {
      for (const turn of source.next()) {
        numParts += turn.prompt.length;
        if (turn.atMs >= warmUpMs) kept.push(turn);
      }
      if (numParts > MAX_PARTS)
        throw new Failure(
          'invalid_request',
          `${kind}: sessions are too long to generate: ask for fewer requests or turns`,
        );
    }
    kept.sort((a, b) => a.atMs - b.atMs);
    const last = kept[requests - 1];
    if (last && last.atMs <= source.startMs) return kept;
  }
}

/** Sessions in the order of their starts. */
class SessionSource {
  /** Milliseconds at which the last session began. */
  startMs = 0;
  readonly #kind: Kind;
  readonly #values: Values;
  readonly #random: Random;
  readonly #shared: readonly PromptPart[];
  readonly #weights: readonly number[];
  #nextPartId = 0;
  /** Milliseconds of bursts so far, without the pauses between them. */
  #activeMs = 0;

  constructor(kind: Kind, values: Values, random: Random) {
    this.#kind = kind;
    this.#values = values;
    this.#random = random;
    const count = values['prefixes'] ?? values['documents'] ?? values['agents'] ?? 1;
    const mean = values['document'] ?? values['system'] ?? 0;
    // A system prompt that all share has the length that is named; of several each has its own.
    const lengths = Array.from({ length: count }, () => (count === 1 ? mean : this.#length(mean)));
    this.#shared = lengths.map((tokens) => this.#part(Math.min(tokens, this.#value('context') / 2)));
    this.#weights = cumulative(lengths.map((_, rank) => 1 / (rank + 1) ** (values['zipf'] ?? 0)));
  }

  /** Returns the turns of the next session. */
  next(): readonly Turn[] {
    this.startMs = this.#nextStart();
    const numTurns = this.#numTurns();
    const turns: Turn[] = [];
    let atMs = this.startMs;
    let prompt: readonly PromptPart[] = [this.#pickShared()].filter(({ tokens }) => tokens > 0);
    for (let turn = 0; turn < numTurns; turn++) {
      prompt = [...prompt, this.#part(this.#length(this.#value('input')))];
      const answer = this.#part(this.#length(this.#value('output')));
      const inputTokens = prompt.reduce((sum, { tokens }) => sum + tokens, 0);
      const room = this.#value('context') - inputTokens;
      if (room < answer.tokens && turn > 0) break;
      const cut = room < answer.tokens ? shortened(prompt, this.#value('context') / 2) : prompt;
      const outputTokens = Math.min(answer.tokens, Math.floor(this.#value('context') / 2));
      turns.push({ atMs, prompt: cut, outputTokens });
      atMs += outputTokens * ANSWER_TOKEN_MS + this.#exponential(1_000 * (this.#values['think_s'] ?? 0));
      prompt = [...cut, { ...answer, tokens: outputTokens }];
    }
    return turns;
  }

  #value(name: string): number {
    return this.#values[name] ?? 0;
  }

  /** Uniform in (0, 1). */
  #uniform(): number {
    return (this.#random.u32() + 0.5) / 2 ** 32;
  }

  #exponential(mean: number): number {
    return -Math.log(this.#uniform()) * mean;
  }

  /** A length in tokens, log-normal with this mean; at least 1. */
  #length(mean: number): number {
    const normal = Math.sqrt(-2 * Math.log(this.#uniform())) * Math.cos(2 * Math.PI * this.#uniform());
    return Math.max(1, Math.round(mean * Math.exp(LENGTH_SIGMA * normal - LENGTH_SIGMA ** 2 / 2)));
  }

  /** The number of turns: geometric, so that every turn is equally likely to be the last. */
  #numTurns(): number {
    const { turns = 1 } = this.#values;
    return turns <= 1 ? 1 : 1 + Math.floor(Math.log(this.#uniform()) / Math.log(1 - 1 / turns));
  }

  #nextStart(): number {
    const meanMs = (1_000 * (this.#values['turns'] ?? 1)) / this.#value('rate');
    if (this.#kind !== 'bursts') return this.startMs + this.#exponential(meanMs);
    const [onMs, offMs] = [1_000 * this.#value('on_s'), 1_000 * this.#value('off_s')];
    this.#activeMs += this.#exponential((meanMs * onMs) / (onMs + offMs));
    return this.#activeMs + Math.floor(this.#activeMs / onMs) * offMs;
  }

  #part(tokens: number): PromptPart {
    return { id: this.#nextPartId++, tokens: Math.floor(tokens) };
  }

  #pickShared(): PromptPart {
    const at = this.#uniform() * this.#weights.at(-1)!;
    return this.#shared[this.#weights.findIndex((weight) => at <= weight)]!;
  }
}

/** Returns the sums of the first 1, 2, ... values. */
function cumulative(values: readonly number[]): readonly number[] {
  let sum = 0;
  return values.map((one) => (sum += one));
}

/** Returns the first tokens of a prompt, at most `tokens` and at least one. */
function shortened(prompt: readonly PromptPart[], tokens: number): readonly PromptPart[] {
  let room = Math.max(1, Math.floor(tokens));
  return prompt.flatMap(({ id, tokens: length }) => {
    const taken = Math.min(length, room);
    room -= taken;
    return taken > 0 ? [{ id, tokens: taken }] : [];
  });
}
