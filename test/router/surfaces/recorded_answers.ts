/**
 * Answers of the router as text that can be compared byte for byte. Only ids, times and the fingerprint, which names the version, are
 * replaced. Each token that an instance plays is sent when the router has read the one before.
 */
import { once } from 'node:events';
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { Agent, request, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { temporaryFolder } from '../../support/cluster.ts';
import { PlayedAnswers, type Pacing } from '../../support/played_answers.ts';
import { startPlayed, type PlayedCluster } from '../../support/played_engines.ts';
import { projectPath } from '../../support/project.ts';
import { until } from '../../support/until.ts';
import type { RecordedCase } from './recorded_cases.ts';

const model = projectPath('config/models/harbour-tools');
const MODEL_NAME = 'harbour-tools';
const VOCAB_SIZE = 1_952;
const END_TOKEN = 2;

interface Answer {
  /** Status, content type, and the parameters that were ignored. */
  readonly head: string;
  readonly text: string;
}

const names: readonly (readonly [pattern: RegExp, name: string])[] = [
  [/"(created|created_at|completed_at)":\d+/g, '"$1":TIME'],
  [/"system_fingerprint":"[^"]+"/g, '"system_fingerprint":"FINGERPRINT"'],
];

/** Replaces times by a name, and ids by numbers in the order in which an answer has them. */
function neutral(text: string): string {
  const known = new Map<string, string>();
  const numbered = text.replace(
    /\b[0-9a-f]{16}(?:[0-9a-f]{16})?\b|(?<=_)[0-9a-f]{16,32}\b|(?<="id":")[0-9a-f]{9}(?=")/g,
    (id) => {
      known.set(id, known.get(id) ?? `ID${known.size + 1}`);
      return known.get(id) ?? '';
    },
  );
  return names.reduce((all, [pattern, name]) => all.replace(pattern, name), numbered);
}

/** The router of one model, and the client that asks it. */
export class RecordedRouter {
  readonly #cluster: PlayedCluster;
  readonly #answers: PlayedAnswers;
  readonly #folder: ReturnType<typeof temporaryFolder>;
  readonly #agent = new Agent({ keepAlive: true });
  /** Bytes of the answer under way that have come, as characters. */
  #received = '';

  private constructor(cluster: PlayedCluster, answers: PlayedAnswers, folder: ReturnType<typeof temporaryFolder>) {
    [this.#cluster, this.#answers, this.#folder] = [cluster, answers, folder];
  }

  /** Starts a router with these arguments of the repository's model that calls tools, with another chat template if one is given. */
  static async start(template?: string, ...args: string[]): Promise<RecordedRouter> {
    const folder = temporaryFolder();
    const path = join(folder.path, MODEL_NAME);
    mkdirSync(path);
    for (const file of ['config.json', 'generation_config.json', 'tokenizer.json'])
      copyFileSync(join(model, file), join(path, file));
    const config = JSON.parse(readFileSync(join(model, 'tokenizer_config.json'), 'utf8')) as object;
    const changed = template === undefined ? config : { ...config, chat_template: template };
    writeFileSync(join(path, 'tokenizer_config.json'), JSON.stringify(changed));
    const answers = new PlayedAnswers(VOCAB_SIZE);
    return new RecordedRouter(await startPlayed(path, answers.session, args), answers, folder);
  }

  async close(): Promise<void> {
    this.#agent.destroy();
    await this.#cluster.close();
    this.#folder.remove();
  }

  /** Returns the recording of a case: the request, what is generated, and the answers. */
  async record(one: RecordedCase): Promise<string> {
    const { path, body, outputs, isBroken, perMessage = 1, forms = ['whole', 'stream'] } = one;
    const played = `${isBroken ? 'broken ' : ''}${JSON.stringify(outputs)}${perMessage > 1 ? `, ${perMessage} tokens a message` : ''}`;
    const parts = [`POST ${path}\n${JSON.stringify(body)}\ngenerated: ${played}\n`];
    const lists = await Promise.all(outputs.map((text) => this.#encode(text)));
    const play = { outputs: lists.map((list) => (isBroken ? list : [...list, END_TOKEN])), perMessage };
    // The role of a chat's answer, or the prompt that is repeated, has an event of its own.
    const numBefore = 'messages' in body || 'echo' in body ? 1 : 0;
    for (const form of forms) {
      const isStream = form === 'stream';
      this.#answers.expect(play, isStream ? this.#pacingOf(outputs.length, numBefore) : undefined);
      const ofForm = isStream ? { stream: true } : { stream_options: undefined };
      const { head, text } = await this.#post(path, { model: MODEL_NAME, ...body, ...ofForm });
      parts.push(`\n=== ${form}: ${head}\n${neutral(text)}\n`);
    }
    return parts.join('');
  }

  async #encode(prompt: string): Promise<number[]> {
    if (prompt === '') return [];
    const { text } = await this.#post('/tokenize', { model: MODEL_NAME, prompt, add_special_tokens: false });
    return (JSON.parse(text) as { tokens: number[] }).tokens;
  }

  /**
   * Returns the pacing of a stream: the next token is sent when the router has read the one before. With several sequences the client must
   * also have an event of each token, and `numBefore` events of each sequence before its first token: two tokens that are decoded at the
   * same time come in either order.
   */
  #pacingOf(numSequences: number, numBefore: number): Pacing {
    const numSent = new Map<string, number>();
    const numOf = (): number => [...numSent.values()].reduce((sum, one) => sum + one + numBefore, 0);
    return (id, numTokens, signal) => {
      numSent.set(id, numTokens);
      const path = `/api/requests/${id.replace(/\.\d+$/, '')}`;
      return until(`token ${numTokens} is read, and its event sent`, async () => {
        if (signal.aborted) return true;
        const { text } = await this.#send('GET', path);
        const { output_tokens: numRead, phase } = JSON.parse(text) as { output_tokens: number; phase: string };
        const isRead = numRead >= numTokens || /finished|failed|cancelled/.test(phase);
        return isRead && (numSequences === 1 || this.#numEvents >= numOf());
      });
    };
  }

  get #numEvents(): number {
    return this.#received.split('\n\n').length - 1;
  }

  #post(path: string, body: object): Promise<Answer> {
    this.#received = '';
    return this.#send('POST', path, JSON.stringify(body), (chunk) => (this.#received += chunk.toString('latin1')));
  }

  async #send(method: string, path: string, body = '', onChunk?: (chunk: Buffer) => void): Promise<Answer> {
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
    const sent = request(new URL(path, this.#cluster.url), { method, agent: this.#agent, headers });
    sent.end(body);
    const [answer] = (await once(sent, 'response')) as [IncomingMessage];
    const chunks: Buffer[] = [];
    for await (const chunk of answer as AsyncIterable<Buffer>) {
      chunks.push(chunk);
      onChunk?.(chunk);
    }
    const { statusCode = 0, headers: received } = answer;
    const ignored = received['x-penstock-ignored'];
    const head = [
      statusCode,
      received['content-type'],
      ...(ignored === undefined ? [] : [`ignored: ${String(ignored)}`]),
    ];
    return { head: head.join(' '), text: Buffer.concat(chunks).toString('utf8') };
  }
}
