/** Certificates as messages tell of them. */
import type { X509Certificate } from 'node:crypto';

/** Returns a certificate as people know it: its subject, who signed it, and its time. */
export function described({ subject, issuer, validFrom, validTo }: X509Certificate): string {
  const name = (text: string): string => text.trim().split('\n').join(', ') || 'no name';
  return `${name(subject)} (signed by ${name(issuer)}, valid from ${validFrom} to ${validTo})`;
}

/** Returns how the time of a certificate is wrong; undefined where it is valid now. `nowMs`: milliseconds since 1970. */
export function untimely(certificate: X509Certificate, nowMs: number): string | undefined {
  if (Date.parse(certificate.validTo) < nowMs) return 'has expired';
  return Date.parse(certificate.validFrom) > nowMs
    ? 'is not valid yet (or the clock of this machine is wrong)'
    : undefined;
}
