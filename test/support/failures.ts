/** Expectations of failures. */
import assert from 'node:assert/strict';
import { ParameterFailure } from '../../services/router/api/parameter_failure.ts';
import { Failure, type FailureCode } from '../../shared/base/failure.ts';

/** Returns a check of an error: whether it is a Failure of this code, with such a message. */
export const failsWith =
  (code: FailureCode, message = /./) =>
  (error: unknown): boolean =>
    error instanceof Failure && error.code === code && message.test(error.message);

/** Returns the failure with which a body is refused. */
export function refusal(read: () => unknown): ParameterFailure {
  try {
    read();
  } catch (error) {
    if (error instanceof ParameterFailure) return error;
    throw error;
  }
  assert.fail('it is accepted');
}
