/** Choice of one of the models that the router serves. */
import type { VNode } from 'preact';
import { useEffect } from 'preact/hooks';
import { useJson } from './use_json.ts';

interface ModelList {
  readonly data: readonly { readonly id: string }[];
}

const AGAIN_MS = 30_000;

/** Choice of a model. The first model is chosen while `value` is empty. */
export function ModelField(props: { readonly value: string; readonly onChange: (model: string) => void }): VNode {
  const { body } = useJson<ModelList>('v1/models', AGAIN_MS);
  const served = body?.data.map(({ id }) => id) ?? [];
  const models = props.value === '' || served.includes(props.value) ? served : [props.value, ...served];
  const first = served[0];
  useEffect(() => {
    if (props.value === '' && first !== undefined) props.onChange(first);
  }, [props.value, first]);
  return (
    <label>
      <span>Model</span>
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        {models.map((model) => (
          <option key={model} value={model}>
            {model}
          </option>
        ))}
      </select>
    </label>
  );
}
