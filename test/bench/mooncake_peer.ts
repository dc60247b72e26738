/**
 * Mooncake's store (PyPI) over TCP: a master, a process that holds the memory, and one that puts and gets, so that every byte crosses
 * between two processes as ours does.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pythonWith } from './python_peer.ts';

const PACKAGE = 'mooncake-transfer-engine-non-cuda';
const VERSION = '0.3.13.post1';

export const mooncakeName = `Mooncake's store (${PACKAGE} ${VERSION}), TCP`;

interface Rate {
  /** Bytes, or keys. */
  readonly perSecond: number;
  /** CPU-seconds of all its processes for each. */
  readonly cpu: number;
}

export interface MooncakeFigures {
  readonly put: Rate;
  readonly get: Rate;
  readonly getInto: Rate;
  readonly batchGetInto: Rate;
}

const SCRIPT = `
import json, os, signal, socket, subprocess, sys, time, ctypes
from mooncake.store import MooncakeDistributedStore
size, count, ms = (int(a) for a in sys.argv[1:4])
script = os.path.abspath(__file__)
def free_port():
    s = socket.socket(); s.bind(("127.0.0.1", 0)); p = s.getsockname()[1]; s.close(); return p
rpc, http, metrics = free_port(), free_port(), free_port()
def own(name, segment):
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1:%d" % free_port(), "http://127.0.0.1:%d/metadata" % http, segment, 256 << 20, "tcp", "", "127.0.0.1:%d" % rpc)
    if code != 0: raise SystemExit("setup of %s: %d" % (name, code))
    return store
if len(sys.argv) > 4:
    rpc, http = int(sys.argv[4]), int(sys.argv[5])
    store = own("holder", 3 * size * count + (64 << 20))
    print("ready", flush=True)
    sys.stdin.readline()
    os._exit(0)
master = subprocess.Popen([os.path.join(os.path.dirname(sys.executable), "mooncake_master"), "--rpc_port=%d" % rpc, "--enable_http_metadata_server=true", "--http_metadata_server_port=%d" % http, "--metrics_port=%d" % metrics], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
holder = None
try:
    time.sleep(2)
    holder = subprocess.Popen([sys.executable, script, sys.argv[1], sys.argv[2], sys.argv[3], str(rpc), str(http)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while "ready" not in holder.stdout.readline(): pass
    store = own("client", 0)
    data = bytes(size)
    keys = ["k%d" % i for i in range(count)]
    def cpu(pids):
        total = 0
        for pid in pids:
            f = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
            total += int(f[11]) + int(f[12])
        return total / os.sysconf("SC_CLK_TCK")
    pids = [os.getpid(), holder.pid, master.pid]
    def timed(run, each):
        run()
        start, before, total = time.perf_counter(), cpu(pids), 0
        while (time.perf_counter() - start) * 1000 < ms:
            run(); total += each
        seconds = time.perf_counter() - start
        return {"perSecond": total / seconds, "cpu": (cpu(pids) - before) / total}
    def put():
        for key in keys:
            code = store.put(key, data)
            if code != 0: raise SystemExit("put: %d" % code)
    # Once to warm up; a key is put once.
    for i in range(min(count, 8)): store.put("w%d" % i, data)
    start, before = time.perf_counter(), cpu(pids)
    put()
    seconds = time.perf_counter() - start
    out = {"put": {"perSecond": size * count / seconds, "cpu": (cpu(pids) - before) / (size * count)}}
    def get():
        for key in keys:
            if len(store.get(key)) != size: raise SystemExit("get")
    out["get"] = timed(get, size * count)
    buffer = ctypes.create_string_buffer(size * count)
    store.register_buffer(ctypes.addressof(buffer), size * count)
    def get_into():
        for i, key in enumerate(keys):
            if store.get_into(key, ctypes.addressof(buffer) + i * size, size) != size: raise SystemExit("get_into")
    out["getInto"] = timed(get_into, size * count)
    def batch():
        got = store.batch_get_into(keys, [ctypes.addressof(buffer) + i * size for i in range(count)], [size] * count)
        if any(n != size for n in got): raise SystemExit("batch_get_into")
    out["batchGetInto"] = timed(batch, size * count)
    print(json.dumps(out), flush=True)
finally:
    if holder: holder.kill()
    master.kill()
    os._exit(0)
`;

/** @throws Error when it cannot be installed or does not run: its modules need Debian's libibverbs1. */
export function measureMooncake(
  {
    recordBytes,
    count,
    measureMs,
  }: { readonly recordBytes: number; readonly count: number; readonly measureMs: number },
  print: (line: string) => void,
): MooncakeFigures {
  const python = pythonWith(PACKAGE, VERSION, print);
  const folder = mkdtempSync(join(tmpdir(), 'penstock-mooncake-'));
  try {
    const file = join(folder, 'peer.py');
    writeFileSync(file, SCRIPT);
    const args = [file, ...[recordBytes, count, measureMs].map(String)];
    const output = execFileSync(python, args, {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: 180_000,
    });
    const line = output.split('\n').find((one) => one.startsWith('{'));
    if (line === undefined) throw new Error('Mooncake measured nothing; does it find libibverbs1?');
    return JSON.parse(line) as MooncakeFigures;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
