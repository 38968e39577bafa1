"""test_bench_vit.py - bench/vit.py with a small model on the processor, and what it makes of its measurements

The figures of such a run say nothing. It shows that all ways train, that gradients are compared, and that what is
measured ends up in the right place. The other tests have figures that are made up here.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

from ranks import SLOW, Skip, check, contains, equal, main
from gwtest import BUILD, ROOT

sys.path.insert(0, os.path.join(ROOT, "bench"))
import peers  # noqa: E402
import vit_report  # noqa: E402
from vit_report import Way  # noqa: E402

vit = importlib.import_module("vit")

GIB = 1 << 30
FIELDS = {"scene", "way", "kind", "codec", "bucket_mb", "views", "static_graph", "one_rank", "guarded", "rounded", "engine",
          "turns", "steps", "steps_per_s", "ms", "p95_ms", "exposed_ms", "to_noop", "peak_bytes", "used_bytes", "daemon_cores",
          "wire_bytes", "gradients_equal"}
HOST = [("no DDP", None), ("DDP, 1 rank", None), ("gradwire, 1 rank", "none"), ("DDP, no-op hook", None),
        ("gradwire", "none"), ("gradwire, bf16", "none"), ("DDP", None), ("DDP, fp16 hook", None), ("DDP, bf16 hook", None),
        ("DDP, PowerSGD hook", None), ("gradwire, guarded", "none"), ("gradwire, static graph", "none"),
        ("DDP, static graph", None), ("DDP, no views", None)]
NODES = [("DDP, no-op hook", None), *(("gradwire", codec) for codec in ("none", "bf16", "int8", "int4")), ("DDP", None),
         ("DDP, bf16 hook", None), ("DDP, PowerSGD hook", None)]


def a_run_on_the_processor():
    if SLOW > 1:
        raise Skip("a sanitizer's runtime comes first in a program, not in Python")
    with tempfile.TemporaryDirectory(prefix="gw-test-") as folder:
        path = os.path.join(folder, "vit.json")
        run = subprocess.run([os.path.join(ROOT, "bench", "vit.py"), "--build", BUILD, "--device", "cpu",
                              "--model", "tiny", "--batch", "2", "--buckets", "25", "--rounds", "1", "--seconds",
                              "0.02", "--json", path], capture_output=True, text=True, check=False, timeout=80)
        if "no Python here has torch" in run.stderr:
            raise Skip("no torch")
        equal(run.returncode, 0, f"exit code (it said: {run.stdout}{run.stderr})")
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    _check_run(run.stdout, found)


def _check_run(text, found):
    rows = found["rows"]
    check(all(set(row) == FIELDS for row in rows), f"fields of rows: {rows[0]}")
    absent = {(row["scene"], row["way"].rpartition(", ")[0]) for row in found["absent"]}
    for scene, ways in (("host", HOST), ("nodes", NODES)):
        there = {(row["way"], row["codec"]) for row in rows if row["scene"] == scene}
        # An old torch has its bf16 hook for NCCL only.
        lacking = [way for way in ways if way not in there and (scene, way[0]) not in absent]
        equal(lacking, [], f"ways that {scene} lacks")
    check({way for _, way in absent} <= {"DDP, bf16 hook"}, f"ways that are not there: {absent}")
    check(all(row["ms"] > 0 and row["p95_ms"] >= row["ms"] and row["steps"] >= 3 for row in rows), "times of steps")
    for row in rows:
        exchanges = row["kind"] not in ("plain", "noop") and not row["one_rank"]
        equal(row["gradients_equal"], True if exchanges else None, f"equal gradients of {row['way']}")
        contains(text, f"{row['way']} ")
    compared = {scene: (c["differing"], c["note"]) for scene, c in found["checks"].items()}
    equal(compared, {"host": (0, ""), "nodes": (0, "")}, "gradients that differ from DDP's")
    equal({row["engine"] for row in rows if row["kind"] == "gradwire" and not row["one_rank"]}, {"host"}, "engines")
    contains(text, "not two hosts", "only ViT-L/32 on GPUs counts", "Targets")
    _check_wire(found)


def _check_wire(found):
    if "limited by tbf" not in found["scenes"]["nodes"]:
        print("# the loopback is not ours alone: its bytes are not looked at")
        return
    sent = {row["codec"] or row["kind"]: row["wire_bytes"] for row in found["rows"] if row["scene"] == "nodes"}
    n_bytes = 2 * found["about"]["nodes"]["bytes"]
    for what, part in (("none", 1), ("ddp", 1), ("bf16", 0.5), ("int8", 0.254), ("int4", 0.129)):
        check(part * n_bytes < sent[what] < 2 * part * n_bytes + 50000, f"bytes of {what}: {sent[what]} of {n_bytes}")


# ---- figures that are made up ------------------------------------------------------------------------


def _result(**options):
    given = {"model": "vit-l-32", "device": "cuda", "batch": 32, "autocast": False, "accumulate": 1, "ranks": 2,
             **options}
    result = vit_report.Result(SimpleNamespace(**given))
    result.about["nodes"] = {"bytes": 10**9}
    return result


def _add(result, scene, ms, *way, peak=GIB, wire=2 * 10**9, equal_there=True, **more):
    row = vit_report.Row(scene, Way(*way, **more))
    row.step_ms, row.seconds, row.steps, row.turns = [ms] * 10, ms / 100, 10, 1
    row.peak_bytes, row.wire_bytes, row.equal = peak, wire, equal_there
    result.rows.append(row)
    return row


def _article(ours=86.0):
    result = _result()
    for scene in ("p2p off", "p2p on"):
        result.words[scene] = ""
        _add(result, scene, 83.5, "plain")
        _add(result, scene, 84.5, "ddp", alone=True)
        _add(result, scene, 84.5, "gradwire", 25, "none", alone=True)
        for cap in (25, 100):
            _add(result, scene, 84.8 + cap / 1000, "noop", cap)
            _add(result, scene, 94.0 + cap / 1000, "ddp", cap)
            _add(result, scene, ours + cap / 1000, "gradwire", cap, "none")
    result.words["nodes"] = ""
    for ms, *way in ((85, "noop"), (1085, "ddp"), (1000, "gradwire", 25, "none"), (585, "gradwire", 25, "bf16"),
                     (285, "gradwire", 25, "int8")):
        _add(result, "nodes", ms, *way)
    result.checks = {"p2p off": {"parameters": 300, "differing": 0, "note": ""}}
    return result


def _verdicts(result):
    return {target.label: target.verdict() for target in vit_report.targets(result)}


def _missed(result):
    return [label for label, verdict in _verdicts(result).items() if verdict == "MISSED"]


def targets_are_judged():
    result = _article()
    equal(_missed(result), [], "what is missed")
    equal([label for label, verdict in _verdicts(result).items() if verdict == "not measured"],
          ["p2p off, autocast, batch 128: gradwire's step, of the best of DDP's own",
           "processor, 4 ranks, the demo's network: times as fast as DDP over Gloo"], "what is not measured")
    row = result.best("p2p off", "gradwire")
    check(abs(row.exposed_ms - 1.2) < 1e-9 and row.way.cap == 25, f"exposed: {row.exposed_ms} ms at {row.way.cap} MB")
    equal(result.best("p2p off", "plain").exposed_ms, None, "exposed communication where there is none")


def another_model_is_held_against_no_figure():
    result = _article()
    result.options.model = "tiny"
    equal([label.split()[0] for label, verdict in _verdicts(result).items() if verdict == "met"], ["ways", "gradients"],
          "what a small model shows")


def what_is_missed_is_said():
    result = _article(ours=88.0)
    result.checks["p2p off"]["differing"] = 2
    result.best("nodes", "gradwire", codec="int8").step_ms = [500.0]
    result.best("p2p on", "gradwire").equal = False
    result.best("p2p on", "gradwire").peak_bytes += 512
    equal(_missed(result), ["p2p off, fp32: gradwire's step, of the no-op hook's",
                            "p2p on, fp32: gradwire's step, of the no-op hook's",
                            "peak GPU memory of a trainer, of that with DDP with bucket views",
                            "nodes, int8: DDP's exposed communication, of gradwire's",
                            "ways of gradwire after which gradients differ between ranks",
                            "gradients that differ between gradwire none and DDP, 2 ranks"], "what is missed")
    contains(vit_report.table_text(result), " NO\n")


def autocast_is_held_against_the_best_of_ddp():
    result = _result(autocast=True, batch=128)
    result.words["p2p off"] = ""
    for kind, ms in (("noop", 80), ("ddp", 100), ("powersgd", 90)):
        _add(result, "p2p off", ms, kind)
    _add(result, "p2p off", 91, "gradwire", 25, "none")
    equal(_missed(result), ["p2p off, autocast, batch 128: gradwire's step, of the best of DDP's own"], "missed")


def a_peer_that_leaves_the_network_out_is_no_measure():
    result = _article()
    result.best("nodes", "ddp").wire_bytes = 10**9
    verdicts = _verdicts(result)
    for codec in ("bf16", "int8"):
        equal(verdicts[f"nodes, {codec}: DDP's exposed communication, of gradwire's"], "not measured", codec)
    contains(vit_report.targets_text(result), "it went another way")


def nothing_exposed_gives_no_ratio():
    result = _article()
    result.best("nodes", "gradwire", codec="bf16").step_ms = [84.0]
    equal(_verdicts(result)["nodes, bf16: DDP's exposed communication, of gradwire's"], "not measured", "bf16")
    equal(_missed(result), [], "what is missed")


class _World:
    """In place of the processes: gradients by kind of way, and ways that end them."""

    def __init__(self, deadly=(), **gradients):
        self.deadly, self.gradients, self.kind = deadly, gradients, None
        self.daemons, self.loopback, self.about = [], None, {"bytes": 100}

    def tell(self, command, **what):
        self.kind = what.get("kind", self.kind)
        if self.kind in self.deadly:
            raise peers.PeerError(f"{self.kind} was too much")
        digests = self.gradients.get(self.kind, [[1], [1]])
        answers = {"make": [{"ms": 1.0}] * 2, "gradients": [{"digests": d} for d in digests], "drop": [{}] * 2,
                   "time": [{"ms": [1.0] * what.get("steps", 1), "seconds": 1.0, "peak_bytes": None, "used_bytes": None,
                             "digest": ""}] * 2}
        return answers[command]

    def cpu_seconds(self):
        return 0.0

    def engine(self):
        return "host"

    def explain(self):
        return ""

    def close(self):
        pass


def _bench(world, monkey=None):
    options = SimpleNamespace(device="cpu", gpus=0, ranks=2, model="tiny", buckets=[25], node_buckets=[25],
                              accumulate=1, limit=60, rounds=1, few=False, seconds=0.01, batch=8, autocast=False)
    bench = vit.Bench(options)
    bench.scene, bench.world, bench.folder = vit.Scene("host", options), world, tempfile.mkdtemp(prefix="gw-test-")
    bench.start_world = monkey or bench.start_world
    return bench


def _checked(**gradients):
    bench = _bench(_World(**gradients))
    with contextlib.redirect_stderr(io.StringIO()):
        bench.check()
    os.rmdir(bench.folder)
    return bench.result.checks["host"]


def few_ways_are_those_between_the_ranks_of_a_plain_ddp():
    options = _bench(_World()).options
    options.few = True
    equal([way.title() for way in vit.Scene("host", options).ways],
          ["DDP, no-op hook", "gradwire", "gradwire, bf16", "DDP", "DDP, fp16 hook", "DDP, bf16 hook"], "the ways")


def gradients_that_differ_are_counted():
    own = [[5, 6, 7], [8, 9, 7]]
    equal(_checked(ddp=[[1, 2, 3]] * 2, gradwire=[[1, 2, 3]] * 2, noop=own)["differing"], 0, "the same")
    equal(_checked(ddp=[[1, 2, 3]] * 2, gradwire=[[1, 0, 3], [1, 2, 3]], noop=own)["differing"], 1, "one on one rank")
    nothing = _checked(ddp=[[1, 2, 3]] * 2, gradwire=[[1, 2, 3]] * 2, noop=[[1, 2, 3]] * 2)
    equal(nothing["differing"], None, "where ranks do not differ before")
    contains(nothing["note"], "shows nothing")


def a_way_that_ends_the_processes_ends_nothing_else():
    restarts = []

    def again():
        restarts.append(1)
        bench.world = _World(deadly=("fp16",))

    bench = _bench(_World(deadly=("fp16",)), again)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        bench.rounds(0)
    os.rmdir(bench.folder)
    equal(len(restarts), 1, "restarts")
    equal(list(bench.result.absent.values()), ["fp16 was too much"], "ways that are not there")
    equal(len(bench.result.rows), len(HOST) - 1, "ways that are")
    check(not bench.result.failed, "it is not ours")


if __name__ == "__main__":
    main(globals(), 90)
