/** The limits of a mixture's routing that hold on every device. */
import { DeviceError } from './device.ts';
import type { OperationOf } from './program.ts';

/**
 * Checks the numbers of a `route` operation. @throws DeviceError for a bias or groups with softmax scores, for groups of unequal size,
 * and for more experts per token than the chosen groups have.
 */
export function requireRouting({
  experts,
  perToken,
  scoring = 'softmax',
  bias,
  groups = 1,
  groupsPerToken = 1,
}: OperationOf<'route'>): void {
  if (scoring === 'softmax' && (bias !== undefined || groups > 1))
    throw new DeviceError('a mixture with softmax scores has neither a bias for the choice nor groups of experts');
  if (experts % groups !== 0 || groupsPerToken > groups)
    throw new DeviceError(
      `${experts} experts cannot be divided into ${groups} groups, of which ${groupsPerToken} are chosen`,
    );
  if (perToken > (experts / groups) * groupsPerToken)
    throw new DeviceError(
      `a token cannot have ${perToken} experts: its groups have ${(experts / groups) * groupsPerToken}`,
    );
}
