/** Identifies the current boot of this machine. */
import { readFileSync } from 'node:fs';
import { uptime } from 'node:os';
import { systemClock } from './clock.ts';

/** Returns a text that changes when the machine reboots: the kernel's boot id on Linux, elsewhere the minute of the start. */
export function bootId(): string {
  try {
    return readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  } catch {
    // Elsewhere: the minute the machine started, which a reboot changes.
    return `boot-${Math.round((systemClock.wallMs() / 1000 - uptime()) / 60)}`;
  }
}
