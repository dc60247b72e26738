/** Check of whether what processes of a cluster send each other can be read on the way. */
import { isLoopback } from '../../../shared/base/options.ts';
import { ok, warning, type Finding } from './finding.ts';

/** Most addresses that a finding names. */
const MAX_NAMED = 3;

/**
 * Judges the addresses at which members answered a call of this command, which was encrypted if it has a certificate (`hasTls`). Empty where none
 * answered.
 */
export function encryptionFindings(answered: readonly string[], hasTls: boolean): Finding[] {
  if (answered.length === 0) return [];
  const check = 'encryption';
  if (hasTls) return [ok(check, 'Calls and blocks of the processes are encrypted (TLS).')];
  const open = answered.filter((address) => !isLoopback(address));
  if (open.length === 0)
    return [ok(check, 'All processes are called over the loopback: nothing of them crosses a network.')];
  const named =
    open.slice(0, MAX_NAMED).join(', ') + (open.length > MAX_NAMED ? ` and ${open.length - MAX_NAMED} more` : '');
  return [
    warning(
      check,
      `Prompts, answers and blocks cross the network in clear: ${named} answer without TLS.`,
      'Give every process --tls-cert, --tls-key and --tls-ca, or let the network encrypt (WireGuard, a service mesh).',
    ),
  ];
}
