#!/usr/bin/env python3
"""Trains ViT-L/32 on synthetic data with DDP in all its ways and with gradwire, in turns, and says what a step takes.

Scenes, each with processes of its own, in which one module is wrapped anew for each way:

  p2p off  one daemon, a rank a GPU; NCCL goes through host memory, as on hosts without NVLink
  nodes    two daemons on this machine as two nodes, one GPU each, over TCP on the loopback; NCCL over sockets there.
           Not two hosts. In a network namespace the loopback is limited to 10 Gbit/s, where root and tc can do that
  p2p on   as p2p off, with whatever NCCL finds between the GPUs
  host     in place of p2p off and on where there are not two GPUs, or with --device cpu, over Gloo

In the first round all ways take part; in the others of those that differ by the bucket size only the fastest.

  time     of a step: from the end of one to the end of the next on rank 0; median and 95th percentile
  exposed  that, less the step of DDP with a hook that does nothing, at its best bucket size
  peak     of torch's allocator on rank 0, while steps are timed; of the turn where it was least
  cores    CPU time of the daemons a second
  bf16     of gradwire's ways: gradients are rounded to it before they leave the GPU (reduce_dtype), as by DDP's bf16 hook
  wire     bytes on the loopback a step, of both nodes together
  equal    whether the gradients of all ranks are the same bit for bit
"""
import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the source tree stays clean

import peers  # noqa: E402
import vit_report  # noqa: E402
import vit_world  # noqa: E402
from console import Progress, parse_list  # noqa: E402
from vit_report import Way  # noqa: E402

CLOSE_SECONDS = 20
RATE = 10**10
STEPS_LEAST, STEPS_MOST = 3, 100
WARM, WARM_NODES = 4, 3  # steps before those that count: DDP cuts its buckets anew, PowerSGD begins after two
RESTARTS = 2  # of a scene, after ways that its processes did not survive
FIRST_BUCKET_BYTES = 1 << 20  # DDP's
CODECS = ["none", "bf16", "int8", "int4"]
BATCHES = {"vit-l-32": 32, "tiny": 8, "mlp": 64}


class OutOfTime(Exception):
    """The whole run has taken longer than it may."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    build = os.environ.get("BUILD") or os.path.join(os.path.dirname(peers.HERE), "build")
    sizes = parse_list(int, "sizes are whole numbers of MB, as 25,100,2000")
    option = parser.add_argument
    option("--build", default=build, help="folder with the programs (default: $BUILD or build)")
    option("--device", choices=["cuda", "cpu"], default="cuda")
    option("--model", choices=list(BATCHES), default="vit-l-32", help="tiny and mlp (the demo's): for processors")
    option("--batch", type=int, help="a rank (default: 32; tiny: 8; mlp: 64)")
    option("--autocast", action="store_true", help="forward in bf16")
    option("--accumulate", type=int, default=1, metavar="N", help="exchange after N backward passes (default: 1)")
    option("--buckets", type=sizes, default="25,100,2000", help="DDP's bucket_cap_mb (default: 25,100,2000)")
    option("--node-buckets", type=sizes, default="25", help="the same between nodes (default: 25)")
    option("--scenes", type=parse_list({s: s for s in ("host", "nodes")}.__getitem__, "scenes are host,nodes"),
           default="host,nodes", help="host: p2p off and on (default: both)")
    option("--p2p", type=parse_list({"on": "on", "off": "off"}.__getitem__, "on, off or both"), default="off,on",
           help="whether NCCL may copy from GPU to GPU (default: off,on)")
    option("--ranks", type=int, help="on one node (default: one a GPU, 2 without)")
    option("--few", action="store_true", help="leave out PowerSGD and what is not between the ranks of a plain DDP: "
           "world size 1, static graphs, gradients apart from buckets, guards")
    option("--rounds", type=int, default=3, help="(default: 3)")
    option("--seconds", type=float, default=1.0, help="of steps that count, in a turn (default: 1)")
    option("--limit", type=int, default=300, metavar="SECONDS", help="the run ends after that (default: 300)")
    option("--gradwired", action="append", default=[], metavar="ARGUMENT",
           help="a further argument of the daemons, as --gradwired=--device.window=16; may be repeated")
    option("--json", metavar="PATH", help="default: BUILD/bench/vit.json")
    options = parser.parse_args()
    if options.accumulate < 1 or options.rounds < 1 or options.limit < 10:
        parser.error("--accumulate and --rounds are at least 1, --limit 10")
    if options.ranks is not None and not 2 <= options.ranks <= 64:
        parser.error("--ranks: 2 to 64")
    options.batch = options.batch or BATCHES[options.model]
    options.json = options.json or os.path.join(options.build, "bench", "vit.json")
    return options


# ---- scenes ---------------------------------------------------------------------------------------


class Scene:
    def __init__(self, name, options, nodes=1, **environment):
        self.name, self.nodes, self.environment = name, nodes, environment
        self.ranks = 2 if nodes > 1 else options.ranks
        cuda = options.device == "cuda"
        self.devices = [f"cuda:{rank % options.gpus}" if cuda else "cpu" for rank in range(self.ranks)]
        self.shared = cuda and options.gpus < self.ranks
        self.backend = "nccl" if cuda and not self.shared else "gloo"
        self.caps = options.node_buckets if nodes > 1 else options.buckets
        self.warm = WARM_NODES if nodes > 1 else WARM
        self.accumulates = options.accumulate > 1
        self.ways = self.node_ways() if nodes > 1 else self.host_ways(options)

    def host_ways(self, options):
        first = self.caps[0]
        ways = [Way("plain"), Way("ddp", first, alone=True), Way("gradwire", first, "none", alone=True)]
        for cap in self.caps:
            ways += [Way("noop", cap), Way("gradwire", cap, "none"), Way("gradwire", cap, "none", rounded=True)]
            ways += [Way(kind, cap) for kind in vit_report.OWN]
        ways += [Way("gradwire", first, "none", guarded=True), Way("gradwire", first, "none", static=True),
                 Way("ddp", first, static=True), Way("ddp", first, views=False)]
        return [way for way in ways if way.is_plain_ddp()] if options.few else ways

    def node_ways(self):
        ways = []
        for cap in self.caps:
            ways += [Way("noop", cap), *(Way("gradwire", cap, codec) for codec in CODECS)]
            ways += [Way(kind, cap) for kind in ("ddp", "bf16", "powersgd")]
        return ways

    def impossible(self, way, n_bytes):
        """Why a way is left out here, for a model of so many bytes; None: it is not."""
        if self.shared and way.kind in vit_report.OWN and not way.alone:
            return "NCCL refuses two ranks on one GPU"
        if self.backend == "gloo" and way.kind == "powersgd" and n_bytes > FIRST_BUCKET_BYTES:
            return "over Gloo it may hang with more than one bucket"
        if self.accumulates and way.static:
            return "torch has no no_sync with a static graph"
        return None


def scenes_of(options):
    """In the order of what is wanted most: time may run out."""
    two_gpus = options.device == "cuda" and options.gpus >= 2
    settings = {"on": {}, "off": {"NCCL_P2P_DISABLE": "1"}}
    host = []
    if "host" in options.scenes:
        host = [Scene(f"p2p {p2p}", options, **settings[p2p]) for p2p in options.p2p] if two_gpus else \
            [Scene("host", options)]
    nodes = [Scene("nodes", options, 2, **vit_world.SOCKETS)] if "nodes" in options.scenes else []
    return host[:1] + nodes + host[1:]


# ---- the run --------------------------------------------------------------------------------------


def name_of(way):
    return f"{way.title()}{' ' + way.codec if way.codec else ''}, {way.cap} MB"


class Bench:
    def __init__(self, options):
        self.options, self.progress = options, Progress()
        self.end = time.monotonic() + options.limit
        self.result = vit_report.Result(options)
        self.world = self.scene = self.loopback = self.folder = None
        self.n_worlds = 0

    def say(self, text):
        self.progress.say(text)

    def show(self, text):
        self.progress.clear()
        print(text, flush=True)

    def start(self):
        options = self.options
        self.say("looking for torch")
        options.python, found = vit_world.find_torch()
        options.gpus = found["gpus"]
        self.result.torch = found["torch"]
        if options.device == "cuda" and not options.gpus:
            raise peers.PeerError("torch finds no GPU here; --device cpu --model tiny shows what this does")
        if options.device == "cuda" and options.gpus == 1:
            self.result.notes.append("there is one GPU, which two ranks share: DDP over NCCL is left out, and so are "
                                     "p2p off and p2p on; what is measured cannot be held against the targets")
        options.ranks = options.ranks or max(2, options.gpus if options.device == "cuda" else 2)

    def leave_out(self, way, why):
        """It should have worked. Without gradwire this is no benchmark of it."""
        self.result.absent[self.scene.name, name_of(way)] = why
        if way.kind == "gradwire":
            self.result.fail(f"{self.scene.name}: gradwire is left out: {why}")

    def make(self, way, warm):
        """Whether all ranks have it now."""
        options = {key: getattr(way, key)
                   for key in ("kind", "cap", "codec", "views", "static", "alone", "guarded", "rounded")}
        answers = self.world.tell("make", warm=warm, **options)
        why = next((answer["absent"] for answer in answers if "absent" in answer), None)
        if why is not None:
            self.leave_out(way, why)
            self.world.tell("drop")
            return None
        return answers[0]["ms"]

    def turn(self, way):
        """Steps of one way. Returns its row, or None where it is not there."""
        ms = self.make(way, self.scene.warm)
        if ms is None:
            return None
        steps = min(max(STEPS_LEAST, int(self.options.seconds * 1e3 / max(ms, 0.01))), STEPS_MOST)
        row = self.result.row(self.scene.name, way)
        if row is None:
            row = vit_report.Row(self.scene.name, way)
            self.result.rows.append(row)
        loopback = self.world.loopback
        sent, cpu, begin = loopback.sent() if loopback else 0, self.world.cpu_seconds(), time.monotonic()
        answers = self.world.tell("time", steps=steps)
        cores = (self.world.cpu_seconds() - cpu) / (time.monotonic() - begin)
        first = answers[0]
        row.step_ms += first["ms"]
        row.seconds += first["seconds"]
        row.steps, row.turns = row.steps + steps, row.turns + 1
        row.used_bytes = first["used_bytes"]
        if first["peak_bytes"] is not None:  # the least: a process keeps more from turn to turn, of whatever way
            row.peak_bytes = min(first["peak_bytes"], row.peak_bytes or first["peak_bytes"])
        row.wire_bytes = (loopback.sent() - sent) / steps if loopback else None
        if way.exchanges():
            row.equal = row.equal is not False and len({answer["digest"] for answer in answers}) == 1
        if way.kind == "gradwire" and not way.alone:
            row.cores = cores if row.cores is None else max(row.cores, cores)
            row.engine = self.world.engine()
            if row.turns == 1 and self.options.device == "cuda" and self.scene.name not in self.result.daemon_mib:
                self.result.daemon_mib[self.scene.name] = self.world.device_mib()
        self.world.tell("drop")
        return row

    def gradients(self, way):
        """The digests of all ranks, or None."""
        if self.make(way, 0) is None:
            return None
        answers = self.world.tell("gradients")
        self.world.tell("drop")
        return [answer["digests"] for answer in answers]

    def check(self):
        """Whether gradwire gives DDP's gradients, bit for bit. Parameters are not changed meanwhile."""
        cap = self.scene.caps[0]
        if self.scene.ranks != 2:
            return
        self.say(f"{self.scene.name}: the gradients of DDP and of gradwire")
        ways = [Way("ddp", cap), Way("gradwire", cap, "none"), Way("noop", cap)]
        theirs, ours, alone = (self.gradients(way) for way in ways)
        if None in (theirs, ours, alone):
            return
        differing, note = sum(a != b for mine, his in zip(ours, theirs) for a, b in zip(mine, his)), ""
        if alone[0] == alone[1] or alone[0] == theirs[0]:
            differing, note = None, "without an exchange the gradients are the same too, so this shows nothing"
        elif differing and self.gradients(ways[0]) != theirs:
            differing, note = None, "DDP's own gradients differ from one time to the next, so this cannot be told"
        self.result.checks[self.scene.name] = {"parameters": len(ours[0]), "differing": differing, "note": note}

    def rounds(self, until):
        """All ways; then those that go on, as long as there is time."""
        scene, ways = self.scene, []
        for way in self.scene.ways:
            why = scene.impossible(way, self.world.about["bytes"])
            if why is None:
                ways.append(way)
            else:
                self.result.absent[scene.name, name_of(way)] = why
        for number in range(1, self.options.rounds + 1):
            begin, n_ways = time.monotonic(), len(ways)
            for way in list(ways if number % 2 else reversed(ways)):
                self.say(f"{scene.name}, round {number} of {self.options.rounds}: {name_of(way)}")
                if not self.survives(way, lambda way=way: self.turn(way)):
                    ways.remove(way)
            ways = self.going_on(ways)
            now = time.monotonic()
            if number < self.options.rounds and now + (now - begin) * len(ways) / n_ways > until:
                self.result.notes.append(f"{scene.name}: {number} of {self.options.rounds} rounds: time was short")
                return

    def going_on(self, ways):
        best = {}
        for way in ways:
            row = self.result.row(self.scene.name, way)
            if row and (way.family() not in best or row.ms() < best[way.family()][0]):
                best[way.family()] = row.ms(), way
        return [way for way in ways if best.get(way.family(), (0, None))[1] is way]

    def survives(self, way, work):
        """Whether the processes live after work(). Others take their place if not, for the ways that are left."""
        try:
            work()
            return True
        except peers.PeerError as why:
            self.show(f"# {self.scene.name}, {name_of(way)}: {why}")
            if way.kind == "gradwire":
                self.show(self.world.explain())
            self.leave_out(way, str(why).splitlines()[0])
            self.close()
            if self.n_worlds > RESTARTS:
                raise
            self.start_world()
            return False

    def start_world(self):
        self.say(f"{self.scene.name}: daemons and {self.scene.ranks} ranks come together")
        self.n_worlds += 1
        folder = os.path.join(self.folder, str(self.n_worlds))
        os.mkdir(folder)
        self.world = vit_world.World(self.options, self.scene, folder, self.loopback)

    def run_scene(self, until):
        scene, result, loopback = self.scene, self.result, self.loopback
        result.words[scene.name] = ""
        self.start_world()
        about = result.about[scene.name] = self.world.about
        words = f"{scene.ranks} ranks on {about['device']}, " + (f"NCCL {about['nccl']}" if about["nccl"] else "Gloo")
        if about["nccl"]:
            words += "".join(f", {name}={value}" for name, value in scene.environment.items())
        if loopback:
            words += f"; two daemons on one machine, not two hosts, over TCP on the loopback, {loopback.words}"
        result.words[scene.name] = words
        self.show(f"# {scene.name}: {words}")
        self.survives(Way("gradwire", scene.caps[0], "none"), self.check)
        self.rounds(until)

    def run(self):
        self.start()
        scenes = scenes_of(self.options)
        for number, scene in enumerate(scenes):
            until = time.monotonic() + (self.end - time.monotonic()) / (len(scenes) - number)
            with contextlib.ExitStack() as stack:
                self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gwbench-"))
                self.loopback = stack.enter_context(vit_world.Loopback(RATE)) if scene.nodes > 1 else None
                stack.callback(self.close)
                self.scene, self.n_worlds = scene, 0
                try:
                    self.run_scene(until)
                except peers.PeerError as why:  # the other scenes have processes of their own
                    self.result.fail(f"{scene.name}: {why}")

    def close(self):
        world, self.world = self.world, None
        if world is None:
            return
        for daemon in world.daemons:
            if daemon.process.poll() is not None:
                self.result.fail(f"a gradwired has ended by itself, with {daemon.process.returncode}")
        world.close()


def finish(result, options):
    """Prints and writes what was measured, all of it or not."""
    about = next(iter(result.about.values()), None)
    if about:
        tf32 = ", ".join(f"TF32 {'on' if about[key] else 'off'} for {what}" for key, what in
                         (("tf32_products", "matrix products"), ("tf32_convolutions", "convolutions")))
        tf32 = tf32 if options.device == "cuda" else f"{about['threads']} threads"
        print(f"# {options.model}: {about['parameters'] / 1e6:.1f} M parameters, batch {options.batch} a rank, "
              f"{'bf16 autocast' if options.autocast else 'fp32'}, {tf32}, {options.accumulate} backward a step, SGD; "
              f"torch {result.torch}")
    print(vit_report.table_text(result))
    print(vit_report.targets_text(result))
    for note in result.notes:
        print(f"bench: {note}", file=sys.stderr)
    vit_report.write_json(options.json, result)
    print(f"wrote {options.json}", flush=True)
    wrong = any(row.equal is False for row in result.rows if row.way.kind == "gradwire") or \
        any(check["differing"] for check in result.checks.values())
    if wrong:
        print("results of gradwire were WRONG", file=sys.stderr)
    return 1 if wrong or not result.rows or result.failed else 0


def main():
    options = arguments()

    def out_of_time(*_):
        signal.alarm(CLOSE_SECONDS)  # for what ends the processes
        raise OutOfTime

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is shown
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(options.limit)
    bench = Bench(options)
    result = bench.result
    try:
        bench.run()
    except OutOfTime:
        result.fail(f"the run was ended after {options.limit} s")
    except peers.PeerError as why:
        result.fail(str(why))
    except FileNotFoundError as why:
        result.fail(f"{why.filename} is missing: run `make programs`, or give --build")
    except KeyboardInterrupt:
        result.fail("interrupted")
    signal.alarm(0)
    bench.progress.clear()
    return finish(result, options)


if __name__ == "__main__":
    sys.exit(main())
