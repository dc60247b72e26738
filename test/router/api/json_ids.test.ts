/** Long lists of ids read from the bytes: what comes out is what JSON.parse says, whatever the body. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Random } from '../../../shared/base/random.ts';
import { parseWithIds, scan } from '../../../services/router/api/json_ids.ts';

const keys = new Set(['prompt', 'tokens']);

function parsed(text: string): { value: unknown; numLists: number } {
  const bytes = Buffer.from(text);
  const { isTooDeep, found } = scan(bytes, 64);
  assert(!isTooDeep);
  return { value: parseWithIds(bytes, found, keys), numLists: found.length };
}

/** Typed arrays as lists. */
function plain(value: unknown): unknown {
  if (value instanceof Uint32Array) return Array.from(value);
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, its]) => [key, plain(its)]));
}

const ids = Array.from({ length: 200 }, (_, i) => (i * 7_919) % 128_000);

test('a long prompt becomes a typed array, several do, and what is next to them is what it was', () => {
  const one = parsed(JSON.stringify({ model: 'm', prompt: ids, stop: ['[1, 2'], max_tokens: 3 }));
  assert((one.value as { prompt: unknown }).prompt instanceof Uint32Array);
  assert.deepEqual(plain(one.value), { model: 'm', prompt: ids, stop: ['[1, 2'], max_tokens: 3 });
  const several = parsed(JSON.stringify({ prompt: ['text', ids, [1, 2], ids] })).value as { prompt: unknown[] };
  assert.deepEqual(
    several.prompt.map((item) => item instanceof Uint32Array),
    [false, true, false, true],
  );
  assert.deepEqual(plain(several), { prompt: ['text', ids, [1, 2], ids] });
  const elsewhere = parsed(JSON.stringify({ stop_token_ids: ids, prompt: 'x' })).value;
  assert.deepEqual(elsewhere, { stop_token_ids: ids, prompt: 'x' }, 'a list where nobody takes a typed array');
});

test('what only looks like a list of ids is left to JSON', () => {
  const almost = ids.join(', ');
  for (const tail of ['-1', '1.5', '1e3', '"x"', 'null', '1234567890', '[1]', '{}'])
    assert.equal(parsed(`{"prompt": [${almost}, ${tail}]}`).numLists, 0, tail);
  for (const broken of [`[${almost}, 007]`, `[${almost},]`, `[${almost}`, `[${almost} 5]`, `[,${almost}]`])
    assert.throws(() => parsed(`{"prompt": ${broken}}`), SyntaxError, broken);
  assert.equal(parsed(`{"prompt": [${almost}, 999999999]}`).numLists, 1);
  assert.equal(parsed(`{"prompt": [\n ${ids.join(' ,\t')}\r\n]}`).numLists, 1);
  assert.equal(parsed('{"prompt": [1, 2, 3]}').numLists, 0, 'short');
});

test('marks that a client writes, lists in deep places, keys that come twice: as JSON has them', () => {
  const list = JSON.stringify(ids);
  const bodies = [
    `{"prompt": ${list}, "user": "@ids0"}`,
    `{"prompt": ${list}, "user": "@ids0 @@ids0 @@@ids0 @@@@ids0 @@@@@ids0 @@@@@@ids0 @@@@@@@ids0 @@@@@@@@ids0"}`,
    `{"prompt": ["@ids0", ${list}]}`,
    `{"a": {"b": ${list}}, "prompt": ${list}}`,
    `{"prompt": [[${list}]]}`,
    `{"prompt": "\\u0040ids0", "x": {"y": ${list}}}`,
    `{"prompt": ${list}, "prompt": [7]}`,
    `{"prompt": [7], "prompt": ${list}}`,
    `{"__proto__": ${list}, "prompt": ${list}}`,
    `[${list}, ${list}]`,
    list,
  ];
  for (const body of bodies) assert.deepEqual(plain(parsed(body).value), JSON.parse(body), body.slice(0, 60));
});

test('ten thousand bodies with a byte changed, taken out or doubled: the same value, or the same refusal', () => {
  const random = new Random(4);
  const base = JSON.stringify({
    prompt: [ids.slice(0, 80), 'a "quoted\\" [text]', ids.slice(0, 70)],
    n: [1, [2]],
    x: { y: ids },
  });
  const outcome = (run: () => unknown): unknown => {
    try {
      return plain(run());
    } catch {
      return 'refused';
    }
  };
  let numRefused = 0;
  for (let i = 0; i < 10_000; i++) {
    const bytes = [...Buffer.from(base)];
    const at = random.below(bytes.length);
    const byte = Buffer.from(random.pick(['[', ']', ',', '"', '0', '9', '-', ' ', '{', '}', '.', '@']))[0] ?? 0;
    bytes.splice(at, random.below(2), ...(random.chance(1, 3) ? [] : [byte]));
    const text = Buffer.from(bytes);
    const want = outcome(() => JSON.parse(text.toString('utf8')));
    const { isTooDeep, found } = scan(text, 64);
    assert(!isTooDeep);
    assert.deepEqual(
      outcome(() => parseWithIds(text, found, keys)),
      want,
    );
    if (want === 'refused') numRefused++;
  }
  assert(numRefused > 1_000 && numRefused < 9_000, String(numRefused));
});

test('depth counts as ever', () => {
  assert(scan(Buffer.from('['.repeat(65)), 64).isTooDeep);
  assert(!scan(Buffer.from('['.repeat(64)), 64).isTooDeep);
  assert(scan(Buffer.from(`${'['.repeat(64)}${JSON.stringify(ids)}`), 64).isTooDeep);
});
