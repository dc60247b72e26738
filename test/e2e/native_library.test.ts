/**
 * Builds and machines whose native kernels cannot be used: a cluster answers with the WebAssembly kernels, and each engine names the reason in
 * its line of start. Not covered here: a CPU without an instruction set, which kernels/products tests. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { Cluster, cliPath, temporaryFolder } from '../support/cluster.ts';
import { halfOf } from '../support/long.ts';
import { setsHere, whyNone } from '../support/native_sets.ts';
import { projectPath } from '../support/project.ts';

const target = `${process.platform}-${process.arch}`;
const hasSet = setsHere.length > 0;
if (!hasSet) console.log(`native library: most is left out, ${whyNone}`);

const folders: ReturnType<typeof temporaryFolder>[] = [];
afterAll(() => {
  for (const folder of folders) folder.remove();
});

function folder(): string {
  const made = temporaryFolder();
  folders.push(made);
  return made.path;
}

/** Links what a test does not change. */
function link(to: string, ...names: string[]): void {
  for (const name of names) symlinkSync(projectPath(name), join(to, name));
}

/** Returns a folder with a copy of the build, whose library and packages tests change. */
function copyOfBuild(): string {
  const to = folder();
  cpSync(projectPath('dist'), join(to, 'dist'), { recursive: true });
  cpSync(projectPath('package.json'), join(to, 'package.json'));
  link(to, 'config');
  return to;
}

const commandOf = (root: string): string[] => [process.execPath, join(root, 'dist/services/cli/main.js')];

/** Starts a cluster of one engine by this command, asks it, and returns the line with which the engine has started. */
async function answers(...command: string[]): Promise<string> {
  const cluster = await Cluster.upBy(command, '--prefill', '0', '--decode', '1', '--store', '0');
  try {
    const { choices } = await cluster.completion({ prompt: 'The Heron', max_tokens: 8 });
    assert.equal(choices[0]?.token_ids.length, 8);
  } finally {
    await cluster.close();
  }
  assert.equal(cluster.errors.at(-1), 'ended');
  const lines = cluster.errors.filter((line) => line.includes('native'));
  assert.equal(lines.length, 1, lines.join('\n'));
  expect(lines[0]).toMatch(/^decode-1 started: .* products /);
  return lines[0]!;
}

/** Expects that products are computed in WebAssembly, for this reason. */
async function expectWithout(why: string, command: string[]): Promise<void> {
  const line = await answers(...command);
  expect(line).toMatch(/, products (relaxed|dot|plain) \(not /);
  expect(line).toContain(why);
}

test.runIf(target === 'linux-x64')('a build without a C compiler says one line, and its cluster answers', async () => {
  const to = folder();
  for (const name of ['kernels', 'shared', 'services', 'config', 'test'])
    cpSync(projectPath(name), join(to, name), {
      recursive: true,
      // The build reads the sources of tests, not their data.
      filter: (path) => name !== 'test' || statSync(path).isDirectory() || path.endsWith('.ts'),
    });
  for (const name of ['package.json', 'npm-shrinkwrap.json', 'tsconfig.json'])
    cpSync(projectPath(name), join(to, name));
  link(to, 'node_modules');
  const build = (): string =>
    execFileSync('npm', ['run', '--silent', 'build'], {
      cwd: to,
      encoding: 'utf8',
      env: { ...process.env, CC: '/nonexistent' },
    });
  const line =
    'no C compiler (/nonexistent): the build has no native kernels, and products are computed in WebAssembly\n';
  assert.equal(build(), line);
  assert.deepEqual(
    readdirSync(join(to, 'dist/kernels/native')).filter((name) => !name.endsWith('.js')),
    [],
  );
  await expectWithout(`the build has no native kernels for ${target}`, commandOf(to));
});

const builtFile = projectPath(`dist/kernels/native/${target}.so`);

describe.runIf(hasSet)('a package', () => {
  let root: string;
  let modules: string;
  beforeAll(() => {
    root = copyOfBuild();
    modules = join(root, 'node_modules');
  });
  beforeEach(() => {
    for (const ending of ['so', 'json'])
      cpSync(
        projectPath(`dist/kernels/native/${target}.${ending}`),
        join(root, `dist/kernels/native/${target}.${ending}`),
      );
    rmSync(modules, { recursive: true, force: true });
    link(root, 'node_modules');
  });

  /** Puts a library into the copy; with `isRecorded` as the one that was built. */
  function place(library: Buffer, isRecorded: boolean): void {
    writeFileSync(join(root, `dist/kernels/native/${target}.so`), library);
    const sha256 = createHash('sha256').update(library).digest('hex');
    if (isRecorded) writeFileSync(join(root, `dist/kernels/native/${target}.json`), JSON.stringify({ sha256 }));
  }

  /** Replaces the packages by links to all but those that koffi consists of. */
  function leaveOutKoffi(): void {
    rmSync(modules, { recursive: true });
    mkdirSync(modules);
    for (const name of readdirSync(projectPath('node_modules')))
      if (name !== 'koffi' && name !== '@koromix') link(root, join('node_modules', name));
  }

  const notBuilt = `${target}.so is not the library that was built`;
  const cannotOpen = 'the native kernels cannot be opened: ';
  const damages: [string, () => void, string][] = [
    [
      'whose library is for another architecture',
      () => {
        const library = readFileSync(builtFile);
        // The machine of an ELF header: arm64.
        library.writeUInt16LE(183, 18);
        place(library, true);
      },
      cannotOpen,
    ],
    [
      'whose koffi has no binary for the machine',
      () => {
        leaveOutKoffi();
        cpSync(projectPath('node_modules/koffi'), join(modules, 'koffi'), { recursive: true });
      },
      cannotOpen,
    ],
    [
      'whose library is one byte short',
      () => {
        place(readFileSync(builtFile).subarray(0, -1), false);
      },
      notBuilt,
    ],
    [
      'whose library is empty',
      () => {
        place(Buffer.alloc(0), false);
      },
      notBuilt,
    ],
    [
      'whose library is missing',
      () => {
        rmSync(join(root, `dist/kernels/native/${target}.so`));
      },
      `the build has no native kernels for ${target}`,
    ],
    ['without koffi', leaveOutKoffi, `${cannotOpen}Cannot find module 'koffi'`],
  ];
  test.each(halfOf(damages))('%s: the cluster answers', async (_, damage, why) => {
    damage();
    await expectWithout(why, commandOf(root));
  });

  test('whose library vanishes while a model loads: the load fails with the reason, and the process ends', async () => {
    const script = join(root, 'dist/test/support/vanishing_library.js');
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [script]);
    assert.equal(stderr, '');
    expect(stdout).toMatch(/^native:\w+ cannot be used in this thread, .*: the build has no native kernels for .*\n$/);
  });
});

describe.runIf(hasSet)('a machine', () => {
  const native = projectPath('dist/kernels/native');
  /** Runs a command where the library lies on a mount without exec. */
  const script = `mount --bind ${native} ${native} && mount -o remount,bind,noexec ${native} && exec "$@"`;
  const unshare = [
    ['unshare', '-m'],
    ['unshare', '-r', '-m'],
  ]
    .map((start) => [...start, 'sh', '-c', script, 'sh'])
    .find(([program, ...args]) => spawnSync(program!, [...args, 'true']).status === 0);

  test.runIf(unshare)('with a mount without exec: the cluster answers', async () => {
    await expectWithout('the native kernels cannot be opened: ', [...unshare!, process.execPath, cliPath]);
  });

  test('that refuses the tiles of AMX: the cluster answers, with other native kernels where it has them', async ({
    skip,
  }) => {
    const to = folder();
    const program = join(to, 'without_tiles');
    writeFileSync(`${program}.c`, WITHOUT_TILES);
    const compiled = spawnSync(process.env['CC'] ?? 'cc', [`${program}.c`, '-o', program], { encoding: 'utf8' });
    if (compiled.status !== 0) skip(`there is no C compiler for the filter: ${compiled.stderr}`);
    const tried = spawnSync(program, ['/bin/true'], { encoding: 'utf8' });
    if (tried.status !== 0) skip(`filters of system calls are refused here: ${tried.stderr}`);
    const line = await answers(program, process.execPath, cliPath);
    expect(line).toMatch(/native:amx: (this CPU has no AMX for bytes|the system refuses the tiles of AMX \(error 1\))/);
    expect(line).toMatch(/, products native:(avx2|vnni256|avx512) /);
  });
});

/** Runs a command under a filter that refuses arch_prctl, but for the one request with which every program starts. */
const WITHOUT_TILES = `
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
  enum { ARCH_SET_FS = 0x1002 };
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH_SET_FS, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
    perror("seccomp");
    return 1;
  }
  execv(argv[1], argv + 1);
  perror(argv[1]);
  return 1;
}
`;
