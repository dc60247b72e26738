/** The file of the bus's password. Budget: 1 s. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, test } from 'vitest';
import { busPasswordOf } from '../../services/cli/bus_password.ts';
import { temporaryFolder } from '../support/cluster.ts';

const folder = temporaryFolder();
afterAll(() => {
  folder.remove();
});
const file = join(folder.path, 'password');

function read(text: string, bus_password = ''): string {
  writeFileSync(file, text);
  return busPasswordOf({ bus_password, bus_password_file: file });
}

test('is the one line of its file, read at each call, without the blanks around it', () => {
  assert.equal(read('l0v:lace\n'), 'l0v:lace');
  assert.equal(read('\n  another one \r\n'), 'another one');
  assert.equal(busPasswordOf({ bus_password: 'given', bus_password_file: '' }), 'given');
});

test('is refused where it cannot be right, with what to do; its content is not shown', () => {
  assert.throws(
    () => read(' \n\n'),
    /--bus-password-file .*password has no password: write the password of --bus-user/,
  );
  const withoutContent =
    (what: RegExp) =>
    (error: Error): boolean =>
      what.test(error.message) && !/secret|other/.test(error.message);
  assert.throws(() => read('secret\nother\n'), withoutContent(/has several lines: it takes one password/));
  assert.throws(() => read('secret\rother'), withoutContent(/has several lines/));
  assert.throws(() => read('secret', 'other'), withoutContent(/set either .*not both/));
  const nowhere = join(folder.path, 'nowhere');
  assert.throws(
    () => busPasswordOf({ bus_password: '', bus_password_file: nowhere }),
    /--bus-password-file .*nowhere.*ENOENT/,
  );
});
