/** The frame of the page: who is asked, whether the values are current, the tabs, and the view. */
import type { ComponentType, VNode } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import type { SessionView } from '../../shared/protocol/router_api.ts';
import { askJson, logOut } from './browser.ts';
import { clockTime, NONE } from './format.ts';
import { store } from './page.ts';
import { AsOf } from './parts/common.tsx';
import { hrefOf, route, VIEWS, type ViewName } from './route.ts';
import { Blocks } from './views/blocks.tsx';
import { Flow } from './views/flow.tsx';
import { Overview } from './views/overview.tsx';
import { Playground } from './views/playground.tsx';
import { Pool } from './views/pool.tsx';
import { Requests } from './views/requests.tsx';

interface Tab {
  readonly label: string;
  /** Sentence that says what the view answers. */
  readonly title: string;
  readonly View: ComponentType<{ readonly args: readonly string[] }>;
}

const TABS: Readonly<Record<ViewName, Tab>> = {
  overview: { label: 'Overview', title: 'Rates, latencies, hits and what changed', View: Overview },
  pool: { label: 'Pool', title: 'Who holds what, how full it is, and who is sick', View: Pool },
  blocks: { label: 'Blocks', title: 'The tree of cached prefixes, and where a prompt lies', View: Blocks },
  flow: { label: 'Flow', title: 'Which links move blocks, how fast', View: Flow },
  requests: { label: 'Requests', title: 'What each request did, how long, and why there', View: Requests },
  playground: { label: 'Playground', title: 'Chat, and see which tokens came from the cache', View: Playground },
};

/** The page. */
export function Shell(): VNode {
  const { view, args } = route.value;
  const { View } = TABS[view];
  const isStale = store.liveness.value === 'stale';
  return (
    <>
      <a class="skip" href="#main" onClick={focusMain}>
        Skip to the content
      </a>
      <header class="top">
        <div class="top-line">
          <h1>Penstock</h1>
          <RouterName />
          <HealthWord />
          <span class="spring" />
          <LogOut />
          <Liveness />
        </div>
        <nav aria-label="Views">
          {VIEWS.map((name) => (
            <a
              key={name}
              href={hrefOf(name)}
              title={TABS[name].title}
              aria-current={name === view ? 'page' : undefined}
            >
              {TABS[name].label}
            </a>
          ))}
        </nav>
      </header>
      <StaleBanner />
      <main id="main" tabIndex={-1} class={isStale ? 'stale' : ''}>
        <View key={view} args={args} />
      </main>
    </>
  );
}

function focusMain(event: Event): void {
  // The address belongs to the views.
  event.preventDefault();
  document.getElementById('main')?.focus();
}

function RouterName(): VNode {
  return (
    <span class="router" title="The router that answers this page">
      {store.router.value?.name ?? NONE}
    </span>
  );
}

const HEALTH_WORDS = { ok: 'all well', degraded: 'degraded', down: 'down' };

function HealthWord(): VNode | null {
  const health = store.health.value;
  if (!health) return null;
  const tone = { ok: 'good', degraded: 'warn', down: 'bad' }[health.state];
  const title = health.problems.length > 0 ? health.problems.join('\n') : 'No problem is known';
  return (
    <a class={`word ${tone}`} href={hrefOf('pool')} title={title}>
      {HEALTH_WORDS[health.state]}
    </a>
  );
}

/** Who has logged in to the page, and the way out; nothing where the router asks for no keys. */
function LogOut(): VNode | null {
  const [name, setName] = useState<string | null>(null);
  useEffect(() => {
    void askJson<SessionView>('api/session').then(
      ({ logged_in_as: own }) => setName(own),
      () => undefined,
    );
  }, []);
  if (name === null) return null;
  return (
    <button type="button" class="log-out" title={`Logged in with the key ${name}`} onClick={() => void logOut()}>
      Log out
    </button>
  );
}

function Liveness(): VNode {
  const state = store.liveness.value;
  return (
    <span class={`liveness ${state}`}>
      <span class="dot" aria-hidden="true" />
      {state === 'live' ? <AsOf /> : state}
    </span>
  );
}

/** Says since when the values on the page are old, and why. */
function StaleBanner(): VNode {
  const isStale = store.liveness.value === 'stale';
  // Read only while stale: the time of a tick changes nothing here.
  const text = isStale ? staleText(store.heardAt.value, store.refusal.value) : '';
  return (
    <div role="status" class={isStale ? 'banner' : 'banner none'}>
      {isStale && `${text} The page asks again by itself.`}
    </div>
  );
}

function staleText(heardAt: number | null, refusal: string | null): string {
  if (refusal !== null) return `The router refuses this page: ${refusal}.`;
  if (heardAt === null) return 'The router does not answer.';
  return `The router has not answered since ${clockTime(heardAt)}: everything below is from then.`;
}
