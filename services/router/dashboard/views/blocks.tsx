/** The view Blocks. */
import type { VNode } from 'preact';
import { Card, Notice } from '../parts/common.tsx';

/** The view Blocks. @param args parts of the address behind the view's name. */
export function Blocks({ args }: { readonly args: readonly string[] }): VNode {
  return (
    <Card title="Blocks">
      <Notice>{`Nothing yet (${args.join(', ')}).`}</Notice>
    </Card>
  );
}
