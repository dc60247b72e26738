/** The view Playground. */
import type { VNode } from 'preact';
import { Card, Notice } from '../parts/common.tsx';

/** The view Playground. @param args parts of the address behind the view's name. */
export function Playground({ args }: { readonly args: readonly string[] }): VNode {
  return (
    <Card title="Playground">
      <Notice>{`Nothing yet (${args.join(', ')}).`}</Notice>
    </Card>
  );
}
