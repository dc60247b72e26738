/** Every policy that a router knows passes the conformance suite. Budget: 10 s. */
import { createPolicy, policyNames } from '../../shared/placement/policy_registry.ts';
import { conformanceSuite } from './policy_conformance.ts';

for (const name of policyNames) conformanceSuite(name, () => createPolicy(name, { localPrefillTokens: 8 }));
conformanceSuite('priced with strict roles', () =>
  createPolicy('priced', { localPrefillTokens: 8, strictRoles: true }),
);
