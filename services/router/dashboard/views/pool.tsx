/** The view Pool. */
import type { VNode } from 'preact';
import { Card, Notice } from '../parts/common.tsx';

/** The view Pool. @param args parts of the address behind the view's name. */
export function Pool({ args }: { readonly args: readonly string[] }): VNode {
  return (
    <Card title="Pool">
      <Notice>{`Nothing yet (${args.join(', ')}).`}</Notice>
    </Card>
  );
}
