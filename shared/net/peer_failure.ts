/** Failures of peers, as this process names them: what people who run the cluster read, and what clients are told. */
import { Failure, type FailureCode } from '../base/failure.ts';

const LOST = 'the connection to an instance was lost: try again';
const MISMATCH = 'the processes of the cluster do not fit one another: whoever runs it finds the reason in their logs';
const FAILED = 'an instance failed: whoever runs the cluster finds the reason in /api/requests';

/**
 * Texts for clients of failures between processes, whose messages are about connections and other processes. Failures of other codes are
 * about the request: clients read them in the words of the server that named them.
 */
const toldOfCode: Partial<Record<FailureCode, string>> = {
  internal: FAILED,
  instance_lost: LOST,
  session_broken: LOST,
  cancelled: LOST,
  transfer_failed: 'the transfer of a KV cache between instances failed: try again',
  deadline_exceeded: 'an instance did not answer in time: try again later',
  unauthenticated: MISMATCH,
  cluster_mismatch: MISMATCH,
  not_found: FAILED,
};

/** A failure as a peer, or the transport, names it. */
interface PeerError {
  readonly code: FailureCode;
  readonly text: string;
  /** Text for clients; undefined: the text itself. */
  readonly told?: string | undefined;
  readonly cause?: unknown;
}

/** Returns a failure at `peer`. Its message begins with the peer, which clients are not told. */
export function peerFailure(peer: string, { code, text, told, cause }: PeerError): Failure {
  return new Failure(code, `${peer}: ${text}`, { cause, told: toldOfCode[code] ?? told ?? text });
}
