/**
 * NVIDIA Dynamo's radix tree (Rust, from PyPI) with the same chains. It takes events as bytes of JSON, made before they are timed, and
 * answers through a queue of its own: a time ends with a question that waits for all that was told before.
 */
import { execFileSync } from 'node:child_process';
import { pythonWith } from './python_peer.ts';

const PACKAGE = 'ai-dynamo-runtime';
const VERSION = '1.6.1';

export interface DynamoFigures {
  /** M blocks a second. */
  readonly fill: number;
  readonly lookUp: number;
  readonly ingest: number;
}

export const dynamoName = `Dynamo's RadixTree (${PACKAGE} ${VERSION})`;

const SCRIPT = `
import json, random, sys, time
from dynamo._core import RadixTree
chains, length, holders = (int(a) for a in sys.argv[1:4])
random_source = random.Random(7)
keys = [[random_source.getrandbits(63) for _ in range(length)] for _ in range(chains)]
def event(data): return json.dumps({"event_id": 1, "data": data, "dp_rank": 0}).encode()
def stored(chain): return event({"stored": {"parent_hash": None, "blocks": [{"block_hash": k, "tokens_hash": k} for k in chain]}})
def removed(chain): return event({"removed": {"block_hashes": chain}})
tree = RadixTree()
told = [stored(chain) for chain in keys]
start = time.perf_counter()
for i, one in enumerate(told):
    tree.apply_event(i % (holders // 2), one)
    tree.apply_event(holders // 2 + i % (holders // 2), one)
tree.find_matches(keys[0])
fill = 2 * chains * length / (time.perf_counter() - start)
asked = [random_source.randrange(chains) for _ in range(2000)]
start = time.perf_counter()
for i in asked: tree.find_matches(keys[i])
look_up = len(asked) * length / (time.perf_counter() - start)
some = random_source.sample(range(chains), min(500, chains))
events = [(removed(keys[i]), told[i]) for i in some]
start = time.perf_counter()
for i, (gone, come) in zip(some, events):
    tree.apply_event(i % (holders // 2), gone)
    tree.apply_event((i + 1) % (holders // 2), come)
tree.find_matches(keys[0])
ingest = 2 * len(some) * length / (time.perf_counter() - start)
print(json.dumps({"fill": fill / 1e6, "lookUp": look_up / 1e6, "ingest": ingest / 1e6}))
`;

export function measureDynamo(
  { numChains, chainBlocks, numHolders }: { numChains: number; chainBlocks: number; numHolders: number },
  print: (line: string) => void,
): DynamoFigures {
  const python = pythonWith(PACKAGE, VERSION, print);
  const args = ['-c', SCRIPT, ...[numChains, chainBlocks, numHolders].map(String)];
  const output = execFileSync(python, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
  return JSON.parse(output) as DynamoFigures;
}
