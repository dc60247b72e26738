/** Settings of the playground's requests, and the field for the next question. */
import { signal } from '@preact/signals';
import type { VNode } from 'preact';
import { useRef } from 'preact/hooks';
import { ModelField } from '../../parts/model_field.tsx';
import { chat, type ChatSettings } from './chat_state.ts';

const MAX_TEMPERATURE = 2;
const draft = signal('');

/** Settings of the requests. */
export function SettingsForm(): VNode {
  const { model, system, temperature, maxTokens, salt } = chat.settings.value;
  const change = (part: Partial<ChatSettings>): void => {
    chat.settings.value = { ...chat.settings.peek(), ...part };
  };
  const number = (event: { readonly currentTarget: HTMLInputElement }, apply: (value: number) => void): void => {
    const { valueAsNumber, validity } = event.currentTarget;
    if (validity.valid && Number.isFinite(valueAsNumber)) apply(valueAsNumber);
  };
  return (
    <form class="filters" aria-label="Settings" onSubmit={(event) => event.preventDefault()}>
      <ModelField value={model} onChange={(value) => change({ model: value })} />
      <label>
        <span>Temperature</span>
        <input
          type="number"
          min={0}
          max={MAX_TEMPERATURE}
          step={0.1}
          value={temperature}
          onChange={(event) => number(event, (value) => change({ temperature: value }))}
        />
      </label>
      <label>
        <span>Most tokens</span>
        <input
          type="number"
          min={1}
          step={1}
          value={maxTokens}
          onChange={(event) => number(event, (value) => change({ maxTokens: value }))}
        />
      </label>
      <label title="Requests with different salts share no cached blocks">
        <span>Cache salt</span>
        <input
          type="text"
          value={salt}
          placeholder="none"
          onInput={(event) => change({ salt: event.currentTarget.value })}
        />
      </label>
      <label class="grow">
        <span>System message</span>
        <input
          type="text"
          value={system}
          placeholder="none"
          onInput={(event) => change({ system: event.currentTarget.value })}
        />
      </label>
    </form>
  );
}

/** Field for the next question, with the button that sends it or stops the answer. */
export function Composer(): VNode {
  const field = useRef<HTMLTextAreaElement>(null);
  const isRunning = chat.isRunning.value;
  const send = (): void => {
    const question = draft.peek();
    if (question.trim() === '' || chat.isRunning.peek()) return;
    draft.value = '';
    void chat.send(question);
    field.current?.focus();
  };
  return (
    <form
      class="composer"
      aria-label="Next question"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label class="grow">
        <span class="hidden">Question</span>
        <textarea
          ref={field}
          rows={2}
          value={draft.value}
          placeholder="Ask something. Enter sends, Shift and Enter begin a new line."
          onInput={(event) => (draft.value = event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            send();
          }}
        />
      </label>
      {isRunning ? (
        <button type="button" class="primary" onClick={() => chat.stop()}>
          Stop
        </button>
      ) : (
        <button type="submit" class="primary">
          Send
        </button>
      )}
    </form>
  );
}
