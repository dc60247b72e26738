/** The view Playground: a chat with a model of the cluster, and where the KV of each prompt came from. */
import type { VNode } from 'preact';
import { AsOf, Card, Notice } from '../parts/common.tsx';
import { Composer, SettingsForm } from './playground/composer.tsx';
import { chat } from './playground/chat_state.ts';
import { TurnView } from './playground/turn_view.tsx';

/** The view Playground. */
export function Playground(): VNode {
  const turns = chat.turns.value;
  return (
    <>
      <Card
        wide
        title="Chat"
        note={
          <span class="choice-line">
            {turns.length > 0 && (
              <button type="button" onClick={() => chat.clear()}>
                New chat
              </button>
            )}
            <AsOf />
          </span>
        }
      >
        <SettingsForm />
        {turns.length === 0 ? (
          <Notice>
            Ask something, and ask on: below each answer is what of its prompt was cached, fetched and computed, and how
            long the first token took. The chat stays in this page only.
          </Notice>
        ) : (
          <ol class="chat" aria-label="Conversation">
            {turns.map((turn, i) => (
              <TurnView key={turn.number} turn={turn} isLast={i === turns.length - 1} />
            ))}
          </ol>
        )}
        <Composer />
      </Card>
    </>
  );
}
