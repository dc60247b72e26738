/** Of a cluster with several models, what one of them has: its engines, and the stores, which hold any model's blocks. */
import type { Role } from '../../../shared/protocol/membership.ts';
import type { ClusterModel, ClusterView } from './cluster_view.ts';
import type { Instance } from './instance.ts';

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

export class ModelView implements MembersView {
  readonly #view: ClusterView;
  readonly #name: string;

  constructor(view: ClusterView, name: string) {
    this.#view = view;
    this.#name = name;
  }

  get model(): ClusterModel | undefined {
    return this.#view.models.get(this.#name);
  }

  get otherRouters(): readonly string[] {
    return this.#view.otherRouters;
  }

  #isOwn({ member, model }: Instance): boolean {
    return member.role === 'store' || model === this.#name;
  }

  all(): Instance[] {
    return this.#view.all().filter((instance) => this.#isOwn(instance));
  }

  of(role: Role): Instance[] {
    return this.#view.of(role).filter((instance) => this.#isOwn(instance));
  }

  byHolder(id: string): Instance | undefined {
    const instance = this.#view.byHolder(id);
    return instance && this.#isOwn(instance) ? instance : undefined;
  }

  /** The longest context that a decode instance serves; placement finds the one. */
  get maxModelLen(): number | undefined {
    const lengths = this.of('decode').map(({ maxModelLen }) => maxModelLen);
    return lengths.length > 0 ? Math.max(...lengths) : undefined;
  }

  decodeSeenMs(numTokens: number): number | undefined {
    return this.#view.decodeSeenMs(numTokens, this.#name);
  }

  changed(timeoutMs: number, signal: AbortSignal): Promise<void> {
    return this.#view.changed(timeoutMs, signal);
  }
}
