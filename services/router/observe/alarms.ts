/** Conditions that need attention while they last: each begins and ends with an event, and the health of the cluster names those that last. */
import type { EventLog, NewEvent } from './event_log.ts';

/** Alarms that last at the same time (P1); further ones are not reported. */
const MAX_ALARMS = 1_024;

/** Words of an alarm: a sentence while it lasts, and one for its end. */
export interface AlarmText extends Pick<NewEvent, 'node' | 'role' | 'model'> {
  readonly text: string;
  readonly ended: string;
  /** Whether no request can be answered while the alarm lasts. */
  readonly isFatal?: boolean;
}

/** The alarms that last now, by key. */
export class Alarms {
  readonly #events: EventLog;
  readonly #lasting = new Map<string, AlarmText>();

  constructor(events: EventLog) {
    this.#events = events;
  }

  get lasting(): readonly AlarmText[] {
    return [...this.#lasting.values()];
  }

  /** Begins or ends an alarm; repeated calls with the same value change nothing. */
  set(key: string, isOn: boolean, words: () => AlarmText): void {
    const before = this.#lasting.get(key);
    if (isOn === (before !== undefined)) return;
    if (before) {
      this.end(key);
      return;
    }
    if (this.#lasting.size >= MAX_ALARMS) return;
    const alarm = words();
    this.#lasting.set(key, alarm);
    this.#events.add({ ...about(alarm), kind: 'alarm', text: alarm.text });
  }

  /** Ends an alarm, when it lasts. */
  end(key: string): void {
    const alarm = this.#lasting.get(key);
    if (!alarm) return;
    this.#lasting.delete(key);
    this.#events.add({ ...about(alarm), kind: 'alarm_ended', text: alarm.ended });
  }

  /** Ends all alarms whose key begins with `prefix`. */
  endAll(prefix: string): void {
    for (const key of [...this.#lasting.keys()]) if (key.startsWith(prefix)) this.end(key);
  }
}

function about({ node, role, model }: AlarmText): Pick<NewEvent, 'node' | 'role' | 'model'> {
  return { node, role, model };
}
