/** Faults that strike in a seed, and their end before the final checks. */
import type { Random } from '../../shared/base/random.ts';
import type { SimBusServer } from './simulated_bus.ts';
import type { Node, SimCluster } from './simulated_cluster.ts';

export class Faults {
  readonly #cluster: SimCluster;
  readonly #random: Random;
  #areOver = false;
  numFaults = 0;
  overMs = 0;

  constructor(cluster: SimCluster, random: Random) {
    this.#cluster = cluster;
    this.#random = random;
  }

  get areOver(): boolean {
    return this.#areOver;
  }

  #alive(nodes: readonly Node[]): Node | undefined {
    const alive = nodes.filter(({ process }) => !process.isDead);
    return alive[this.#random.below(alive.length)];
  }

  #after(ms: number, label: string, run: () => void): void {
    this.#cluster.simulation.at(ms, undefined, label, run);
  }

  #restart(node: Node, withinMs: number): void {
    this.#after(50 + this.#random.below(withinMs), `restart ${node.name}`, () => {
      if (node.process.isDead) this.#cluster.start(node);
    });
  }

  /** One, drawn at random. */
  strike(): void {
    if (this.#areOver) return;
    const r = this.#random;
    const { nodes, routers, bus } = this.#cluster;
    const router = r.pick(routers as [Node, ...Node[]]);
    this.numFaults++;
    const node = this.#alive(nodes);
    if (!node) {
      this.#kill(router);
      return;
    }
    const peer = r.chance(1, 2) ? router : (this.#alive(nodes) ?? router);
    const kinds: [() => void, ...(() => void)[]] = [
      () => this.#kill(node),
      () => this.#kill(node),
      () => this.#kill(r.chance(1, 3) ? router : node),
      () => {
        this.#cluster.drain(r.chance(1, 6) ? router : node);
      },
      () => this.#pause(r.chance(1, 8) ? router : node),
      () => this.#silence(node),
      () => this.#cut(node, peer),
      () => this.#partition(node, peer),
      () => this.#loseDevice(node),
      () => this.#flip(),
      () => this.#confuseBus(),
      () => this.#slowLinks(),
      () => {
        node.process.wallOffsetMs += (r.below(2_000) - 1_000) * 3_600;
        this.#cluster.simulation.note(`the wall clock of ${node.name} jumps`);
      },
      () => this.#spoilDisk(),
      () => this.#spoilDisk(),
      ...(bus ? [() => this.#loseBus(bus), () => this.#blockBus(bus, r.chance(1, 2) ? router : node)] : []),
    ];
    r.pick(kinds)();
  }

  #kill(node: Node): void {
    this.#cluster.kill(node);
    this.#restart(node, 1_500);
  }

  #pause(node: Node): void {
    const { simulation } = this.#cluster;
    const { process } = node;
    simulation.note(`${node.name} is paused`);
    simulation.pause(process);
    this.#after(200 + this.#random.below(6_000), `resume ${node.name}`, () => {
      simulation.resume(process);
    });
  }

  /** Pauses whoever is fetched from, if anybody is, for longer than the router bears. */
  #silence(node: Node): void {
    const { simulation, fabric, nodes } = this.#cluster;
    const servers = new Set(fabric.openCalls(['fetch']).map(({ server }) => server));
    const holder = this.#alive(nodes.filter(({ process }) => servers.has(process))) ?? node;
    simulation.note(`${holder.name} is silent`);
    simulation.pause(holder.process);
    this.#after(3_500 + this.#random.below(3_000), `resume ${holder.name}`, () => {
      simulation.resume(holder.process);
    });
  }

  #cut(node: Node, peer: Node): void {
    const { simulation, fabric } = this.#cluster;
    const isWhole = this.#random.chance(1, 2);
    simulation.note(`cut ${node.name} ${peer.name}${isWhole ? '' : ', their data channels only'}`);
    if (isWhole) fabric.cut(node.process, peer.process);
    else fabric.cutLinks(node.process, peer.process);
  }

  #partition(node: Node, peer: Node): void {
    const { simulation, fabric } = this.#cluster;
    const r = this.#random;
    if (peer === node) return;
    const [a, b] = [node.process, peer.process];
    const [from, to] = r.chance(1, 2) ? [a, b] : [b, a];
    const isBothWays = r.chance(1, 2);
    simulation.note(`partition ${from.name}>${to.name}`);
    fabric.partition(from, to);
    if (isBothWays) fabric.partition(to, from);
    this.#after(100 + r.below(8_000), `heal ${from.name} ${to.name}`, () => {
      fabric.heal(from, to);
      if (isBothWays) fabric.heal(to, from);
    });
  }

  #loseDevice(node: Node): void {
    const isHang = this.#random.chance(1, 3);
    const device = node.engine?.executable;
    // The number of its steps decides, so that what a seed draws stays what it was.
    const what = (device?.numRuns ?? 0) % 2 === 0 ? 'all' : 'copies';
    this.#cluster.simulation.note(`the device of ${node.name} ${isHang ? `hangs: ${what}` : 'is lost'}`);
    if (isHang) device?.hang(what);
    else device?.lose();
  }

  #flip(): void {
    const { faults } = this.#cluster.fabric;
    faults.flipsPerMillion = 200_000;
    faults.repliesPerMillion = 30_000;
    this.#after(300 + this.#random.below(2_000), 'no more flips', () => {
      faults.flipsPerMillion = 0;
      faults.repliesPerMillion = 0;
    });
  }

  #confuseBus(): void {
    const { faults } = this.#cluster.fabric;
    faults.duplicatesPerMillion = 300_000;
    faults.reordersPerMillion = 300_000;
    faults.lossesPerMillion = this.#random.pick([0, 300_000]);
    this.#after(300 + this.#random.below(2_000), 'the bus is in order', () => {
      faults.lossesPerMillion = 0;
      faults.duplicatesPerMillion = 0;
      faults.reordersPerMillion = 0;
    });
  }

  #loseBus(bus: SimBusServer): void {
    this.#cluster.simulation.note('the bus is away');
    bus.leave();
    this.#after(100 + this.#random.below(6_000), 'the bus is back', () => {
      bus.return();
    });
  }

  /** Cuts one process off. */
  #blockBus(bus: SimBusServer, { name, process }: Node): void {
    this.#cluster.simulation.note(`${name} is cut off from the bus`);
    bus.block(process);
    this.#after(100 + this.#random.below(6_000), `${name} has the bus again`, () => {
      bus.unblock(process);
    });
  }

  #slowLinks(): void {
    const { fabric } = this.#cluster;
    fabric.latencyMs = this.#random.pick([2, 30]);
    fabric.bytesPerMs = this.#random.pick([50, 100_000]);
    this.#after(500 + this.#random.below(1_500), 'links are fast again', () => {
      fabric.latencyMs = 0.2;
      fabric.bytesPerMs = this.#cluster.shape.linkBytesPerMs;
    });
  }

  #spoilDisk(): void {
    const r = this.#random;
    const store = this.#alive(this.#cluster.nodes.filter(({ role }) => role === 'store'));
    if (!store) {
      this.#flip();
      return;
    }
    const { disk } = store;
    const below = (bound: number): number => r.below(Math.max(1, bound));
    const kinds: [[string, () => void], ...[string, () => void][]] = [
      ['is full', () => (disk.writeError = 'ENOSPC: no space left on device')],
      ['is slow', () => (disk.slowness = 300)],
      [
        'rots',
        () => {
          for (let i = 0; i < 5; i++) disk.rot(below);
        },
      ],
      [
        'loses its power',
        () => {
          this.#cluster.kill(store);
          disk.powerCut(below);
          this.#restart(store, 800);
        },
      ],
      [
        'cannot be opened',
        () => {
          disk.openError = 'EACCES: permission denied';
          this.#kill(store);
        },
      ],
    ];
    const [what, happen] = r.pick(kinds);
    this.#cluster.simulation.note(`the disk of ${store.name} ${what}`);
    happen();
    this.#after(500 + r.below(2_000), 'the disk is well', () => {
      heal(store);
    });
  }

  /** Ends all faults, and restarts every dead process now and every 500 ms, as a supervisor does. */
  end(): void {
    this.#areOver = true;
    const { simulation, fabric, nodes, routers, bus } = this.#cluster;
    this.overMs = simulation.nowMs;
    fabric.healAll();
    bus?.return();
    this.#cluster.hangsAfterGoodbye = false;
    Object.assign(fabric.faults, {
      flipsPerMillion: 0,
      duplicatesPerMillion: 0,
      lossesPerMillion: 0,
      reordersPerMillion: 0,
      repliesPerMillion: 0,
    });
    fabric.latencyMs = 0.2;
    fabric.bytesPerMs = this.#cluster.shape.linkBytesPerMs;
    const all = [...routers, ...nodes];
    for (const node of all) {
      // A process that hangs after its goodbye goes on in its own time.
      if (!node.process.isHanging) simulation.resume(node.process);
      heal(node);
    }
    const revive = (): void => {
      for (const node of all) if (node.process.isDead) this.#cluster.start(node);
      simulation.at(500, undefined, 'supervisor', revive);
    };
    revive();
  }
}

function heal({ disk }: Node): void {
  disk.writeError = undefined;
  disk.openError = undefined;
  disk.slowness = 1;
}
