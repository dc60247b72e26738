/** Chromium for end-to-end tests. */
import { chromium, type Browser } from 'playwright-core';

/** Starts Chromium: the one of the variable CHROMIUM, or the system's. */
export function startBrowser(): Promise<Browser> {
  return chromium.launch({
    executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
}
