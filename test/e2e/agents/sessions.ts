/** Sessions of 12 turns: what the user writes, which turns think or must call a tool, and the counts of each turn. */
import { ClaudeCode, type ClaudeCodeOptions } from './claude_code.ts';
import { Codex, type CodexOptions } from './codex.ts';
import { PromptCosts } from './prompt_costs.ts';

const NUM_TURNS = 12;
/** Words of the last turn, after the results of calls where there are some; the project's instructions answer them. */
const LAST_WORDS = 'What is the code of locker 42?';
const CODE = /9071/;

/** A session's counts, and parts of its answers. */
interface PlayedSession {
  readonly costs: PromptCosts;
  /** Types of the blocks or items that answers had. */
  readonly kinds: ReadonlySet<string>;
  /** The last answer, as JSON. */
  readonly last: string;
}

/** A session that can be played. */
interface Session {
  /** Names of the routers that its turns go through, one after the other. */
  readonly routers: readonly string[];
  /** Types of blocks or items that its answers must have, or it tests little. */
  readonly kinds: readonly string[];
  /** The last answer, where the model still answers by what the first turn brought: the project's instructions. */
  readonly says?: RegExp;
  /** Whether the template drops parts of earlier answers: reasoning before another question, and the block that turns it off; `unseen`: and no router
   * sees that it does. */
  readonly isDropping?: boolean | 'unseen';
  /** Plays it; `urlOf` returns the router of a turn, counted from 1. */
  readonly play: (urlOf: (turn: number) => string, model: string) => Promise<PlayedSession>;
}

/** The blocks or items of an answer, and whether the results of its calls go with the next request. */
interface Asked {
  readonly parts: readonly { readonly type: string }[];
  readonly header: string | null;
  readonly hasCalls: boolean;
}

interface Agent<O> {
  say(words: string): void;
  ask(url: string, options: O): Promise<Asked>;
}

/** Words of the user, and options of the request that they go with. */
type Words<O> = readonly [words: string, options?: Partial<O>];

interface Plan<A, O> {
  readonly newAgent: (model: string) => A;
  readonly said: readonly Words<O>[];
  /** Whether the user says nothing after the first words, because every answer calls a tool. */
  readonly isOneTask?: boolean;
  /** Options of a turn, counted from 1. */
  readonly optionsOf: (turn: number) => O;
  /** Adds words of the client itself after the results of calls, which come for the `count`-th time. */
  readonly addTo?: (agent: A, count: number) => void;
}

function playing<O, A extends Agent<O>>({ newAgent, said, isOneTask, optionsOf, addTo }: Plan<A, O>): Session['play'] {
  return async (urlOf, model) => {
    const [agent, costs, kinds, left] = [newAgent(model), new PromptCosts(), new Set<string>(), [...said]];
    let [last, hasCalls, numResults] = ['', false, 0];
    for (let turn = 1; turn <= NUM_TURNS; turn++) {
      if (hasCalls) addTo?.(agent, ++numResults);
      const [words, options] =
        turn === NUM_TURNS && isOneTask !== true ? [LAST_WORDS] : hasCalls ? [] : (left.shift() ?? ['Go on.']);
      if (words !== undefined) agent.say(words);
      const asked = await agent.ask(urlOf(turn), { ...optionsOf(turn), ...options });
      for (const { type } of asked.parts) kinds.add(type);
      hasCalls = asked.hasCalls;
      last = JSON.stringify(asked.parts);
      await costs.add(urlOf(turn), asked.header, last);
    }
    return { costs, kinds, last };
  };
}

const claudeKinds = ['thinking', 'text', 'tool_use'];
const list = { toolChoice: { type: 'tool', name: 'TodoWrite' } } as const;
const enabled = { type: 'enabled', budget_tokens: 1_024 } as const;
const disabled = { type: 'disabled' } as const;
const claudeSaid: readonly Words<ClaudeCodeOptions>[] = [
  ['When is the tide high at the old mill?'],
  ['Write the list of what is to do.', list],
  ['Tell me a story.'],
  ['How is the weather on Monday?', { toolChoice: { type: 'any' } }],
  ['How are you?'],
  ['Is the list done?', list],
  ['When is the tide high at the dry tower, and at the south pier?'],
  ['Tell me a story of the Heron.'],
];

const patch = { toolChoice: { type: 'custom', name: 'apply_patch' } } as const;
const plan = { toolChoice: { type: 'function', name: 'update_plan' } } as const;
const codexSaid: readonly Words<CodexOptions>[] = [
  ['When is the tide high at the old mill?'],
  ['How is the weather on Monday?', patch],
  // A sampled answer has tokens that its text would not be encoded to.
  ['Tell me a story.', { seed: 6 }],
  ['Write the list of what is to do.', plan],
  ['How are you?'],
  ['How is the weather on Friday?', { toolChoice: 'required' }],
  ['When is the tide high at the dry tower, and at the south pier?'],
  ['Tell me a story of the Heron.', { seed: 9 }],
];

/** Questions, calls and stories, with thinking in most turns. */
const playClaude = playing<ClaudeCodeOptions, ClaudeCode>({
  newAgent: (model) => new ClaudeCode(model, 5),
  said: claudeSaid,
  optionsOf: (turn) => ({ thinking: turn < 7 ? enabled : turn < NUM_TURNS ? { type: 'adaptive' } : disabled }),
  addTo: (agent, count) => {
    if (count === 1) agent.remind('The list of steps is empty.', true);
    if (count === 2) agent.remind('The file src/tide.py was changed by the user.', false);
    if (count === 3) agent.instruct('The user has switched to another branch.');
  },
});
const playCodex = playing<CodexOptions, Codex>({
  newAgent: (model) => new Codex(model),
  said: codexSaid,
  optionsOf: (turn) => ({ isThinking: turn < 10 }),
});

/** The sessions, by name. */
export const sessions: Readonly<Record<string, Session>> = {
  'Claude Code, at work on one task': {
    routers: ['router-1'],
    kinds: ['thinking', 'tool_use'],
    play: playing<ClaudeCodeOptions, ClaudeCode>({
      newAgent: (model) => new ClaudeCode(model, 7),
      said: [[LAST_WORDS]],
      isOneTask: true,
      optionsOf: () => ({ thinking: enabled, ...list }),
      addTo: (agent, count) => agent.remind(`Step ${count} is done.`, count % 2 === 0),
    }),
  },
  'Codex, at work on one task': {
    routers: ['router-1'],
    kinds: ['reasoning', 'function_call'],
    play: playing<CodexOptions, Codex>({
      newAgent: (model) => new Codex(model),
      said: [[LAST_WORDS]],
      isOneTask: true,
      optionsOf: () => ({ isThinking: true, maxTokens: 512, ...plan }),
    }),
  },
  'Claude Code, whose router keeps the reasoning': {
    routers: ['router-3'],
    kinds: claudeKinds,
    play: playing<ClaudeCodeOptions, ClaudeCode>({
      newAgent: (model) => new ClaudeCode(model, 8),
      said: [['How are you?'], ...claudeSaid.slice(2)],
      optionsOf: (turn) =>
        turn % 3 === 2 ? { thinking: enabled, ...list } : { thinking: turn % 2 ? disabled : enabled },
    }),
  },
  'Codex, whose router keeps the reasoning': { routers: ['router-3'], kinds: ['reasoning'], play: playCodex },
  'Claude Code, thinking': {
    routers: ['router-1'],
    kinds: claudeKinds,
    says: CODE,
    isDropping: true,
    play: playClaude,
  },
  'Claude Code, whose user switches thinking off and on': {
    routers: ['router-1'],
    kinds: claudeKinds,
    says: CODE,
    isDropping: true,
    play: playing<ClaudeCodeOptions, ClaudeCode>({
      newAgent: (model) => new ClaudeCode(model, 6),
      said: claudeSaid.toReversed(),
      optionsOf: (turn) => ({ thinking: turn < 5 || turn > 9 ? disabled : enabled }),
    }),
  },
  Codex: {
    routers: ['router-1'],
    kinds: ['reasoning', 'message', 'function_call', 'custom_tool_call'],
    says: CODE,
    isDropping: true,
    play: playCodex,
  },
  'Codex, whose turns go through two routers': {
    routers: ['router-1', 'router-2'],
    kinds: ['reasoning', 'message', 'function_call'],
    says: CODE,
    // Each router knows its own half of the chat.
    isDropping: 'unseen',
    play: playing<CodexOptions, Codex>({
      newAgent: (model) => new Codex(model),
      said: codexSaid.slice(2),
      optionsOf: (turn) => ({ isThinking: turn > 3 && turn < NUM_TURNS }),
    }),
  },
};
