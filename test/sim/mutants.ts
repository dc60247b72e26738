/**
 * Does the simulation bite? Each mutant is the build with one guard taken out of a source file; a seed must find it.
 *
 *   node dist/test/sim/main.js --mutants [--seeds 1000]
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { projectPath } from '../support/project.ts';

/** Most of what a seed makes is garbage at its end: with more room for it, Node spends a sixth less time. */
export const YOUNG_SPACE = '--max-semi-space-size=64';

interface Mutant {
  readonly name: string;
  /** Source file; `from` and `to` are text of it. */
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

export const mutants: readonly Mutant[] = [
  {
    name: 'the digest is not compared on arrival (K2)',
    file: 'shared/kv/record.ts',
    from: 'if (this.#want && header.digest !== this.#want.digest)',
    to: 'if (false)',
  },
  {
    name: 'the format is not compared on arrival (K2)',
    file: 'shared/kv/record.ts',
    from: 'if (this.#want && header.format !== this.#want.format)',
    to: 'if (false)',
  },
  {
    name: 'checksums are not compared (K2)',
    file: 'shared/kv/record.ts',
    from: '=== frame.checksum\n',
    to: '=== frame.checksum || true\n',
  },
  {
    name: 'a store calls durable what it has not committed (S1)',
    file: 'services/store/offer_intake.ts',
    from: 'offered.filter((hash) => this.#tiers.disk.has(hash)).length',
    to: 'offered.filter((hash) => !this.#tiers.lacks(hash)).length',
  },
  {
    name: 'what is deleted from disk is not told to the index',
    file: 'services/store/disk_index.ts',
    from: 'this.#options.onRemoved(key);',
    to: '',
  },
  {
    name: 'a block may be freed while it is copied out (K1)',
    file: 'shared/engine/held_blocks.ts',
    from: `  const blocks = held.map(({ block }) => block);
  for (const block of blocks) pool.reference(block);`,
    to: '    const blocks = [];\n    held.blocks = held.map(({ block }) => block);',
  },
  {
    name: 'a removal is not told to the index',
    file: 'shared/instance/outbox.ts',
    from: "announcer.removed('device', event.key);",
    to: '',
  },
  {
    name: 'a gap in block events is not seen',
    file: 'services/router/cluster/index_feed.ts',
    from: 'const isNext = batch.sequence === feed.sequence + 1;',
    to: 'const isNext = batch.sequence > feed.sequence;',
  },
  {
    name: 'replies that come twice count twice (R1)',
    file: 'shared/protocol/decode_replies.ts',
    from: 'if (replies.number === (this.#number + NUMBERS - 1) % NUMBERS) return;',
    to: '',
  },
  {
    name: 'replies that were cut are read as they are (R1)',
    file: 'shared/protocol/decode_replies.ts',
    from: 'if (columns.some((column) => column.length !== 4 * length))',
    to: 'if (false)',
  },
  {
    name: 'replies are lost (R1)',
    file: 'shared/protocol/decode_replies.ts',
    from: 'const columns = this.#pending.shift();',
    to: 'const columns = this.#number % 100 === 99 ? (this.#pending.shift(), this.#number++, this.#pending.shift()) : this.#pending.shift();',
  },
  {
    name: 'the last reply of a prefill is lost (R2)',
    file: 'shared/protocol/decode_replies.ts',
    from: 'this.#room(3 + numbersOf(prefill.report)).rest.events.push({ slot, prefill });',
    to: 'if (!prefill.report) this.#room(3).rest.events.push({ slot, prefill });',
  },
  {
    name: 'a reply of a prefill is sent twice (R1)',
    file: 'shared/protocol/decode_replies.ts',
    from: 'rest.events.push({ slot, prefill });',
    to: 'rest.events.push({ slot, prefill }, { slot, prefill });',
  },
  {
    name: 'replies of a prefill are sent with the slot of another call (R1)',
    file: 'shared/protocol/decode_replies.ts',
    from: 'rest.events.push({ slot, prefill });',
    to: 'rest.events.push({ slot: slot + 1, prefill });',
  },
  {
    name: 'a prefill that nobody waits for any more is not cancelled (R2)',
    file: 'services/router/relay/prefill_run.ts',
    from: 'call?.leave();',
    to: '',
  },
  {
    name: 'a cancelled call keeps its sequence (R2)',
    file: 'shared/net/decode/served_decodes.ts',
    from: `this.fail(why);
    this.#left.abort(DONE);`,
    to: 'this.fail(why);',
  },
  {
    name: 'a lost router keeps its sequences (R2)',
    file: 'shared/net/decode/served_decodes.ts',
    from: 'for (const slot of this.#open.values()) slot.leave();',
    to: '',
  },
  {
    name: 'tokens of a cancelled call reach the next call of its slot (R1)',
    file: 'shared/net/decode/decode_stream.ts',
    from: 'if (this.#slots[slot] === listener) this.#slots[slot] = LEFT;',
    to: 'if (this.#slots[slot] === listener) this.#release(slot);',
  },
  {
    name: 'failover takes output for prompt',
    file: 'services/router/relay/attempt_messages.ts',
    from: 'request: { ...request,',
    to: 'request: { ...request, promptLength: this.#options.tokens.length,',
  },
  {
    name: 'failover samples from another random stream',
    file: 'services/router/relay/attempt_messages.ts',
    from: 'request: { ...request,',
    to: 'request: { ...request, sampling: { ...request.sampling, seedLow: (request.sampling.seedLow + this.#options.inFlight.numAttempts - 1) >>> 0 },',
  },
  {
    name: 'failover forgets the last token',
    file: 'services/router/relay/decode_attempt.ts',
    from: 'this.#tokens = inFlight.tokens.view();',
    to: 'this.#tokens = inFlight.numAttempts > 1 ? inFlight.tokens.view().slice(0, -1) : inFlight.tokens.view();',
  },
  {
    name: 'a preempted sequence keeps its place in the fetch slots',
    file: 'shared/instance/sequence_run.ts',
    from: `else if (event.kind === 'preempted') {
        isAdmitted = false;`,
    to: "else if (event.kind === 'preempted') {\n                isAdmitted = true;",
  },
  {
    name: 'a hit counts for one block more than it is',
    file: 'shared/engine/sequence.ts',
    from: 'this.cursor.startAt(numHits * this.#spec.blockSize);',
    to: 'this.cursor.startAt(Math.min(numHits + 1, this.hittableBlocks) * this.#spec.blockSize);',
  },
  {
    name: 'what was delivered before a preemption counts after it',
    file: 'shared/engine/sequence.ts',
    from: 'const fetched = new FetchedBlocks(this.#spec);',
    to: 'const fetched = (this.kept ??= new FetchedBlocks(this.#spec));',
  },
  {
    name: 'a sequence that is cancelled keeps its blocks (R2)',
    file: 'shared/engine/scheduler.ts',
    from: 'this.#pool.release(sequence.end());',
    to: 'sequence.end();',
  },
  {
    name: 'failover forgets how long the output may be',
    file: 'services/router/relay/attempt_messages.ts',
    from: 'maxLength: Math.min(request.maxLength, decode.maxModelLen)',
    to: 'maxLength: Math.min(request.maxLength + this.#options.inFlight.numAttempts - 1, decode.maxModelLen)',
  },
  {
    name: 'failover forgets the stop tokens',
    file: 'services/router/relay/attempt_messages.ts',
    from: 'request: { ...request,',
    to: 'request: { ...request, stopTokenIds: this.#options.inFlight.numAttempts > 1 ? [] : request.stopTokenIds,',
  },
  {
    name: 'slots of records that were not used are not given back (R2)',
    file: 'shared/instance/block_fetcher.ts',
    from: `fetchSlots.release(slot);
      return fault`,
    to: 'return fault',
  },
  {
    name: 'fetch streams are not ended with the fetch (R2)',
    file: 'shared/instance/block_fetcher.ts',
    from: `for (const stream of streams) stream.cancel();`,
    to: '',
  },
  {
    name: 'a cancel does not reach the engine (R2)',
    file: 'shared/instance/engine_instance.ts',
    from: "this.#host.send({ kind: 'cancel', id });",
    to: ';',
  },
  {
    name: 'a decode call goes on when its caller has left (R2)',
    file: 'shared/instance/decode_call.ts',
    from: 'this.#left = linkSignals(signal);',
    to: 'this.#left = linkSignals();',
  },
  {
    name: 'an arrived block is taken for the one after it',
    file: 'shared/instance/block_fetcher.ts',
    from: "sendToEngine({ kind: 'deliver', id, blockIndex, slot,",
    to: "sendToEngine({ kind: 'deliver', id, blockIndex: blockIndex + 1, slot,",
  },
  {
    name: 'a block is named before its last token is computed (K1)',
    file: 'shared/engine/step_completion.ts',
    from: 'index < Math.floor((start + count) / blockSize); index++',
    to: 'index < Math.floor(Math.min(tokens.length, start + count + 1) / blockSize); index++',
  },
  {
    name: 'the last block is hit too, and nothing is left to sample from',
    file: 'shared/engine/sequence.ts',
    from: 'const numBlocks = numPrefillBlocks(this.tokens.length, blockSize);',
    to: 'const numBlocks = Math.floor(this.tokens.length / blockSize);',
  },
  {
    name: 'a lost instance is asked for ever',
    file: 'services/router/relay/retry.ts',
    from: 'excluded.failed(instance);',
    to: 'throw failure;',
  },
  {
    name: 'a snapshot leaves what it does not name',
    file: 'shared/placement/prefix_index/holder_sets.ts',
    from: 'this.forget(to, gone);',
    to: '',
  },
  {
    name: 'a busy instance counts as failed, and the request with it',
    file: 'services/router/relay/retry.ts',
    from: "if (failure.code === 'overloaded') {",
    to: "if (failure.code === 'never') {",
  },
  {
    name: 'what a store holds under a key is taken for what is asked (K2)',
    file: 'shared/kv/record_cache.ts',
    from: 'return record?.hash.digest === hash.digest ? record : undefined;',
    to: 'return record;',
  },
  {
    name: 'what the device holds under a key is taken for what is asked (K2)',
    file: 'shared/engine/block_pool.ts',
    from: 'this.#hashOf[block]?.digest === hash.digest ? block : undefined',
    to: 'true ? block : undefined',
  },
  {
    name: 'a block is named twice (E1)',
    file: 'shared/engine/block_pool.ts',
    from: `if (this.#byKey.has(hash.key)) return false;`,
    to: '',
  },
  {
    name: 'a block that others use is given away',
    file: 'shared/engine/block_pool.ts',
    from: `if (--this.#numRefs[block]! > 0) continue;`,
    to: 'this.#numRefs[block] = 0;',
  },
  {
    name: 'an evicted block keeps its name',
    file: 'shared/engine/block_pool.ts',
    from: 'this.#byKey.delete(hash.key);',
    to: '',
  },
  {
    name: 'an eviction is not told',
    file: 'shared/engine/block_pool.ts',
    from: 'this.#hooks.onRemoved(hash.key);',
    to: '',
  },
  {
    name: 'the salt is forgotten (K1)',
    file: 'shared/kv/format.ts',
    from: "if (adapter === '' && tenant === '' && salt === '')",
    to: 'if (true)',
  },
  {
    name: 'slots of records that broke off are not given back (R2)',
    file: 'shared/net/fetch/fetch_call.ts',
    from: `for (const slot of this.#machine.leave()) slots.release(slot);`,
    to: '',
  },
  {
    name: 'records that come over a data channel are not verified (K2)',
    file: 'shared/net/transfer_thread/channel_client.ts',
    from: 'this.#arrived(channel, clientChannel, fault);',
    to: 'this.#arrived(channel, clientChannel, undefined);',
  },
  {
    name: 'records that come through shared memory are not verified (K2)',
    file: 'shared/net/transfer_thread/record_copy.ts',
    from: 'return verifier.fault;',
    to: 'return undefined;',
  },
  {
    name: 'a record may be evicted while a data channel sends it (K2)',
    file: 'shared/kv/record_cache.ts',
    from: `this.pin(hash.key);
    let isOut = true;`,
    to: 'this.pin(0n);\n        let isOut = true;',
  },
  {
    name: 'offered records are not verified (K2)',
    file: 'services/store/offer_intake.ts',
    from: 'if (!hash || fault !== undefined) {',
    to: 'if (!hash) {',
  },
  {
    name: 'the disk tier adds what the disk did not store (S1)',
    file: 'services/store/disk_tier.ts',
    from: 'const writes = fresh.map(',
    to: 'for (const { hash, bytes, format } of fresh) this.#index.add({ key: hash.key, digest: hash.digest, bytes, format, isState: false, numerics: 0n, contentHash: 0n, at: 0 }); const writes = fresh.map(',
  },
  {
    name: 'a preempted sequence is not told',
    file: 'shared/engine/scheduler.ts',
    from: 'this.#onPreempted(sequence);',
    to: '',
  },
  {
    name: 'a token of a cancelled sequence is taken for its successor',
    file: 'shared/engine/engine.ts',
    from: 'isGone: (sequence) => this.#sequences.get(sequence.request.id) !== sequence,',
    to: 'isGone: () => false,',
  },
  {
    name: 'blocks may be freed while they are filled (K1)',
    file: 'shared/engine/incoming_blocks.ts',
    from: `for (const block of blocks) pool.reference(block);`,
    to: '',
  },
  {
    name: 'frames are not verified (K2)',
    file: 'shared/kv/frame_header.ts',
    from: 'if (numBytes === this.#raw.byteLength)',
    to: 'if (numBytes < 0)',
  },
  {
    name: 'a slot is given back while frames of it are put in (K1)',
    file: 'shared/instance/fetch_slots.ts',
    from: 'used.numPins++;',
    to: 'used.numPins += 0;',
  },
  {
    name: 'a slot is given back while frames of it are sent (K2)',
    file: 'shared/instance/in_flight_blocks.ts',
    from: 'if (pinned && pinned.numPins > 0)',
    to: 'if (false)',
  },
  {
    name: 'blocks that grow are lent without end (P1)',
    file: 'shared/instance/in_flight_blocks.ts',
    from: 'pinned.releaseBorrow ??= reserveBorrow();',
    to: 'pinned.releaseBorrow ??= () => undefined;',
  },
  {
    name: 'a step begins before its layers are there',
    file: 'shared/engine/fetched_blocks.ts',
    from: 'const bits = this.#frames.get(index) ?? 0;',
    to: 'const bits = this.#frames.get(index) ?? 1;',
  },
  {
    name: 'a window ends a token early',
    file: 'shared/kv/kv_spec.ts',
    from: '(row - window + 1) / blockSize',
    to: '(row - window + 2) / blockSize',
  },
  {
    name: 'a block without all its layers has a name (K1)',
    file: 'shared/engine/fetched_blocks.ts',
    from: 'if (bits !== (1 << this.#spec.frames.length) - 1)',
    to: 'if (frame < this.#spec.frames.length - 1)',
  },
  {
    name: 'what rows before the missing block would see is not looked for',
    file: 'shared/engine/fetched_blocks.ts',
    from: `usable = index;
      outside = this.#outsideAt(usable);`,
    to: 'usable = index;',
  },
  {
    name: 'blocks that left early do not come to the outbox',
    file: 'shared/engine/early_exports.ts',
    from: 'onLeft(block);',
    to: '',
  },
  {
    name: 'fewer tokens than the minimum may be followed by the end',
    file: 'shared/engine/sampler.ts',
    from: 'this.#hasStops = tokens.length >= this.#stopsFrom;',
    to: 'this.#hasStops = true;',
  },
  {
    name: 'the random stream of a token depends on the instance',
    file: 'shared/instance/decode_call.ts',
    from: 'const request = requestOf(start.request);',
    to: `const wanted = requestOf(start.request);
        const request = wanted && { ...wanted, sampling: { ...wanted.sampling, seedLow: (wanted.sampling.seedLow + 1) >>> 0 } };`,
  },
  {
    name: 'positions of tokens begin at the prompt, whatever came before',
    file: 'shared/engine/sampling_state.ts',
    from: 'sampledToken(sampling.params, position, token, logit, result)',
    to: 'sampledToken(sampling.params, position - 1, token, logit, result)',
  },
  {
    name: 'what a lost holder had stays in the index',
    file: 'services/router/cluster/index_feed.ts',
    from: `this.#feeds.delete(instance.id);
    this.#index.removeHolder(instance.id);`,
    to: 'this.#feeds.delete(instance.id);',
  },
  {
    name: 'an event that comes twice is applied twice or out of order',
    file: 'services/router/cluster/index_feed.ts',
    from: `if (batch.sequence <= feed.sequence) return;`,
    to: 'if (batch.sequence <= feed.sequence) {\n for (const run of batch.runs) this.#index.apply(batch.holder, run);\n return; }',
  },
  {
    name: 'silence means nothing',
    file: 'services/router/cluster/silence_watch.ts',
    from: 'instance.lastHeardMs < nowMs - silenceMs',
    to: 'instance.lastHeardMs < -Infinity',
  },
  {
    name: 'placed requests are not counted down (R2)',
    file: 'services/router/relay/placed_call.ts',
    from: 'this.#instance.end(this.placement);',
    to: '',
  },
  {
    name: 'a prefill goes on when its request has ended (R2)',
    file: 'services/router/relay/attempt_blocks.ts',
    from: `this.#unwatch();
    this.#ended.abort(DONE);`,
    to: 'this.#unwatch();',
  },
  {
    name: 'a body is not let go of (R2)',
    file: 'services/router/api/request_scope.ts',
    from: 'this.body.release();',
    to: '',
  },
  {
    name: 'a request outlives its client (R2)',
    file: 'services/router/api/request_scope.ts',
    from: ': linkSignals(gone, ending);',
    to: ': linkSignals(ending);',
  },
  {
    name: 'a slow reader is written to without end',
    file: 'services/router/api/event_stream.ts',
    from: 'return this.#scope.sink.isBehind && !this.#scope.isGone;',
    to: 'return false;',
  },
  {
    name: 'a reader that stopped is waited for',
    file: 'services/router/api/event_stream.ts',
    from: 'await clock.sleep(timeoutMs, waiting.signal);',
    to: 'await room;',
  },
  {
    name: 'text after a stop string is sent',
    file: 'shared/text/text_stream.ts',
    from: `if (this.stop !== undefined) return pending.slice(0, end`,
    to: 'if (this.stop !== undefined)\n            return pending.slice(0, Infinity',
  },
  {
    name: 'the beginning of a stop string is sent',
    file: 'shared/text/text_stream.ts',
    from: 'const numHeld = Math.max(0, ...stops.map((stop) => overlap(pending, stop)));',
    to: 'const numHeld = 0;',
  },
  {
    name: 'half a character is sent',
    file: 'shared/text/text_stream.ts',
    from: 'const isComplete = !after.endsWith(REPLACEMENT)',
    to: 'const isComplete = true',
  },
  {
    name: 'what was held back is not sent at the end',
    file: 'services/router/api/prompt_run.ts',
    from: 'if (generated.finish) text += this.#output.onEnd() ?? (await this.#decode());',
    to: 'if (generated.finish) this.#output.onEnd() ?? (await this.#decode());',
  },
  {
    name: 'tokens for a reader that is behind are dropped',
    file: 'shared/base/handover.ts',
    from: 'if (this.#isBusy) this.#waiting.push(value);',
    to: 'if (this.#isBusy) return;',
  },
  {
    name: 'a run gives more to who has enough',
    file: 'shared/base/handover.ts',
    from: 'if (taken === ENOUGH) this.#stop(undefined);',
    to: 'if (taken === ENOUGH) return;',
  },
  {
    name: 'a delta overtakes one that waits for its reader',
    file: 'services/router/api/parsed_deltas.ts',
    from: 'if (this.#waiting) return this.#waiting.then(() => this.onDelta(index, delta));',
    to: '',
  },
  {
    name: 'deltas of one prompt go to another',
    file: 'services/router/api/parsed_deltas.ts',
    from: 'run((delta) => output.onDelta(index, delta))',
    to: 'run((delta) => output.onDelta(0, delta))',
  },
  {
    name: 'a stream ends without saying so',
    file: 'services/router/api/event_stream.ts',
    from: 'this.#scope.sink.end(this.form.end);',
    to: "this.#scope.sink.end('');",
  },
  {
    name: 'usage counts a token twice',
    file: 'services/router/record/request_counts.ts',
    from: 'this.#state.outputTokens++;',
    to: 'this.#state.outputTokens += 1 + Number(this.#state.attempts.length > 1);',
  },
  {
    name: 'an export that fails is waited for',
    file: 'shared/instance/outbox.ts',
    from: `this.#wake(event.hash.key);
    }
  }`,
    to: '}\n    }',
  },
  {
    name: 'deliveries of a preempted sequence keep their slots (P1)',
    file: 'shared/instance/fetch_slots.ts',
    from: 'return used === undefined || used.isAdmitted() ||',
    to: 'return true ||',
  },
  {
    name: 'more sequences wait than may (P1)',
    file: 'shared/engine/queued_sequences.ts',
    from: 'if (waiting.length + numFollowing < maxWaiting) return undefined;',
    to: 'return undefined;',
  },
  {
    name: 'a name may be taken from one who lives',
    file: 'shared/placement/instance.ts',
    from: 'return (!this.isSuspect || this.isHeardSince) && nowMs - this.lastHeardMs < SILENT_MS;',
    to: 'return false;',
  },
  {
    name: 'a delivery that ends after its sequence was cancelled is named',
    file: 'shared/engine/incoming_blocks.ts',
    from: `if (!('fetched' in sequence.state) || sequence.state.fetched !== fetched) return;`,
    to: '',
  },
  {
    name: 'what was delivered after a gap is not counted once the gap is computed',
    file: 'shared/engine/step.ts',
    from: 'sequence.passFetched();',
    to: '',
  },
  {
    name: 'a sequence that has proceeded waits for blocks again after a preemption',
    file: 'shared/engine/sequence.ts',
    from: 'this.#isFetched = true;',
    to: '',
  },
  {
    name: 'hits that nobody uses count as room',
    file: 'shared/engine/block_pool.ts',
    from: 'if (numBlocks - numHits > this.numAvailable - numIdleHits)',
    to: 'if (numBlocks - numHits > this.numAvailable)',
  },
  {
    name: 'a slot lent for an export of an evicted block is lost',
    file: 'shared/engine/block_copies.ts',
    from: 'this.#creditsOf(hash).push(slot);',
    to: '',
  },
  {
    name: 'the digest of a block does not depend on the blocks before it (K1)',
    file: 'shared/kv/block_key.ts',
    from: `digested.write(before?.digest ?? this.#root, 'hex');`,
    to: `digested.write(this.#root, 'hex');`,
  },
  {
    name: 'what leaves host memory is not told to the index',
    file: 'shared/kv/record_cache.ts',
    from: 'this.#options.onEvict(record);',
    to: '',
  },
  {
    name: 'events of one tier are told as those of another',
    file: 'shared/node/announcer.ts',
    from: 'if (last?.operation !== operation || last.tier !== tier)',
    to: 'if (last?.operation !== operation)',
  },
  {
    name: 'a snapshot has a block as its own parent',
    file: 'shared/node/announcer.ts',
    from: 'keys.set(key, parent)',
    to: 'keys.set(key, key)',
  },
  {
    name: 'a prompt has tokens without a source, which a prefill has only passed on',
    file: 'services/router/record/request_counts.ts',
    from: 'instance: left, ...stores',
    to: 'instance: Math.min(left, found.instance), ...stores',
  },
  {
    name: 'a snapshot that was read counts as being read',
    file: 'shared/net/fetch/fetch_server.ts',
    from: 'numSnapshots--;',
    to: '',
  },
  {
    name: 'subscriptions are not made when the hub connects',
    file: 'shared/bus/hub_client.ts',
    from: `for (const subject of this.#subscribers.keys()) this.#send({ kind: BusKind.SUBSCRIBE, subject });`,
    to: '',
  },
  {
    name: 'what went out to the hub counts as waiting',
    file: 'shared/bus/hub_client.ts',
    from: 'new AsyncQueue<BusMessage>(({ payload }) => (this.#backlogBytes -= payload.length))',
    to: 'new AsyncQueue()',
  },
  {
    name: 'a fetch that gave up its wait for a slot is given one',
    file: 'shared/instance/fetch_slots.ts',
    from: `if (at >= 0) this.#waiters.splice(at, 1);`,
    to: 'void at;',
  },
  {
    name: 'a reader of a block that left is kept (R2)',
    file: 'shared/base/condition.ts',
    from: `signal.addEventListener('abort', wake, { once: true });`,
    to: '',
  },
  {
    name: 'blocks of a short salted prompt are named without its salt',
    file: 'shared/instance/engine_call.ts',
    from: 'return { root, tenant, tokens, hashes, keyBits };',
    to: 'return { root: layout.format, tenant, tokens, hashes, keyBits };',
  },
  {
    name: 'a device that hangs is not noticed',
    file: 'shared/instance/watchdog.ts',
    from: 'if (clock.nowMs() - sinceMs > stepTimeoutMs) {',
    to: 'if (false) {',
  },
  {
    name: 'a decode instance that was there is not expected back',
    file: 'shared/placement/placement.ts',
    from: 'withoutDecodeMs === undefined ? 0 : EXPECTED_MS - withoutDecodeMs',
    to: '0',
  },
  {
    name: 'every prefill after the first round is given up before it begins',
    file: 'services/router/relay/attempt_blocks.ts',
    from: '(this.#unwanted = new AbortController())',
    to: 'this.#unwanted',
  },
  {
    name: 'who waits for an instance is not told that one has joined',
    file: 'services/router/cluster/cluster_view.ts',
    from: `this.#stores.set(instance, isCounted);
    this.#changed.notify();`,
    to: 'this.#stores.set(instance, isCounted);',
  },
  {
    name: 'an unknown member that takes itself for a member is not told',
    file: 'services/router/cluster/cluster_view.ts',
    from: 'bus.publish(subjects.unknownMember(epoch), toBytes({ router: identity.epoch }));',
    to: '',
  },
  {
    name: 'block events that were the last and are lost are not missed',
    file: 'services/router/cluster/index_feed.ts',
    from: 'known.feed.buffered || sequence <= known.feed.sequence',
    to: 'known.feed.buffered || sequence <= Infinity',
  },
  {
    name: 'a process registers with the first router alone',
    file: 'shared/node/cluster_member.ts',
    from: 'if (known.isAsking || !this.#joining)',
    to: 'if (known.isAsking || !this.#joining || this.#routers.isJoined)',
  },
  {
    name: 'a chain of another prompt is taken for this one (K1)',
    file: 'services/router/relay/chain_cache.ts',
    from: 'if (isSame(0, most))',
    to: 'if (most > 0)',
  },
  {
    name: 'a second tier takes the place of the first',
    file: 'shared/placement/prefix_index/holder_sets.ts',
    from: 'isStored ? before | bit : before & ~bit',
    to: 'isStored ? bit : before & ~bit',
  },
  {
    name: 'a stop string in the last token that may come counts as length',
    file: 'services/router/api/prompt_output.ts',
    from: `finish = stop === undefined ? modelFinish : 'stop';`,
    to: `finish = modelFinish ?? (stop === undefined ? undefined : 'stop');`,
  },
  {
    name: 'a body is counted off twice',
    file: 'services/router/api/bodies.ts',
    from: `this.#allBytes -= size;
      size = 0;`,
    to: 'this.#allBytes -= size;',
  },
  {
    name: 'a router that drains ends its requests at once',
    file: 'services/router/router.ts',
    from: `while (!admission.isIdle && clock.nowMs() < untilMs)`,
    to: `while (false)
`,
  },
  {
    name: 'requests are let in without end (P1)',
    file: 'services/router/conductor/admission.ts',
    from: 'if (this.#numRequests >= this.#maxRequests) {',
    to: 'if (false) {',
  },
  {
    name: 'a prefill goes on when its caller has left (R2)',
    file: 'shared/instance/prefill_call.ts',
    from: 'span.begin(request) : request, instance, signal)',
    to: 'span.begin(request) : request, instance, new AbortController().signal)',
  },
  {
    name: 'a request with one token left is refused',
    file: 'shared/instance/decode_call.ts',
    from: 'maxLength <= chain.tokens.length)',
    to: 'maxLength <= chain.tokens.length + 1)',
  },
  {
    name: 'an offer asks again and again for a block its holder has lost',
    file: 'services/store/offer_intake.ts',
    from: 'next += numSeen + 1;',
    to: 'next += numSeen;',
  },
  {
    name: 'room on disk that was reserved is not given back',
    file: 'services/store/disk_tier.ts',
    from: 'this.#reservedBytes -= newBytes;',
    to: '',
  },
  {
    name: 'a slot for a record that cannot be read from disk is lost',
    file: 'services/store/tiers.ts',
    from: `        if (!isThere) this.dram.releaseSlot(slot);
        else if (`,
    to: '            if (isThere && ',
  },
  {
    name: 'a fetch from a holder that hangs after its goodbye is waited for',
    file: 'services/router/cluster/cluster_view.ts',
    from: 'void clock.sleep(silenceMs, signal).then(end);',
    to: ';',
  },
  {
    name: 'a fetch from a lost holder is waited for',
    file: 'services/router/relay/attempt_blocks.ts',
    from: `this.#call.giveUp(round);
    };`,
    to: '};',
  },
  {
    name: 'the answer to a missing block is not counted as a round',
    file: 'services/router/relay/attempt_blocks.ts',
    from: 'this.#numMissing++;',
    to: '',
  },
  {
    name: 'a step begins before the one before it has the token that it takes for known',
    file: 'shared/engine/step.ts',
    from: '.fill(fromSlot(sampling.slotOf(sequence)))',
    to: '.fill(sequence.tokens.view().at(-1))',
  },
  {
    name: 'blocks of a sequence that has ended are not given back when its last step is done (R2)',
    file: 'shared/engine/step_completion.ts',
    from: `if (this.#options.isGone(sequence)) {
      this.#options.pool.release(sequence.releaseEnded());`,
    to: 'if (this.#options.isGone(sequence)) {',
  },
  {
    name: 'blocks of a sequence that has ended are given back while a step touches them',
    file: 'shared/engine/sequence.ts',
    from: "if (this.#state.kind !== 'ended' || this.cursor.isTouching)",
    to: "if (this.#state.kind !== 'ended')",
  },
  {
    name: 'a token that the host samples is not waited for',
    file: 'shared/engine/sampling_state.ts',
    from: 'return sequence.cursor.pending === 0 || !this.#isSampledByHost(sequence);',
    to: 'return true;',
  },
  {
    name: 'somebody is preempted while a step touches its blocks (K1)',
    file: 'shared/engine/scheduler.ts',
    from: 'while (plan.short && terms.isIdle)',
    to: 'while (plan.short)',
  },
  {
    name: 'a slot is given to two sequences',
    file: 'shared/engine/sampling_state.ts',
    from: 'const slot = this.#slots.pop();',
    to: 'const slot = this.#slots.at(-1);',
  },
  {
    name: 'the pages of a sequence that has ended are lent on while it keeps them',
    file: 'shared/engine/sampling_state.ts',
    from: `const taken = this.#pages.pop()!;`,
    to: 'const taken = this.#pages.at(-1);',
  },
  {
    name: 'tokens before a preemption are not counted after it',
    file: 'shared/engine/sampler.ts',
    from: `this.counts[tokens[i]!]!++;`,
    to: ';',
  },
  {
    name: 'a token that the host samples is not counted',
    file: 'shared/engine/sampling_state.ts',
    from: 'adjustments.count(token);',
    to: ';',
  },
  {
    name: 'stop tokens stay forbidden',
    file: 'shared/engine/sampling_state.ts',
    from: 'this.#executable.writeSamplerPage(pages.biasPage, token, Int32Array.of(bias));',
    to: ';',
  },
  {
    name: 'a device that hangs while it copies is not noticed',
    file: 'shared/engine/block_copies.ts',
    from: 'if (!(this.#importing ?? this.#exporting) || this.#hasCopied)',
    to: 'if (true)',
  },
  {
    name: 'who is preempted or fails over is asked for the whole prompt again, and tells what was told',
    file: 'services/router/relay/attempt_messages.ts',
    from: 'promptLogprobs.length + 1 : 0,',
    to: '2 : 0,',
  },
  {
    name: 'a further sample has the seed of the first',
    file: 'services/router/api/new_generation.ts',
    from: 'packSeed(seed + BigInt(i + 1))',
    to: 'packSeed(seed)',
  },
  {
    name: 'a further sample counts the prompt again',
    file: 'services/router/record/request_record.ts',
    from: 'counts: noCounts(),',
    to: 'counts: { ...noCounts(), promptTokens },',
  },
  {
    name: 'a sample writes into the block that its prompt fills in part and that the others read',
    file: 'shared/engine/step_submission.ts',
    from: 'if (copies.length > 0)',
    to: 'if (false)',
  },
  {
    name: 'the prompt’s blocks are not counted for its further samples (E1)',
    file: 'shared/engine/scheduler.ts',
    from: `for (const block of leader.blocks.slice(numPassed, numFull)) this.#pool.reference(block);`,
    to: '',
  },
  {
    name: 'samples that cannot be forked are forgotten',
    file: 'shared/engine/engine.ts',
    from: 'for (const sequence of step.late)',
    to: 'for (const sequence of [])',
  },
  {
    name: 'a first sample waits for ever for the others of its group',
    file: 'shared/engine/sample_groups.ts',
    from: 'group.isExpired = true;',
    to: '',
  },
  {
    name: 'a row with a mask is computed a step ahead, with the mask of the token before',
    file: 'shared/engine/sampling_state.ts',
    from: '(constraint.isReady && cursor.pending === 0)',
    to: 'constraint.isReady',
  },
  {
    name: 'the mask after a token is not waited for',
    file: 'shared/engine/token_constraint.ts',
    from: 'this.#isReady = false;',
    to: '',
  },
  {
    name: 'a grammar begins anew where an output goes on elsewhere',
    file: 'shared/engine/engine.ts',
    from: 'output: [...tokens.subarray(promptLength)],',
    to: 'output: [],',
  },
  {
    name: 'min_tokens forbids the end of a text that its mask completes',
    file: 'shared/engine/sampling_state.ts',
    from: 'constraint?.isComplete === true',
    to: 'false',
  },
  {
    name: 'an end that is ignored ends a text that its mask lets go on',
    file: 'shared/engine/token_constraint.ts',
    from: 'if (!options.stopTokenIds.includes(token))',
    to: 'if (false)',
  },
  {
    name: 'a mask is not closed when its sequence ends (R2)',
    file: 'shared/engine/engine.ts',
    from: 'sequence.constraint?.close();',
    to: '',
  },
  {
    name: 'cached blocks are hit although their rows are asked for',
    file: 'shared/engine/sequence.ts',
    from: 'return this.isReadingPrompt ? Math.min(numBlocks, Math.floor((this.#promptNext - 1) / blockSize)) : numBlocks;',
    to: 'return numBlocks;',
  },
  {
    name: 'an embedding that is a mean lacks the rows that were hit',
    file: 'shared/engine/sequence.ts',
    from: "this.request.kind === 'embed' && this.request.pooling === Pooling.MEAN",
    to: 'false',
  },
  {
    name: 'an embedding is computed on when its caller has left (R2)',
    file: 'shared/instance/embed_call.ts',
    from: 'embed(request, instance, call.signal)',
    to: 'embed(request, instance, new AbortController().signal)',
  },
  {
    name: 'a price forgets the queue',
    file: 'shared/placement/priced/instance_price.ts',
    from: 'this.queueMs = this.promptMs(prompts.tokens, prompts.pairs);',
    to: 'this.queueMs = 0;',
  },
  {
    name: 'a placement that a heartbeat has counted is counted twice',
    file: 'shared/placement/open_placements.ts',
    from: 'this.#seen = Math.max(this.#seen, last);',
    to: '',
  },
  {
    name: 'a placement counts twice until a heartbeat counts it',
    file: 'shared/placement/open_placements.ts',
    from: 'this.#work = plus(this.#work, work, 1);',
    to: 'this.#work = plus(plus(this.#work, work, 1), work, 1);',
  },
  {
    name: 'the placement of the lowest price is not taken',
    file: 'shared/placement/priced/priced_policy.ts',
    from: '(best[at - 1]?.priceMs ?? 0) > one.priceMs',
    to: '(best[at - 1]?.priceMs ?? 0) < one.priceMs',
  },
  {
    name: 'a rejected request that is placed',
    file: 'shared/placement/overload.ts',
    from: 'if (refused)',
    to: 'if (false)',
  },
  {
    name: 'a rejected request is placed when it is asked for again',
    file: 'services/router/relay/retry.ts',
    from: "if (outcome.kind === 'reject')",
    to: "if (outcome.rejection) { await pause(clock, random, 1_000, signal); continue; }\n        if (outcome.kind === 'reject')",
  },
  {
    name: 'a request that has begun is refused for its targets',
    file: 'shared/placement/overload.ts',
    from: 'if (!targets || isBegun)',
    to: 'if (!targets)',
  },
  {
    name: 'strict roles compute what could be fetched',
    file: 'shared/placement/priced/pricing.ts',
    from: 'const fetched = this.#compute(computed.price, least);',
    to: 'const fetched = computed;',
  },
  {
    name: 'blocks stay promised when their call has ended (R2)',
    file: 'services/router/relay/placed_call.ts',
    from: `    this.computed();
    this.#instance.end`,
    to: '        this.#instance.end',
  },
  {
    name: 'a step of a pipeline is begun before every block before it has its layers',
    file: 'shared/engine/arriving_step.ts',
    from: 'firstMissingFrame(cursor.submitted / blockSize, start / blockSize)',
    to: 'firstMissingFrame(cursor.submitted / blockSize, cursor.submitted / blockSize + 1)',
  },
  {
    name: 'a hit takes the recurrent state of an earlier block',
    file: 'shared/engine/recurrent_states.ts',
    from: `const slot = this.#byBlock.get(hashes[blocks - 1]!.digest);`,
    to: `const known = hashes.slice(0, blocks).flatMap(({ digest }) => this.#byBlock.get(digest) ?? []);
        const slot = this.#byBlock.has(hashes[blocks - 1].digest) ? known.at(-2) ?? known.at(-1) : undefined;`,
  },
  {
    name: 'a sequence begins with the recurrent state that its slot has from another',
    file: 'shared/engine/recurrent_states.ts',
    from: `current: from,
      isCurrentSaved: from !== undefined,`,
    to: 'current: from === undefined ? from : (this.pool.release([from]), own),\n            isCurrentSaved: false,',
  },
  {
    name: 'a recurrent state may be evicted while a step reads it (K3)',
    file: 'shared/engine/recurrent_states.ts',
    from: 'const read = held.isCurrentSaved ? from : undefined;',
    to: 'const read = undefined;\n        if (held.isCurrentSaved) this.pool.release([from]);',
  },
  {
    name: 'a step begins with the recurrent state of an earlier step',
    file: 'shared/engine/recurrent_states.ts',
    from: `held.current = current?.slot ?? held.own;
    held.isCurrentSaved = current?.isSaved ?? false;`,
    to: `held.current = held.own;
        held.isCurrentSaved = false;
        if (current?.isSaved) this.pool.release([current.slot]);`,
  },
  {
    name: 'a recurrent state is saved a token early (K1)',
    file: 'shared/engine/recurrent_states.ts',
    from: `writes.push({ rows, slot });
        if (rows === count) current = { slot, isSaved: true };`,
    to: `writes.push({ rows: Math.max(1, rows - 1), slot });
                if (rows === count) current = { slot, isSaved: true };`,
  },
  {
    name: 'a recurrent state is named before its step has returned (K1)',
    file: 'shared/engine/recurrent_states.ts',
    from: 'saves.push({ slot, blocks, tokens: this.#points.tokensSaved(sequence, blocks, held.lastSaved) });',
    to: `saves.push({ slot, blocks, tokens: this.#points.tokensSaved(sequence, blocks, held.lastSaved) });
                if (sequence.chain.hashes.length >= blocks) this.#seal(sequence, saves.at(-1), 'computed');`,
  },
  {
    name: 'blocks without a recurrent state count as a hit',
    file: 'shared/engine/scheduler.ts',
    from: 'const numHits = states.heldAt(hashes, numCached);',
    to: 'const numHits = numCached;',
  },
  {
    name: 'the recurrent state of a prompt is not copied to its other samples',
    file: 'shared/engine/recurrent_states.ts',
    from: 'if (from.length > 0)',
    to: 'if (false)',
  },
  {
    name: 'a recurrent state that comes too late for its sequence keeps its slot (R2)',
    file: 'shared/engine/recurrent_states.ts',
    from: `      this.pool.release([slot]);
      return;`,
    to: '            return;',
  },
  {
    name: 'a fetched recurrent state is taken for that of the block before',
    file: 'shared/engine/incoming_records.ts',
    from: 'states?.put(sequence, blockIndex + 1, payload)',
    to: 'states?.put(sequence, Math.max(1, blockIndex), payload)',
  },
];

export interface MutantResult {
  readonly name: string;
  /** The seed that found it, and the first thing it said. */
  readonly foundBy: number | undefined;
  readonly numSeeds: number;
  readonly what: string;
}

/** Why the mutant cannot be made; undefined: its guard stands in the source, once. */
export function mutantFault({ name, file, from }: Mutant): string | undefined {
  const path = projectPath(file);
  const numFound = existsSync(path) ? readFileSync(path, 'utf8').split(from).length - 1 : 0;
  return numFound === 1 ? undefined : `${name}: ${file} has ${numFound} times ${from}`;
}

/** Returns a module as `npm run build` makes it. */
async function builtModule(path: string, source: string): Promise<string> {
  const { moduleText } = (await import(projectPath('config/module_text.js'))) as {
    moduleText: (path: string, source: string) => Promise<string>;
  };
  return moduleText(path, source);
}

/** Runs seeds on the mutant until one fails. */
export async function hunt(mutant: Mutant, numSeeds: number): Promise<MutantResult> {
  const folder = mkdtempSync(join(tmpdir(), 'penstock-mutant-'));
  try {
    cpSync(projectPath('dist'), join(folder, 'dist'), { recursive: true });
    for (const name of ['node_modules', 'test']) symlinkSync(projectPath(name), join(folder, name));
    writeFileSync(join(folder, 'package.json'), readFileSync(projectPath('package.json')));
    assert.equal(mutantFault(mutant), undefined);
    const source = readFileSync(projectPath(mutant.file), 'utf8').replace(mutant.from, () => mutant.to);
    writeFileSync(join(folder, 'dist', mutant.file.replace(/ts$/, 'js')), await builtModule(mutant.file, source));
    const args = [
      YOUNG_SPACE,
      join(folder, 'dist/test/sim/main.js'),
      '--seeds',
      String(numSeeds),
      '--processes',
      '1',
      '--stop',
      '--json',
      join(folder, 'r'),
    ];
    const run = join(folder, 'r');
    const child = spawn(process.execPath, args, { stdio: 'ignore' });
    const [code] = (await once(child, 'exit')) as [number | null];
    if (!existsSync(run)) {
      const what = `the simulation ended with code ${code} and no report`;
      return { name: mutant.name, foundBy: undefined, numSeeds: 0, what };
    }
    const { seeds, failures } = JSON.parse(readFileSync(join(folder, 'r'), 'utf8')) as {
      seeds: number;
      failures: { seed: number; failures: string[] }[];
    };
    const [first] = failures;
    return { name: mutant.name, foundBy: first?.seed, numSeeds: seeds, what: first?.failures[0]?.split('\n')[0] ?? '' };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
