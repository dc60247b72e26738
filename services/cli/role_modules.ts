/**
 * Modules of the other services, loaded when a command needs them. A command is what puts a process together, so this file alone imports
 * other services; it does so with `import()`, so that a process loads its own role and no other.
 */
import type { OptionTable } from '../../shared/base/options.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { StartRole } from '../../shared/node/role.ts';
import type { Role } from '../../shared/protocol/membership.ts';
import type * as Replay from '../replay/main.ts';

const optionModules: Readonly<Record<Role, () => Promise<{ readonly options: OptionTable }>>> = {
  router: () => import('../router/options.ts'),
  prefill: () => import('../prefill/options.ts'),
  decode: () => import('../decode/options.ts'),
  store: () => import('../store/options.ts'),
};

const startModules = {
  router: () => import('../router/main.ts'),
  prefill: () => import('../prefill/main.ts'),
  decode: () => import('../decode/main.ts'),
  store: () => import('../store/main.ts'),
};

/** Loads the option table of a role. */
export async function loadOptions(role: Role): Promise<OptionTable> {
  return (await optionModules[role]()).options;
}

/** Loads the function that starts a role, whose configuration is read by the role's own option table. */
export async function loadStart(role: Role): Promise<StartRole<ProcessConfig>> {
  return (await startModules[role]()).start as StartRole<ProcessConfig>;
}

/** Module of `penstock replay` and `penstock plan`. */
type ReplayCommands = Pick<typeof Replay, 'plan' | 'replay'>;

/** Loads the commands `penstock replay` and `penstock plan`. */
export function loadReplay(): Promise<ReplayCommands> {
  return import('../replay/main.ts');
}
