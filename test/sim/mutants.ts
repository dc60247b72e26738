/**
 * Does the simulation bite? Each mutant is the build with one guard taken out of production code; a seed must find it.
 *
 *   node dist/test/sim/main.js --mutants [--seeds 1000]
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { projectPath } from '../support/project.ts';

interface Mutant {
  readonly name: string;
  /** In dist/. */
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

export const mutants: readonly Mutant[] = [
  {
    name: 'the digest is not compared on arrival (K2)',
    file: 'shared/kv/record.js',
    from: 'if (want && header.digest !== want.digest)',
    to: 'if (false)',
  },
  {
    name: 'the namespace is not compared on arrival (K2)',
    file: 'shared/kv/record.js',
    from: 'if (want && header.namespace !== want.namespace)',
    to: 'if (false)',
  },
  {
    name: 'checksums are not compared (K2)',
    file: 'shared/kv/record.js',
    from: 'return damaged < 0 ? undefined :',
    to: 'return damaged < 1e9 ? undefined :',
  },
  {
    name: 'a store calls durable what it has not committed (S1)',
    file: 'services/store/offer_intake.js',
    from: 'offered.filter((link) => this.#tiers.disk.has(link)).length',
    to: 'offered.filter((link) => !this.#tiers.lacks(link)).length',
  },
  {
    name: 'what is deleted from disk is not told to the index',
    file: 'services/store/disk_tier.js',
    from: 'this.#options.onRemoved(key);',
    to: '',
  },
  {
    name: 'a block may be freed while it is copied out (K1)',
    file: 'shared/engine/engine.js',
    from: `        const blocks = held.map(({ block }) => block);
        for (const block of blocks)
            this.pool.reference(block);`,
    to: '        const blocks = [];\n        held.blocks = held.map(({ block }) => block);',
  },
  {
    name: 'a removal is not told to the index',
    file: 'shared/instance/outbox.js',
    from: "announcer.removed('device', event.key);",
    to: '',
  },
  {
    name: 'a gap in block events is not seen',
    file: 'services/router/index_feed.js',
    from: 'if (batch.sequence === feed.sequence + 1)',
    to: 'if (batch.sequence > feed.sequence)',
  },
  {
    name: 'a token that comes twice counts twice (R1)',
    file: 'services/router/attempt.js',
    from: 'if (!reply.token || reply.token.position < this.#input.tokens.length + this.#numTokens)',
    to: 'if (!reply.token)',
  },
  {
    name: 'failover takes output for prompt',
    file: 'services/router/attempt.js',
    from: 'promptLength: generation.tokens.length',
    to: 'promptLength: this.#input.tokens.length',
  },
  {
    name: 'failover draws from another random stream',
    file: 'services/router/attempt.js',
    from: 'sampling: generation.sampling,',
    to: 'sampling: { ...generation.sampling, seed: generation.sampling.seed + this.#input.record.attempts.length - 1 },',
  },
  {
    name: 'failover forgets the last token',
    file: 'services/router/relay.js',
    from: 'tokens: [...tokens]',
    to: 'tokens: tokens.length > generation.tokens.length ? tokens.slice(0, -1) : [...tokens]',
  },
  {
    name: 'a preempted sequence keeps its place in the arrival window',
    file: 'services/decode/decode_service.js',
    from: "else if (event.kind === 'preempted')\n                this.#isAdmitted = false;",
    to: "else if (event.kind === 'preempted')\n                this.#isAdmitted = true;",
  },
  {
    name: 'a hit counts for one block more than it is',
    file: 'shared/engine/scheduler.js',
    from: 'head.numComputed = acquired.numHits * blockSize;',
    to: 'head.numComputed = Math.min(acquired.numHits + 1, head.hittableBlocks(blockSize)) * blockSize;',
  },
  {
    name: 'what was delivered before a preemption counts after it',
    file: 'shared/engine/scheduler.js',
    from: 'sequence.delivered.clear();',
    to: '',
  },
  {
    name: 'a sequence that is cancelled keeps its blocks (R2)',
    file: 'shared/engine/scheduler.js',
    from: 'remove(sequence) {\n        this.#releaseBlocks(sequence);',
    to: 'remove(sequence) {',
  },
  {
    name: 'failover forgets how long the output may be',
    file: 'services/router/attempt.js',
    from: 'maxLength: Math.min(generation.maxLength, chosen.decode.maxModelLen)',
    to: 'maxLength: Math.min(generation.maxLength + this.#input.record.attempts.length - 1, chosen.decode.maxModelLen)',
  },
  {
    name: 'failover forgets the stop tokens',
    file: 'services/router/attempt.js',
    from: 'stopTokenIds: generation.stopTokenIds,',
    to: 'stopTokenIds: this.#input.record.attempts.length > 1 ? [] : generation.stopTokenIds,',
  },
  {
    name: 'slots of records that were not used are not given back (R2)',
    file: 'shared/instance/block_fetcher.js',
    from: 'window.give(slot);\n            return fault',
    to: 'return fault',
  },
  {
    name: 'fetch streams are not ended with the fetch (R2)',
    file: 'shared/instance/block_fetcher.js',
    from: 'for (const stream of streams)\n                stream.cancel();',
    to: '',
  },
  {
    name: 'a cancel does not reach the engine (R2)',
    file: 'shared/instance/engine_instance.js',
    from: "this.#host.send({ kind: 'cancel', id });",
    to: '',
  },
  {
    name: 'a decode call goes on when its caller has left (R2)',
    file: 'services/decode/decode_service.js',
    from: 'this.#left = linkSignals(call.signal);',
    to: 'this.#left = linkSignals();',
  },
  {
    name: 'an arrived block is taken for the one after it',
    file: 'shared/instance/block_fetcher.js',
    from: "sendToEngine({ kind: 'deliver', id, blockIndex, slot });",
    to: "sendToEngine({ kind: 'deliver', id, blockIndex: blockIndex + 1, slot });",
  },
  {
    name: 'a block is named before its last token is computed (K1)',
    file: 'shared/engine/engine.js',
    from: 'const lastBlock = Math.floor((sequence.numComputed + count) / blockSize);',
    to: 'const lastBlock = Math.floor(Math.min(sequence.tokens.length, sequence.numComputed + count + 1) / blockSize);',
  },
  {
    name: 'the last block is hit too, and nothing is left to sample from',
    file: 'shared/engine/sequence.js',
    from: 'hittableBlocks(blockSize) {\n        return numPrefillBlocks(this.tokens.length, blockSize);',
    to: 'hittableBlocks(blockSize) {\n        return Math.floor(this.tokens.length / blockSize);',
  },
  {
    name: 'a lost instance is asked for ever',
    file: 'services/router/relay.js',
    from: 'excluded.failed(chosen.decode);',
    to: 'throw failure;',
  },
  {
    name: 'a snapshot leaves what it does not name',
    file: 'services/router/index_feed.js',
    from: 'this.#index.removeHolder(instance.id);\n                for',
    to: 'for',
  },
  {
    name: 'a busy instance counts as failed, and the request with it',
    file: 'services/router/relay.js',
    from: "if (failure.code === 'overloaded') {",
    to: "if (failure.code === 'never') {",
  },
];

export interface MutantResult {
  readonly name: string;
  /** The seed that found it, and the first thing it said. */
  readonly foundBy: number | undefined;
  readonly numSeeds: number;
  readonly what: string;
}

/** Runs seeds on the mutant until one fails. */
export async function hunt(mutant: Mutant, numSeeds: number): Promise<MutantResult> {
  const folder = mkdtempSync(join(tmpdir(), 'penstock-mutant-'));
  try {
    cpSync(projectPath('dist'), join(folder, 'dist'), { recursive: true });
    symlinkSync(projectPath('node_modules'), join(folder, 'node_modules'));
    writeFileSync(join(folder, 'package.json'), readFileSync(projectPath('package.json')));
    const path = join(folder, 'dist', mutant.file);
    const source = readFileSync(path, 'utf8');
    assert(source.split(mutant.from).length === 2, `${mutant.name}: ${mutant.file} has not exactly one ${mutant.from}`);
    writeFileSync(
      path,
      source.replace(mutant.from, () => mutant.to),
    );
    const args = [
      join(folder, 'dist/test/sim/main.js'),
      '--seeds',
      String(numSeeds),
      '--stop',
      '--json',
      join(folder, 'r'),
    ];
    const run = join(folder, 'r');
    const child = spawn(process.execPath, args, { stdio: 'ignore' });
    const [code] = (await once(child, 'exit')) as [number | null];
    if (!existsSync(run)) {
      const what = `the simulation ended with code ${code} and no report`;
      return { name: mutant.name, foundBy: undefined, numSeeds: 0, what };
    }
    const { seeds, failures } = JSON.parse(readFileSync(join(folder, 'r'), 'utf8')) as {
      seeds: number;
      failures: { seed: number; failures: string[] }[];
    };
    const [first] = failures;
    return { name: mutant.name, foundBy: first?.seed, numSeeds: seeds, what: first?.failures[0]?.split('\n')[0] ?? '' };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
