/**
 * Placement policies of other systems with the interface of this one. A rule chooses instances of the two pools; the rest is the
 * same for all rules:
 *
 *   embedding, or a decode instance that has begun ──► longest prefix
 *   an instance without coefficients               ──► longest prefix, for rules that need them
 *   otherwise ──rule──► decode instance, perhaps a prefill instance ──pairPlacementOf──► sources
 *
 * With prefill instances, one of them computes whatever its prefix leaves of a prompt, however little that is; a rule that decides
 * otherwise names no prefill instance. Without them the decode instance computes the prompt.
 */
import type { InstanceWork } from '../../protocol/instance_work.ts';
import { matchesOf, type PrefixMatches } from '../fetch_plan.ts';
import type { LongestPrefixPolicy } from '../longest_prefix_policy.ts';
import { ablePrefills, eligibleOf, matchOf, pairPlacementOf } from '../placement.ts';
import type {
  Alternative,
  ClusterSnapshot,
  Decision,
  InstanceSnapshot,
  Placement,
  Policy,
  Prediction,
  Question,
} from '../policy.ts';

/** Instances that a rule chooses from, in the order of their names. */
export interface Pools<One extends InstanceSnapshot = InstanceSnapshot> {
  /** At least one. */
  readonly decode: readonly One[];
  /** Instances that can compute the prompt; empty when there are none, or no full block is to be computed. */
  readonly prefill: readonly One[];
}

/** Input of a rule besides the pools: the question, the cluster, and the leading blocks of the question that each holder has. */
export interface RuleInput {
  readonly question: Question;
  readonly snapshot: ClusterSnapshot;
  readonly matches: PrefixMatches;
}

/** Instances that a rule has chosen, and why. */
export interface Choice {
  readonly decode: InstanceSnapshot;
  readonly prefill: InstanceSnapshot | undefined;
  /** Whether the computing instance fetches held blocks from whoever holds them; otherwise it uses its own prefix alone. */
  readonly fetchesPrefix?: boolean;
  readonly reason: string;
  /** Parts of the predicted time to the first token, in milliseconds by name. */
  readonly parts?: Readonly<Record<string, number>>;
  readonly prediction?: Prediction;
}

/** Result of a rule: a choice, a refusal of the request, or the name of an instance whose missing coefficients the rule needs. */
type RuleResult = Choice | Extract<Decision, { kind: 'reject' }> | { readonly blind: string };

/** Chooses instances. A rule depends on its arguments alone. */
export type Rule = (pools: Pools, input: RuleInput) => RuleResult;

/** An instance whose heartbeats carry its work. */
export type KnownInstance = InstanceSnapshot & { readonly work: InstanceWork };

/** Returns a rule that needs the work of all instances; where one does not report it, the result names that instance. */
export function needingWork(
  rule: (pools: Pools<KnownInstance>, input: RuleInput) => Exclude<RuleResult, { blind: string }>,
): Rule {
  return ({ decode, prefill }, input) => {
    const blind = [...decode, ...prefill].find(({ work }) => work === undefined);
    if (blind) return { blind: blind.name };
    return rule({ decode: decode.filter(isKnown), prefill: prefill.filter(isKnown) }, input);
  };
}

function isKnown(instance: InstanceSnapshot): instance is KnownInstance {
  return instance.work !== undefined;
}

/** A policy that places first placements of chats and completions by a rule, and everything else by the longest prefix. */
export class RulePolicy implements Policy {
  readonly #name: string;
  readonly #rule: Rule;
  readonly #longestPrefix: LongestPrefixPolicy;
  readonly #localPrefillTokens: number;

  /** `localPrefillTokens` bounds what a decode instance computes when its blocks do not arrive. */
  constructor(name: string, rule: Rule, longestPrefix: LongestPrefixPolicy, localPrefillTokens: number) {
    this.#name = name;
    this.#rule = rule;
    this.#longestPrefix = longestPrefix;
    this.#localPrefillTokens = localPrefillTokens;
  }

  decide(question: Question, snapshot: ClusterSnapshot): Decision {
    if (question.isEmbedding || question.decode) return this.#longestPrefix.decide(question, snapshot);
    const { instances, decision } = eligibleOf(snapshot.decode, question, snapshot);
    if (!instances) return decision;
    const able = question.numBlocks > 0 ? ablePrefills(snapshot.prefill, question) : [];
    const pools = { decode: byName(instances), prefill: byName(able) };
    const matches = matchesOf(snapshot.ranges);
    const result = this.#rule(pools, { question, snapshot, matches });
    if ('kind' in result) return result;
    if ('blind' in result) return this.#withoutWork(result.blind, question, snapshot);
    const { parts, prediction } = result;
    return {
      kind: 'place',
      policy: this.#name,
      placement: this.#place(result, question, snapshot, matches),
      priceMs: prediction?.ttftMs,
      ...(parts ? { parts } : {}),
      ...(prediction ? { prediction } : {}),
      alternatives: pools.decode
        .filter((one) => one !== result.decode)
        .map((one) => alternative(one, question, matches)),
    };
  }

  #place(choice: Choice, question: Question, snapshot: ClusterSnapshot, matches: PrefixMatches): Placement {
    const { decode, prefill, fetchesPrefix = false, reason } = choice;
    const numTail = question.numTokens - question.numBlocks * snapshot.blockSize;
    const maxSelfCompute = prefill ? Math.max(this.#localPrefillTokens, numTail) : question.numTokens;
    const terms = { fetchesPrefix, maxSelfCompute, reason: `${this.#name}: ${reason}` };
    return pairPlacementOf(decode.id, prefill, question, snapshot, matches, terms);
  }

  /** Places by the longest prefix, because the instance `name` does not report the coefficients that the rule needs. */
  #withoutWork(name: string, question: Question, snapshot: ClusterSnapshot): Decision {
    const decision = this.#longestPrefix.decide(question, snapshot);
    return decision.kind === 'place' ? withReason(decision, withoutCoefficients(name)) : decision;
  }
}

/** Returns the explanation of a placement by the longest prefix, where another policy lacks the coefficients of an instance. */
function withoutCoefficients(name: string): string {
  return `no coefficients from ${name}: placed by longest prefix`;
}

/** Returns the decision with `why` before its reason. */
function withReason(decision: Extract<Decision, { kind: 'place' }>, why: string): Decision {
  const { placement } = decision;
  return { ...decision, placement: { ...placement, reason: `${why}; ${placement.reason}` } };
}

function alternative(instance: InstanceSnapshot, question: Question, matches: PrefixMatches): Alternative {
  const { id, queueLength } = instance;
  return { decode: id, run: matchOf(id, question, matches), queueLength, priceMs: undefined };
}

function byName(instances: readonly InstanceSnapshot[]): InstanceSnapshot[] {
  return [...instances].sort((a, b) => (a.name < b.name ? -1 : 1));
}
