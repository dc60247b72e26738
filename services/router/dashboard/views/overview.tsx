/** The view Overview. */
import type { VNode } from 'preact';
import { Card, Notice } from '../parts/common.tsx';

/** The view Overview. @param args parts of the address behind the view's name. */
export function Overview({ args }: { readonly args: readonly string[] }): VNode {
  return (
    <Card title="Overview">
      <Notice>{`Nothing yet (${args.join(', ')}).`}</Notice>
    </Card>
  );
}
