/**
 * Other drivers than this machine's own, for the suites of the webgpu device; nothing is installed.
 *
 *   Mesa 26.1 and later   Debian's next release has it: its packages and all that they need, unpacked, with a copy of `node` that is
 *                         started by their loader. Software subgroup matrices, NVIDIA's compiler.
 *   SwiftShader, and the validation layer, lie in Debian's Chromium.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { fileURLToPath } from 'node:url';
import { mirror } from './debian.js';
import { mesaFolder, shaderFolder, stagingFolder } from './downloads.js';

const cache = fileURLToPath(new URL('../node_modules/.cache', import.meta.url));
const RELEASE = 'trixie';
const PACKAGES = ['mesa-vulkan-drivers', 'libvulkan1', 'patchelf'];
const CHROMIUM = '/usr/lib/chromium';
/** Holds these packages and nothing else. */
const folder = mesaFolder(
  createHash('sha256')
    .update([RELEASE, ...PACKAGES, process.arch].join())
    .digest('hex')
    .slice(0, 12),
);

function output(command, ...args) {
  return execFileSync(command, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim();
}

/** Debian on a processor that its packages and Node's binaries are for. */
function isDebian() {
  return process.platform === 'linux' && existsSync('/etc/debian_version') && existsSync('/usr/bin/apt-get');
}

function libraries() {
  const machine = { x64: 'x86_64', arm64: 'aarch64' }[process.arch];
  return `${folder}/tree/usr/lib/${machine}-linux-gnu`;
}

function loaderName() {
  return { x64: 'ld-linux-x86-64.so.2', arm64: 'ld-linux-aarch64.so.1' }[process.arch];
}

/** The copy of this Node that Mesa 26's loader starts. */
function nodeCopy() {
  const name = createHash('sha256')
    .update(`${process.version} ${realpathSync(process.execPath)}`)
    .digest('hex');
  return `${folder}/node-${name.slice(0, 12)}`;
}

/** Whether Mesa 26 is unpacked for this Node. */
export function hasMesa26() {
  return existsSync(`${folder}/tree`) && existsSync(nodeCopy());
}

/**
 * Downloads and unpacks it; 61 MB once.
 * @returns why not, in words, where this is no Debian, or nothing may be written; undefined when it is there
 * @throws Error when Debian's archive does not have it
 */
export function unpackMesa26() {
  if (hasMesa26()) return undefined;
  if (!isDebian() || !loaderName()) return 'Mesa 26 is unpacked from Debian’s packages, and this is no Debian';
  try {
    if (!existsSync(`${folder}/tree`)) unpackPackages();
    copyNode();
  } catch (error) {
    if (error.code !== 'EROFS' && error.code !== 'EACCES') throw error;
    return `Mesa 26 cannot be kept: ${error.message}`;
  }
  return undefined;
}

function copyNode() {
  const loader = `${libraries()}/${loaderName()}`;
  const node = `${folder}/node-${process.pid}.part`;
  copyFileSync(realpathSync(process.execPath), node);
  chmodSync(node, 0o755);
  const patchelf = `${folder}/tree/usr/bin/patchelf`;
  output(loader, '--library-path', libraries(), patchelf, '--set-interpreter', loader, node);
  renameSync(node, nodeCopy());
}

/** Unpacks the packages into `tree`, which is whole when it is there. */
function unpackPackages() {
  const staged = stagingFolder();
  try {
    download(staged);
    mkdirSync(folder, { recursive: true });
    renameSync(`${staged}/tree`, `${folder}/tree`);
  } catch (error) {
    // Another clone may have been first.
    if (!existsSync(`${folder}/tree`)) throw error;
  } finally {
    rmSync(staged, { recursive: true, force: true });
  }
}

function download(staged) {
  const apt = `${staged}/apt`;
  for (const name of ['lists/partial', 'archives/partial', 'state', 'cache', 'empty'])
    mkdirSync(`${apt}/${name}`, { recursive: true });
  const codename = /^VERSION_CODENAME=(\S+)$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1];
  const { uri, options } = mirror(codename) ?? { uri: 'http://deb.debian.org/debian', options: '' };
  const lines = [RELEASE, `${RELEASE}-backports`].map((suite) => `deb ${options} ${uri} ${suite} main\n`);
  writeFileSync(`${apt}/sources.list`, lines.join(''));
  writeFileSync(`${apt}/status`, '');
  const conf = {
    'Dir::Etc::SourceList': `${apt}/sources.list`,
    'Dir::Etc::SourceParts': `${apt}/empty`,
    'Dir::State': `${apt}/state`,
    'Dir::State::Lists': `${apt}/lists`,
    'Dir::State::status': `${apt}/status`,
    'Dir::Cache': `${apt}/cache`,
    'Dir::Cache::Archives': `${apt}/archives`,
    'APT::Install-Recommends': 'false',
    'APT::Sandbox::User': '',
    'Debug::NoLocking': 'true',
  };
  const given = Object.entries(conf).flatMap(([name, value]) => ['-o', `${name}=${value}`]);
  console.log(`unpacking ${PACKAGES.join(', ')} of ${RELEASE}-backports next to this machine's own`);
  output('apt-get', ...given, 'update', '-qq');
  output('apt-get', ...given, 'install', '-qq', '-y', '-d', '-t', `${RELEASE}-backports`, ...PACKAGES);
  for (const name of readdirSync(`${apt}/archives`)) {
    if (name.endsWith('.deb')) output('dpkg-deb', '-x', `${apt}/archives/${name}`, `${staged}/tree`);
  }
}

/** The Node that is started by Mesa 26's loader, and what is in its environment; `driver` names a file of its drivers. */
export function mesa26(driver = 'lvp') {
  return {
    execPath: nodeCopy(),
    env: {
      LD_LIBRARY_PATH: libraries(),
      VK_DRIVER_FILES: `${folder}/tree/usr/share/vulkan/icd.d/${driver}_icd.json`,
      MESA_SHADER_CACHE_DIR: shaderFolder(`mesa26-${driver}`),
    },
  };
}

/** SwiftShader's environment; undefined where there is no Debian Chromium. */
export function swiftShader() {
  const driver = `${CHROMIUM}/vk_swiftshader_icd.json`;
  return existsSync(driver) ? { VK_DRIVER_FILES: driver } : undefined;
}

/** The environment in which the validation layer looks at every command and shader, and writes what it finds into `log`. */
export function validationLayer(log) {
  const library = `${CHROMIUM}/libVkLayer_khronos_validation.so`;
  if (!existsSync(library)) return undefined;
  const layers = `${cache}/validation`;
  mkdirSync(layers, { recursive: true });
  const layer = {
    name: 'VK_LAYER_KHRONOS_validation',
    type: 'GLOBAL',
    library_path: library,
    api_version: '1.4.300',
    implementation_version: '1',
    description: 'Khronos validation layer',
  };
  writeFileSync(`${layers}/layer.json`, JSON.stringify({ file_format_version: '1.2.0', layer }));
  return {
    VK_LAYER_PATH: layers,
    VK_INSTANCE_LAYERS: layer.name,
    VK_KHRONOS_VALIDATION_GPUAV_ENABLE: '1',
    VK_KHRONOS_VALIDATION_DEBUG_ACTION: 'VK_DBG_LAYER_ACTION_LOG_MSG',
    VK_KHRONOS_VALIDATION_LOG_FILENAME: log,
  };
}
