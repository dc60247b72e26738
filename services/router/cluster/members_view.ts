/** The cluster's members, as placement and relay look at them. */
import type { Digest } from '../../../shared/kv/block_key.ts';
import type { Format } from '../../../shared/kv/format.ts';
import type { Role } from '../../../shared/protocol/membership.ts';
import type { Instance } from './instance.ts';

/** What every engine of a model agrees on. */
export interface ClusterModel {
  readonly format: Format;
  readonly digest: Digest;
}

/** Who placement and relay know. */
export interface MembersView {
  /** Undefined until the first engine has registered. */
  readonly model: ClusterModel | undefined;
  readonly otherRouters: readonly string[];
  all(): Instance[];
  of(role: Role): Instance[];
  byHolder(id: string): Instance | undefined;
  /** When a decode instance with a context of `numTokens` was last in the cluster; undefined: never. */
  decodeSeenMs(numTokens: number): number | undefined;
  /** Resolves when an instance joins, leaves or is placeable again; or after `timeoutMs`, or when `signal` aborts. */
  changed(timeoutMs: number, signal: AbortSignal): Promise<void>;
}

/** Members of all models. */
export interface AllMembers extends MembersView {
  /** By name, the models that have engines. */
  readonly models: ReadonlyMap<string, ClusterModel>;
  /** As `decodeSeenMs`, of one model. */
  decodeSeenMs(numTokens: number, model?: string): number | undefined;
}
