/** All placement policies by name, and what `auto` stands for. */
import { LONGEST_PREFIX, LongestPrefixPolicy } from './longest_prefix_policy.ts';
import type { Policy } from './policy.ts';
import { dynamo } from './policies/dynamo.ts';
import { leastLoad } from './policies/least_load.ts';
import { llmd } from './policies/llmd.ts';
import { localPrefix } from './policies/local_prefix.ts';
import { mooncakeRule } from './policies/mooncake.ts';
import { random } from './policies/random.ts';
import { roundRobin } from './policies/round_robin.ts';
import { RulePolicy, type Rule } from './policies/rule_policy.ts';
import { sglang } from './policies/sglang.ts';
import { PRICED, PricedPolicy } from './priced/priced_policy.ts';

/** Settings of the policies. */
export interface PolicySettings {
  /** Tokens that a decode instance may compute without a prefill instance. */
  readonly localPrefillTokens: number;
  /** Whether prefill instances only compute prompts and decode instances only generate; otherwise any instance may do any part. */
  readonly strictRoles?: boolean | undefined;
  /** Whether `priced` may have two prefill instances compute one prompt in a pipeline; true by default. */
  readonly hasPipelines?: boolean | undefined;
  /** Whether a policy whose rule refuses requests that would miss their targets does so; true by default. */
  readonly refusesLate?: boolean | undefined;
}

const ruled =
  (name: string, rule: Rule) =>
  ({ localPrefillTokens }: PolicySettings): Policy =>
    new RulePolicy(name, rule, new LongestPrefixPolicy(localPrefillTokens), localPrefillTokens);

const mooncake = (settings: PolicySettings): Policy =>
  ruled('mooncake', mooncakeRule(settings.refusesLate ?? true))(settings);

/** Constructors by name. A further policy is a line here. */
const constructors = {
  [PRICED]: ({ localPrefillTokens, strictRoles = false, hasPipelines = true }: PolicySettings): Policy =>
    new PricedPolicy({
      fallback: new LongestPrefixPolicy(localPrefillTokens),
      isStrict: strictRoles,
      localTokens: localPrefillTokens,
      hasPipelines,
    }),
  [LONGEST_PREFIX]: ({ localPrefillTokens }: PolicySettings): Policy => new LongestPrefixPolicy(localPrefillTokens),
  random: ruled('random', random),
  round_robin: ruled('round_robin', roundRobin),
  least_load: ruled('least_load', leastLoad),
  local_prefix: ruled('local_prefix', localPrefix),
  mooncake,
  dynamo: ruled('dynamo', dynamo),
  sglang: ruled('sglang', sglang),
  llmd: ruled('llmd', llmd),
} as const satisfies Record<string, (settings: PolicySettings) => Policy>;

type ConstructedName = keyof typeof constructors;

/** The policy that `auto` stands for. */
const AUTO: ConstructedName = PRICED;

/** Name of a policy, or `auto`. */
export type PolicyName = ConstructedName | 'auto';

/** Names that a policy may be chosen by, `auto` first. */
export const policyNames: readonly PolicyName[] = ['auto', ...(Object.keys(constructors) as ConstructedName[])];

/** Whether a policy has this name. */
export function isPolicyName(name: string): name is PolicyName {
  return (policyNames as readonly string[]).includes(name);
}

/** Returns a new policy. */
export function createPolicy(name: PolicyName, settings: PolicySettings): Policy {
  return constructors[resolvedName(name)](settings);
}

/** Returns the name of the policy that `name` stands for: `auto` is one of the others. */
export function resolvedName(name: PolicyName): ConstructedName {
  return name === 'auto' ? AUTO : name;
}
