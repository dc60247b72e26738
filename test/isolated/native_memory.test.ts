/** Memory that others can map, through the system of the machine that tests run on: Linux, with koffi's binary. Not covered: other systems. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { openSync } from 'node:fs';
import { join } from 'node:path';
import { describe, onTestFinished, test } from 'vitest';
import { mapPublished, plainBytes, publish } from '../../shared/base/native_memory.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { projectPath } from '../support/project.ts';

describe('views of shared memory', () => {
  test('both see what either writes', () => {
    const shared = new Uint8Array(new SharedArrayBuffer(1_000));
    const bytes = plainBytes(shared.buffer);
    const plain = bytes(0, 1_000);
    assert(plain.buffer instanceof ArrayBuffer);
    assert.throws(() => bytes(999, 2), RangeError);
    plain[999] = 3;
    shared[0] = 4;
    assert.deepEqual([shared[999], plain[0], plain.length], [3, 4, 1_000]);
  });
});

describe('memory that others can map', () => {
  const own = new Uint8Array(new SharedArrayBuffer(1 << 20));
  own.fill(9);
  const { name, start, end } = publish(own.buffer)!;

  test('it covers the whole pages of the buffer, and is empty at first', () => {
    assert(start < 4_096 && end > own.length - 4_096 && (end - start) % 4_096 === 0);
    assert.equal(own[start], 0);
    assert.equal(own[end - 1], 0);
    if (start > 0) assert.equal(own[0], 9, 'what lies before is as it was');
  });

  test('what is written into the buffer is read there, at once, and by another process', () => {
    const mapped = mapPublished(name)!;
    const far = mapped.bytes(0, mapped.numBytes);
    own[start + 5] = 77;
    own[end - 1] = 78;
    assert.deepEqual([far.length, far[5], far.at(-1)], [end - start, 77, 78]);
    mapped.close();
    const program = `
      const { mapPublished } = await import(${JSON.stringify(projectPath('dist/shared/base/native_memory.js'))});
      const mapped = mapPublished(${JSON.stringify(name)});
      const far = mapped.bytes(0, mapped.numBytes);
      console.log(far[5], far.at(-1));`;
    const said = execFileSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' });
    assert.equal(said.trim(), '77 78');
  });

  test('nothing else is mapped: another secret, another length, a file that may get shorter, no file, no name', () => {
    const [pid, file, length, secret] = name.split('/') as [string, string, string, string];
    const folder = temporaryFolder();
    onTestFinished(folder.remove);
    const other = openSync(join(folder.path, 'a file'), 'w+');
    for (const wrong of [
      [pid, file, length, '06'.repeat(32)],
      [pid, file, String(Number(length) - 4_096), secret],
      [pid, String(other), length, secret],
      [pid, '0', length, secret],
      ['1', file, length, secret],
      ['4000000', file, length, secret],
      [pid, file, length, ''],
      ['../..', file, length, secret],
    ])
      assert.equal(mapPublished(wrong.join('/')), undefined, wrong.join('/'));
    assert.equal(mapPublished(''), undefined);
  });

  test('a buffer of less than a page is not published, and as it was', () => {
    const small = new Uint8Array(new SharedArrayBuffer(2_000)).fill(3);
    assert.equal(publish(small.buffer), undefined);
    assert(small.every((byte) => byte === 3));
  });

  test('memory of more than a view can be long is seen whole: 5 GiB, of which three pages are touched', () => {
    const large = new SharedArrayBuffer(5 * 2 ** 30);
    const { name: largeName, start: first } = publish(large)!;
    const mapped = mapPublished(largeName)!;
    const plain = plainBytes(large);
    for (const place of [0, 2 ** 31 - 100, 2 ** 32 - 50, mapped.numBytes - 200]) {
      plain(first + place, 200).fill(place % 251);
      assert.equal(new Uint8Array(large, first + place, 200)[199], place % 251);
      const far = mapped.bytes(place, 200);
      assert(far.length === 200 && far.every((byte) => byte === place % 251), `at ${place}`);
    }
    assert.throws(() => mapped.bytes(mapped.numBytes - 100, 200), RangeError);
    assert.throws(() => mapped.bytes(6 * 2 ** 30, 1), RangeError);
    mapped.close();
  });
});
