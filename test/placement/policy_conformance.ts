/**
 * The conformance suite of placement policies: what every policy keeps, over random clusters and questions from a seed. How well a
 * policy places is not covered; the tests of each policy show its formula.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { matchesOf } from '../../shared/placement/fetch_plan.ts';
import { matchOf } from '../../shared/placement/placement.ts';
import type {
  ClusterSnapshot,
  Decision,
  InstanceSnapshot,
  Placement,
  Policy,
  Question,
} from '../../shared/placement/policy.ts';
import { Random } from '../../shared/base/random.ts';
import type { Source } from '../../shared/protocol/messages.ts';
import { cluster, instance, question, randomCluster, randomQuestion, workOf } from './snapshots.ts';

const SEED = 20_261;
const NUM_CASES = 400;

/** Defines the tests of one policy; `create` returns a new one that has decided nothing. */
export function conformanceSuite(name: string, create: () => Policy): void {
  describe(name, () => {
    for (const isKnown of [true, false]) {
      test(`places on instances that can take the request, by sources that are held, ${isKnown ? 'with' : 'without all'} coefficients`, () => {
        forCases(isKnown, (asked, snapshot) => {
          check(asked, snapshot, create());
        });
      });
    }

    test('places embeddings on one instance', () => {
      forCases(true, (asked, snapshot) => {
        const embedding = { ...asked, isEmbedding: true, maxLength: asked.numTokens, numericsClass: undefined };
        check(embedding, snapshot, create());
      });
    });

    test('keeps a decode instance that has begun, whatever became of it', () => {
      forCases(true, (asked, snapshot, random) => {
        const [first] = snapshot.decode;
        if (!first) return;
        const begun = { ...asked, decode: { id: first.id, from: random.below(asked.numBlocks + 1) } };
        const decision = create().decide(begun, snapshot);
        assert(decision.kind === 'place');
        assert.equal(decision.placement.decode, first.id);
        checkSources(decision.placement, begun, snapshot);
      });
    });

    test('decides the same again, whatever it decided before, and from the snapshot as JSON', () => {
      const used = create();
      forCases(true, (asked, snapshot) => {
        const decision = create().decide(asked, snapshot);
        assert.deepEqual(used.decide(asked, snapshot), decision);
        const read = JSON.parse(JSON.stringify(snapshot)) as ClusterSnapshot;
        assert.deepEqual(create().decide(asked, read), decision);
      });
    });

    test('waits or rejects where no instance may generate', () => {
      const prefill = [instance('p1', { work: workOf(), isPlaceable: !create().usesAnyRole })];
      const decide = (more: Partial<ClusterSnapshot>): string =>
        create().decide(question, cluster({}, { decode: [], prefill, ...more })).kind;
      assert.equal(decide({ withoutDecodeMs: 59_000 }), 'wait');
      assert.equal(decide({ withoutDecodeMs: undefined, ageMs: 6_000 }), 'reject');
      const avoided = { decode: [instance('d1', { isAvoided: true, work: workOf() })] };
      assert.equal(decide({ ...avoided, withoutDecodeMs: 0 }), 'wait');
    });

    test('places on one decode instance without prefill instances, and on one of each', () => {
      const known = { work: workOf() };
      const alone = { decode: [instance('d1', known)], prefill: [instance('p1', { ...known, isAvoided: true })] };
      const aggregated = placed(create().decide(question, cluster({}, alone)));
      assert.deepEqual([aggregated.decode, aggregated.prefill], ['d1/e', undefined]);
      assert.equal(aggregated.maxSelfCompute, 42, 'it may compute the whole prompt');
      const pair = { decode: [instance('d1', known)], prefill: [instance('p1', known)] };
      const split = check(question, cluster({}, pair), create());
      if (!create().usesAnyRole) assert.equal(placed(split).decode, 'd1/e');
    });

    test('generates on a prefill instance where the decode instances cannot, if it uses any role', () => {
      const known = { work: workOf() };
      const decode = [instance('d1', { ...known, isPlaceable: false })];
      const decision = create().decide(question, cluster({}, { decode, prefill: [instance('p1', known)] }));
      if (create().usesAnyRole) assert.equal(placed(decision).decode, 'p1/e');
      else assert.equal(decision.kind, 'wait');
    });

    test('generates neither on a prefill instance of another numerics class, nor goes on in another one while its own has room', () => {
      const [known, other] = [{ work: workOf() }, { work: workOf(), numericsClass: 'other' }];
      const decode = [instance('d1', { ...known, isPlaceable: false })];
      const prefill = [instance('p1', { ...other, mayGenerate: false })];
      assert.equal(create().decide(question, cluster({}, { decode, prefill })).kind, 'wait');
      const busy = { ...known, queueLength: 9, isAvoided: true };
      const mixed = cluster({ d2: 9 }, { decode: [instance('d1', busy), instance('d2', other)], prefill });
      const generated = { ...question, numericsClass: 'n' };
      assert.equal(create().decide(generated, mixed).kind, 'wait');
      assert.equal(placed(create().decide({ ...generated, retryAvoided: true }, mixed)).decode, 'd1/e');
      assert.equal(placed(create().decide({ ...generated, numericsClass: 'gone' }, mixed)).decode, 'd2/e');
    });
  });
}

/** Calls `use` with random questions and clusters. A failed case is named by its number. */
function forCases(isKnown: boolean, use: (asked: Question, snapshot: ClusterSnapshot, random: Random) => void): void {
  const random = new Random(SEED);
  for (let number = 0; number < NUM_CASES; number++) {
    const asked = randomQuestion(random);
    const snapshot = randomCluster(random, asked.numBlocks, isKnown);
    try {
      use(asked, snapshot, random);
    } catch (cause) {
      throw new Error(`case ${number} of seed ${SEED}: ${JSON.stringify({ asked, snapshot })}`, { cause });
    }
  }
}

function placed(decision: Decision): Placement {
  assert.equal(decision.kind, 'place');
  return decision.placement;
}

/** Decides on a first placement, checks it and returns it. */
function check(asked: Question, snapshot: ClusterSnapshot, subject: Policy): Decision {
  const decision = subject.decide(asked, snapshot);
  const canPrefill = (one: InstanceSnapshot): boolean =>
    one.isPlaceable && one.maxModelLen > asked.numTokens && (!one.isAvoided || asked.retryAvoided);
  const everyone = [...snapshot.decode, ...snapshot.prefill];
  const generating = subject.usesAnyRole ? everyone.filter(({ mayGenerate }) => mayGenerate) : snapshot.decode;
  const pool = asked.isEmbedding ? everyone : generating;
  const hasRoom = pool.filter(({ isPlaceable, maxModelLen }) => isPlaceable && maxModelLen >= asked.maxLength);
  const equals = hasRoom.filter(({ numericsClass }) => numericsClass === asked.numericsClass);
  const able = equals.length > 0 ? equals : hasRoom;
  const canRun = (one: InstanceSnapshot): boolean => able.includes(one) && (!one.isAvoided || asked.retryAvoided);
  if (decision.kind !== 'place') {
    assert(!pool.some(canRun), `an instance can run it, but: ${decision.kind}`);
    return decision;
  }
  const { placement, policy, alternatives } = decision;
  assert(policy, 'the decision names its policy');
  const runner = pool.find(({ id }) => id === placement.decode);
  const embeds = asked.isEmbedding && runner && snapshot.prefill.includes(runner) && canPrefill(runner);
  assert(runner && (canRun(runner) || embeds), `${placement.decode} cannot run it`);
  const prefill = (subject.usesAnyRole ? everyone : snapshot.prefill).find(({ id }) => id === placement.prefill);
  assert.notEqual(placement.prefill, placement.decode, 'one instance needs no handover');
  if (placement.prefill !== undefined) assert(prefill && canPrefill(prefill), `${placement.prefill} cannot prefill it`);
  assert(
    alternatives.every((one) => one.decode !== placement.decode || one.prefill !== placement.prefill),
    'what was chosen is no alternative',
  );
  assert(placement.reason.length > 0);
  checkSources(placement, asked, snapshot);
  return decision;
}

/** Checks that sources are consecutive, refer to holders of their ranges, and leave what may be computed. */
function checkSources(placement: Placement, asked: Question, snapshot: ClusterSnapshot): void {
  const { decodeSources, prefillSources, heldTokens, maxSelfCompute } = placement;
  const matches = matchesOf(snapshot.ranges);
  const prefill = [...snapshot.decode, ...snapshot.prefill].find(({ id }) => id === placement.prefill);
  const match = matchOf(placement.decode, asked, matches);
  const end = checkRun(decodeSources, match, snapshot, prefill?.address);
  if (prefill) {
    assert.equal(decodeSources.at(-1)?.isComputing, true, 'the decode instance waits for the prefill instance');
    assert.equal(end, asked.numBlocks, 'a prefill instance delivers all full blocks');
    const ready = checkRun(prefillSources, matches.get(prefill.id) ?? 0, snapshot, undefined);
    assert(ready < asked.numBlocks, 'a prefill instance has a full block to compute');
  } else {
    assert.deepEqual(prefillSources, []);
  }
  assert(end <= asked.numBlocks);
  assert(maxSelfCompute >= asked.numTokens - end * snapshot.blockSize, 'what no source delivers may be computed');
  assert(heldTokens % snapshot.blockSize === 0 && heldTokens <= asked.numBlocks * snapshot.blockSize);
}

/** Checks one list of sources, which begins at block `from`; returns the block after it. */
function checkRun(
  sources: readonly Source[],
  from: number,
  { ranges }: ClusterSnapshot,
  computing: string | undefined,
): number {
  let next = from;
  for (const [i, { address, start, end, isComputing }] of sources.entries()) {
    assert.equal(start, next, 'sources are consecutive');
    assert(end > start);
    next = end;
    if (isComputing) {
      assert.equal(address, computing, 'only the prefill instance computes');
      assert.equal(i, sources.length - 1, 'and its source is the last');
      continue;
    }
    for (let block = start; block < end; block++) {
      const range = ranges.find((one) => one.start <= block && block < one.end);
      assert(
        range?.holders.some((holder) => holder.address === address),
        `${address} does not hold block ${block}`,
      );
    }
  }
  return next;
}
