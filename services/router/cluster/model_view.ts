/** One model's part of a cluster with several models: its engines, and the stores, which hold blocks of every model. */
import type { Role } from '../../../shared/protocol/membership.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { AllMembers, ClusterModel, MembersView } from '../../../shared/placement/members_view.ts';

/** View of the members that serve one model, and of all stores. */
export class ModelView implements MembersView {
  readonly #view: AllMembers;
  readonly #name: string;

  constructor(view: AllMembers, name: string) {
    this.#view = view;
    this.#name = name;
  }

  /** The model's name. */
  get name(): string {
    return this.#name;
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

  generating(): Instance[] {
    return this.#view.generating().filter((instance) => this.#isOwn(instance));
  }

  byHolder(id: string): Instance | undefined {
    const instance = this.#view.byHolder(id);
    return instance && this.#isOwn(instance) ? instance : undefined;
  }

  /**
   * Longest context, in tokens, that an instance of the model generates with; undefined without one. Placement picks an instance whose
   * context is long enough.
   */
  get maxModelLen(): number | undefined {
    const lengths = this.generating().map(({ maxModelLen }) => maxModelLen);
    return lengths.length > 0 ? Math.max(...lengths) : undefined;
  }

  decodeSeenMs(numTokens: number): number | undefined {
    return this.#view.decodeSeenMs(numTokens, this.#name);
  }

  changed(timeoutMs: number, signal: AbortSignal): Promise<void> {
    return this.#view.changed(timeoutMs, signal);
  }
}
