/**
 * Cards that are not there. A preload that plays a render node lets Mesa's NVK open an NVIDIA card, a Vulkan loader in front of the real one
 * lets RADV (before Mesa 26) open an AMD card: both compile to machine code and record commands, and nothing runs.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { shaderFolder } from '../support/downloads.ts';
import { projectPath } from '../support/project.ts';

export interface Card {
  readonly name: 'RDNA 3' | 'Ada';
  /** Part of the adapter's name. */
  readonly adapter: string;
  readonly execPath: string;
  readonly env: Readonly<Record<string, string>>;
}

const RADV = '/usr/share/vulkan/icd.d/radeon_icd.json';
const sources = projectPath('test/gpu/cards');
const built = projectPath('node_modules/.cache/cards');

function compiled(source: string, target: string): string {
  const path = `${built}/${target}`;
  mkdirSync(path.slice(0, path.lastIndexOf('/')), { recursive: true });
  execFileSync('cc', ['-shared', '-fPIC', '-O1', '-o', path, `${sources}/${source}`, '-ldl'], { stdio: 'inherit' });
  return path;
}

/** The version of the machine's own Mesa. */
function mesaVersion(): number {
  const { stdout } = spawnSync('dpkg-query', ['-W', '-f', '${Version}', 'mesa-vulkan-drivers'], { encoding: 'utf8' });
  return Number.parseInt(stdout, 10);
}

interface Drivers {
  readonly hasMesa26: () => boolean;
  readonly mesa26: (driver: string) => { readonly execPath: string; readonly env: Readonly<Record<string, string>> };
}

/** Opens the cards that this machine can emulate; `why` names what the others lack. */
export async function openCards(): Promise<{ readonly cards: readonly Card[]; readonly why: readonly string[] }> {
  const { hasMesa26, mesa26 } = (await import(projectPath('config/gpu_drivers.js'))) as Drivers;
  const root = hasMesa26() ? mesa26('nouveau') : undefined;
  if (spawnSync('cc', ['--version']).status !== 0) return { cards: [], why: ['there is no C compiler (cc)'] };
  const cards: Card[] = [];
  const why: string[] = [];
  if (existsSync(RADV) && mesaVersion() < 26) {
    const loader = compiled('amd_card.c', 'amd/libvulkan.so.1');
    cards.push({
      name: 'RDNA 3',
      adapter: 'NAVI31',
      execPath: process.execPath,
      env: {
        LD_LIBRARY_PATH: loader.slice(0, loader.lastIndexOf('/')),
        VK_DRIVER_FILES: RADV,
        RADV_FORCE_FAMILY: 'navi31',
        SKIP_CMDS: '1',
        MESA_SHADER_CACHE_DIR: shaderFolder('amd'),
      },
    });
  } else why.push('RDNA 3: the machine’s own Mesa has no RADV before version 26');
  if (root) {
    cards.push({
      name: 'Ada',
      adapter: 'RTX 4090',
      execPath: root.execPath,
      env: {
        ...root.env,
        LD_PRELOAD: compiled('nvidia_card.c', 'nvidia_card.so'),
        NVK_I_WANT_A_BROKEN_VULKAN_DRIVER: '1',
        MESA_SHADER_CACHE_DIR: shaderFolder('nvidia'),
      },
    });
  } else why.push('Ada: Mesa 26 is not unpacked');
  return { cards, why };
}
