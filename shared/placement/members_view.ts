/** The cluster's members, as placement and relay look at them. */
import type { Digest } from '../kv/block_key.ts';
import type { Format } from '../kv/format.ts';
import type { Role } from '../protocol/membership.ts';
import type { Instance } from './instance.ts';

/** KV format on which every engine of a model agrees, with its digest. */
export interface ClusterModel {
  readonly format: Format;
  readonly digest: Digest;
  /** Bytes of the record of a recurrent state; absent for a model without recurrent layers. */
  readonly stateBytes?: number | undefined;
}

/** Members that placement and relay can use. */
export interface MembersView {
  /** Format of the model; undefined while no engine of it is a member. */
  readonly model: ClusterModel | undefined;
  readonly otherRouters: readonly string[];
  /** Returns the instances of every role. */
  all(): Instance[];
  /** Returns the instances of one role. */
  of(role: Role): Instance[];
  /**
   * Returns the instances that may generate: the decode instances, and where the placement policy uses any role, the prefill instances of
   * their numerics classes.
   */
  generating(): Instance[];
  /** Returns the instance that the prefix index knows as the holder `id`; undefined when it is no member any more. */
  byHolder(id: string): Instance | undefined;
  /** When an instance that may generate, with a context of `numTokens`, was last in the cluster; undefined: never. */
  decodeSeenMs(numTokens: number): number | undefined;
  /** Resolves when an instance joins, leaves or is placeable again; or after `timeoutMs`, or when `signal` aborts. */
  changed(timeoutMs: number, signal: AbortSignal): Promise<void>;
}

/** Members of all models. */
export interface AllMembers extends MembersView {
  /** Models that have engines, by name. */
  readonly models: ReadonlyMap<string, ClusterModel>;
  /**
   * Returns when an instance that may generate, with a context of `numTokens`, was last in the cluster, for one model or for any;
   * undefined when there was none.
   */
  decodeSeenMs(numTokens: number, model?: string): number | undefined;
}
