/** The view Flow. */
import type { VNode } from 'preact';
import { Card, Notice } from '../parts/common.tsx';

/** The view Flow. @param args parts of the address behind the view's name. */
export function Flow({ args }: { readonly args: readonly string[] }): VNode {
  return (
    <Card title="Flow">
      <Notice>{`Nothing yet (${args.join(', ')}).`}</Notice>
    </Card>
  );
}
