/** Changes of the members as people are told of them, and why a process is refused as one. */
import { PROTOCOL_VERSION } from '../../../shared/protocol/messages.ts';
import type { Member, Registration } from '../../../shared/protocol/membership.ts';
import type { Instance } from '../../../shared/placement/instance.ts';

/** Upper bound of the cluster's members (P1). */
const MAX_MEMBERS = 1_024;

/** Change of the members, for people: the process, and why it was lost or refused. */
export interface MemberEvent {
  readonly kind: 'joined' | 'left' | 'lost' | 'refused';
  readonly member: Member;
  /** Name of the model that the process serves; undefined for a store, and for a process that was refused. */
  readonly model: string | undefined;
  /** Empty where the kind says all. */
  readonly why: string;
}

/** Returns why a process cannot become a member next to these instances, by name; undefined when it can. */
export function refusalOf(
  { member, protocolVersion }: Pick<Registration, 'member' | 'protocolVersion'>,
  instances: ReadonlyMap<string, Instance>,
): string | undefined {
  if (protocolVersion !== PROTOCOL_VERSION) {
    const older = protocolVersion < PROTOCOL_VERSION ? member.name : 'this router';
    return `${member.name} speaks protocol ${protocolVersion}, this router ${PROTOCOL_VERSION}: upgrade ${older}`;
  }
  if (instances.size >= MAX_MEMBERS && !instances.has(member.name)) {
    return `this router serves at most ${MAX_MEMBERS} processes`;
  }
  const namesake = instances.get(member.name);
  if (namesake && namesake.member.role !== member.role) {
    return `the name ${member.name} belongs to a ${namesake.member.role}: give one of them another --name`;
  }
  return undefined;
}
