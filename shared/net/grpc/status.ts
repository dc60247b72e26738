/** Failures of the closed table as gRPC statuses, and back. */
import { Metadata, status, type StatusObject } from '@grpc/grpc-js';
import { Failure, isFailureCode, messageOf, toldOf, type FailureCode } from '../../base/failure.ts';
import { peerFailure } from '../peer_failure.ts';

const FAILURE_KEY = 'penstock-failure';
/** The text for clients, in UTF-8, where it differs from the details. */
const TOLD_KEY = 'penstock-told-bin';

const statusOf: Partial<Record<FailureCode, status>> = {
  invalid_request: status.INVALID_ARGUMENT,
  context_too_long: status.INVALID_ARGUMENT,
  unauthenticated: status.UNAUTHENTICATED,
  not_found: status.NOT_FOUND,
  cancelled: status.CANCELLED,
  unavailable: status.UNAVAILABLE,
  overloaded: status.RESOURCE_EXHAUSTED,
  deadline_exceeded: status.DEADLINE_EXCEEDED,
};

/** A failure as the status a call ends with. */
export function toStatus(
  error: unknown,
): Partial<StatusObject> & { code: status; details: string; metadata: Metadata } {
  const code = error instanceof Failure ? error.code : 'internal';
  const metadata = new Metadata();
  metadata.set(FAILURE_KEY, code);
  const [details, told] = [messageOf(error), toldOf(error)];
  if (told !== details) metadata.set(TOLD_KEY, Buffer.from(told));
  return { code: statusOf[code] ?? status.UNKNOWN, details, metadata };
}

/** Failure codes of gRPC statuses without `penstock-failure` metadata, which the transport itself or other software has made. */
const codeOf: Record<status, FailureCode> = {
  [status.OK]: 'internal',
  [status.CANCELLED]: 'cancelled',
  [status.UNAUTHENTICATED]: 'unauthenticated',
  [status.PERMISSION_DENIED]: 'unauthenticated',
  [status.DEADLINE_EXCEEDED]: 'deadline_exceeded',
  [status.UNAVAILABLE]: 'instance_lost',
  // The transport's own: a stream or its whole session was reset.
  [status.INTERNAL]: 'session_broken',
  [status.ABORTED]: 'session_broken',
  // A message over the limit: no peer would take it.
  [status.RESOURCE_EXHAUSTED]: 'invalid_request',
  [status.INVALID_ARGUMENT]: 'invalid_request',
  [status.OUT_OF_RANGE]: 'invalid_request',
  [status.FAILED_PRECONDITION]: 'invalid_request',
  [status.NOT_FOUND]: 'not_found',
  [status.ALREADY_EXISTS]: 'cluster_mismatch',
  // Another version of this software.
  [status.UNIMPLEMENTED]: 'cluster_mismatch',
  [status.UNKNOWN]: 'internal',
  [status.DATA_LOSS]: 'transfer_failed',
};

/**
 * Returns a call's error as a Failure, with the code that the server named, else the code of its gRPC status. Without a named code,
 * only UNAVAILABLE means a lost peer. The message begins with the peer, which clients are not told.
 */
export function toFailure(error: unknown, peer: string): Failure {
  if (error instanceof Failure) return error;
  const { code, details, metadata } = error as Partial<StatusObject>;
  const named = String(metadata?.get(FAILURE_KEY)[0] ?? '');
  const known: Partial<Record<string, FailureCode>> = codeOf;
  const failure = isFailureCode(named) ? named : (known[String(code)] ?? 'internal');
  // grpc-js ends its message with a note that is empty most of the time, and says when: one cause is one text.
  const text = (details ?? messageOf(error))
    .replace(/ \(\d{4}-\d\d-\d\dT[\d:.]+Z\)/g, '')
    .replace(/\.? Resolution note: $/, '');
  const sent = metadata?.get(TOLD_KEY)[0];
  return peerFailure(peer, { code: failure, text, told: sent?.toString(), cause: error });
}
