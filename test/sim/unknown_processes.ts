/** Processes that must not become members of a cluster that is whole, and what is said in the name of those who were. */
import type { Bus, BusListener } from '../../shared/bus/bus.ts';
import type { Format } from '../../shared/kv/format.ts';
import {
  readRegistrationReply,
  subjects,
  toBytes,
  type Member,
  type Registration,
  type RegistrationReply,
} from '../../shared/protocol/membership.ts';
import type { Instance } from '../../shared/placement/instance.ts';
import { SimProcess } from './simulation.ts';

const REPLY_MS = 1_000;
const STALE_LOAD = 12_345;

interface UnknownProcess {
  readonly what: string;
  readonly registration: Registration;
  readonly answer: RegistrationReply['kind'];
}

/** One for each check of a registration that a hub makes; the second has an engine. */
function unknownProcessesLike(any: Instance, { registration: own }: Instance): UnknownProcess[] {
  const newcomer = (changes: Partial<Member>, from: Registration): Registration => ({
    ...from,
    member: { ...from.member, name: 'stranger', epoch: 'another', address: 'stranger:1', ...changes },
  });
  const { name, role } = any.member;
  const { engine } = own;
  if (!engine) throw new Error('an engine registers without one');
  const formats: Partial<Format>[] = [
    { model: 'another' },
    { weightFormat: 'int4' },
    { kvDtype: 'f16' },
    { layoutVersion: engine.format.layoutVersion + 1 },
    { blockSize: 2 * engine.format.blockSize },
    { numerics: 'another' },
    { kv: 'spec' },
  ];
  const plain = newcomer({}, own);
  return [
    {
      what: 'the name of one who lives',
      registration: newcomer({ name }, any.registration),
      answer: 'wait',
    },
    {
      what: 'the name of another role',
      registration: newcomer({ name, role: role === 'decode' ? 'prefill' : 'decode' }, own),
      answer: 'refused',
    },
    {
      what: 'another protocol',
      registration: { ...plain, protocolVersion: own.protocolVersion + 1 },
      answer: 'refused',
    },
    ...[{ vocabSize: engine.vocabSize + 1 }, { modelConfig: 'another' }].map((change): UnknownProcess => ({
      what: JSON.stringify(change),
      registration: { ...plain, engine: { ...engine, ...change } },
      answer: 'refused',
    })),
    ...formats.map((change): UnknownProcess => ({
      what: JSON.stringify(change),
      registration: { ...plain, engine: { ...engine, format: { ...engine.format, ...change } } },
      answer: 'refused',
    })),
  ];
}

/**
 * Sends registrations of unknown processes to the router of epoch `router`, and returns what is wrong with its answers. `members` are
 * those the router has.
 */
export async function faultsOfUnknownProcesses(
  openBus: (process: SimProcess, listener: BusListener) => Bus,
  router: string,
  members: readonly Instance[],
  settle: (isDone: () => boolean) => Promise<void>,
): Promise<string[]> {
  const any = members[0];
  const engine = members.find(({ registration }) => registration.engine);
  if (!any || !engine) return ['no engine is a member'];
  const process = new SimProcess('stranger');
  const faults: string[] = [];
  let numLeft = Infinity;
  const client = openBus(process, {
    onConnected: () => {
      const unknownProcesses = unknownProcessesLike(any, engine);
      numLeft = unknownProcesses.length;
      const ask = async ({ what, registration, answer }: UnknownProcess): Promise<void> => {
        const reply = readRegistrationReply(
          await client.request(subjects.register(router), toBytes(registration), REPLY_MS),
        );
        if (reply.kind !== answer) faults.push(`an unknown process with ${what} is told ${reply.kind}, not ${answer}`);
      };
      for (const unknownProcess of unknownProcesses)
        ask(unknownProcess)
          .catch((error: unknown) => faults.push(`an unknown process with ${unknownProcess.what}: ${String(error)}`))
          .finally(() => numLeft--);
      // From one who had the name before.
      const { name } = any.member;
      client.publish(subjects.goodbye, toBytes({ name, epoch: 'before' }));
      if (any.load)
        client.publish(
          subjects.heartbeat,
          toBytes({ name, epoch: 'before', load: { ...any.load, running: STALE_LOAD }, blocks: 0, seen: {} }),
        );
    },
    onDisconnected: () => undefined,
    onRefused: (failure) => faults.push(failure.message),
  });
  await settle(() => numLeft === 0);
  client.close();
  if (numLeft > 0) faults.push('unknown processes get no answer');
  if (any.lost.signal.aborted) faults.push(`${any.member.name} left with the goodbye of one before it`);
  if (any.load?.running === STALE_LOAD) faults.push(`${any.member.name} has the load of one before it`);
  return faults;
}
