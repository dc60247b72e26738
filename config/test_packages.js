/**
 * Installs what the tests need besides npm packages: a software Vulkan driver new enough for Dawn, and Chromium. On Debian as
 * root it installs them; elsewhere it says which are missing.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';

/** Dawn refuses older ones. */
const MIN_MESA = 25;

function run(command, ...args) {
  execFileSync(command, args, {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
  });
}

function output(command, ...args) {
  try {
    return execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  } catch {
    return '';
  }
}

function hasMesa() {
  return Number.parseInt(output('dpkg-query', '-W', '-f', '${Version}', 'mesa-vulkan-drivers'), 10) >= MIN_MESA;
}

function hasChromium() {
  return existsSync('/usr/bin/chromium') || existsSync(process.env.CHROMIUM ?? '');
}

const missing = () => [
  ...(hasMesa() ? [] : [`mesa-vulkan-drivers ${MIN_MESA} or later (the software Vulkan driver)`]),
  ...(hasChromium() ? [] : ['chromium (or its path in CHROMIUM)']),
];

if (missing().length > 0 && process.getuid?.() === 0 && output('apt-get', '--version') !== '') {
  console.log(`installing: ${missing().join(', ')}`);
  const codename = /^VERSION_CODENAME=(\S+)$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1];
  if (!hasMesa() && codename === 'bookworm') {
    // Debian 12 has 22.3; its backports have a newer one.
    writeFileSync(
      '/etc/apt/sources.list.d/penstock-backports.list',
      'deb http://deb.debian.org/debian bookworm-backports main\n',
    );
  }
  run('apt-get', 'update', '-qq');
  if (!hasMesa()) {
    const release = codename === 'bookworm' ? ['-t', 'bookworm-backports'] : [];
    run('apt-get', 'install', '-y', '-qq', '--no-install-recommends', ...release, 'mesa-vulkan-drivers', 'libvulkan1');
  }
  if (!hasChromium()) run('apt-get', 'install', '-y', '-qq', '--no-install-recommends', 'chromium');
}

if (missing().length > 0) {
  console.error(
    `the tests need packages that are missing: ${missing().join('; ')}\ninstall them, or run the tests as root on Debian`,
  );
  process.exit(1);
}
