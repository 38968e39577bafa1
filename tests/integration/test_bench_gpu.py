"""test_bench_gpu.py - what `make bench-gpu` makes of its measurements, with ranks that give answers made up here

No GPU takes part: gradwired, gpu_limit and gpu_rank are replaced by a script that speaks their side of the control
socket. It shows that figures end up in the right place, and that a peer that fails or hangs ends nothing else. The last
test has the real programs with the simulated driver, which has no kernels: so no trainer computes in it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from ranks import check, contains, equal, main
from gwtest import BUILD, ROOT, Skip

sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu_report  # noqa: E402

MIB = 1 << 20
STAND_IN = '''
import json, os, socket, sys, time
name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
script = json.loads(os.environ["STAND_IN"])
if name == "gradwired":
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.path.join(args[args.index("--socket-dir") + 1], "client.sock"))
    listener.listen(8)
    time.sleep(60)
    sys.exit()
peer = "limit" if name == "gpu_limit" else args[0] + ("-host" if os.environ.get("NCCL_P2P_DISABLE") == "1" else "")
rank = 0 if peer == "limit" else int(args[4])
control = socket.socket(socket.AF_UNIX)
control.connect(args[0] if peer == "limit" else args[1])
stream = control.makefile("rw")
devices = [{"name": "Card", "uuid": "GPU-%d" % i, "bus": "0000:0%d:00.0" % i, "bytes": 1 << 37} for i in
           range(script["gpus"])]
print("hello", rank, json.dumps(devices) if peer == "limit" else "ab" * 128, file=stream, flush=True)
load, mine = "none", script["peers"].get(peer, {})
for line in stream:
    words = line.split()
    if words[0] == mine.get("fails_at"):
        print("error the sky fell", file=stream, flush=True)
        sys.exit(1)
    if words[0] == mine.get("hangs_at"):
        time.sleep(60)
    answer = {}
    if words[0] == "copy":
        answer = {"both_gbps": 36.5, "out_gbps": 50.0, "in_gbps": 49.0, "bytes": 1 << 30}
    elif words[0] == "load":
        load = words[1]
    elif words[0] == "time":
        gbps = mine["gbps"]
        answer = {"ns": [int(10000 + int(words[1]) / gbps)] * int(words[2])}
    elif words[0] == "flow":
        size, rate = int(words[1]), float(words[4])
        gbps = min(mine["gbps"], rate / 1e9 or 1e9)
        kernels = 1000 * (1 - (mine["loss"] * gbps if size else 0)) if load != "none" else 0
        answer = {"ops": 100 if size else 0, "ns": int(size * 100 / gbps) or 10**9, "all": 120, "kernels_per_s": kernels}
    elif words[0] == "check":
        answer = {"wrong": mine.get("wrong", 0), "digest": mine.get("digests", ["0", "0"])[rank % 2]}
    print("ok", json.dumps(answer), file=stream, flush=True)
'''
GOOD = {"gradwire": {"gbps": 32.0, "loss": 0.0001}, "nccl": {"gbps": 270.0, "loss": 0.0005},
        "nccl-host": {"gbps": 27.0, "loss": 0.005}}


def _bench(peers, gpus=2, arguments=("--quick",), expect=0):
    """One run; returns what it printed, and the JSON that it wrote."""
    folder = tempfile.mkdtemp(prefix="gw-test-")
    try:
        os.makedirs(f"{folder}/bench")
        for program in ("gradwired", "bench/gpu_limit", "bench/gpu_rank"):
            with open(f"{folder}/{program}", "w", encoding="utf-8") as file:
                file.write(f"#!{sys.executable} -B\n{STAND_IN}")
            os.chmod(f"{folder}/{program}", 0o755)
        environment = dict(os.environ, STAND_IN=json.dumps({"gpus": gpus, "peers": peers}))
        result = subprocess.run([os.path.join(ROOT, "bench", "run-gpu"), "--build", folder, "--sizes", "4K,64K,25M,64M",
                                 *arguments], capture_output=True, text=True, check=False, env=environment)
        equal(result.returncode, expect, f"exit code (it said: {result.stdout}{result.stderr})")
        with open(f"{folder}/bench/gpu.json", encoding="utf-8") as file:
            return result.stdout + result.stderr, json.load(file)
    finally:
        shutil.rmtree(folder)


def _targets(found):
    return {target["label"]: target for target in found["targets"]}


def all_targets_are_judged():
    text, found = _bench(GOOD)
    targets = _targets(found)
    equal({label: t["verdict"] for label, t in targets.items() if t["verdict"] != "met"},
          {"of the bytes of our buckets went over NVLink": "not measured",
           "wrong among 100 000 buckets of mixed sizes; memory flat": "not measured"}, "targets that are not met")
    contains(text, "11 met, 0 MISSED, 2 not measured", "36.5 both ways")
    row = next(r for r in found["rows"] if (r["load"], r["bytes"]) == ("none", 64 * MIB))
    check(abs(row["us"]["gradwire"] - (10 + 64 * MIB / 32e3)) < 0.1, f"the time of 64 MiB: {row['us']}")
    check(abs(row["flow_gbps"]["nccl"] - 270) < 0.1, f"the flow of NCCL: {row['flow_gbps']}")
    kept = targets["compute kept, compute-bound trainer"]["value"]
    check(abs(kept - 0.9968) < 1e-6, f"compute kept: {kept}")


def what_is_missed_is_said():
    slow = dict(GOOD, gradwire={"gbps": 20.0, "loss": 0.01})
    text, found = _bench(slow)
    missed = {label for label, t in _targets(found).items() if t["verdict"] == "MISSED"}
    equal(missed, {"compute kept, compute-bound trainer", "GB/s, 64 MiB, idle, one at a time",
                   "times NCCL's time with P2P off, 25 MiB, idle",
                   "compute kept, memory-bound trainer, of that with NCCL at the same bytes a second",
                   "compute kept, memory-bound trainer, of that with NCCL, P2P off at the same bytes a second"}, "missed")
    contains(text, "5 MISSED")


def the_faster_exchange_is_slowed_down():
    _, found = _bench(GOOD, arguments=("--quick", "--parts", "kept"))
    limited = {k["peer"]: k for k in found["compute"] if k["limit_gbps"] is not None}
    equal(sorted(limited), ["gradwire", "nccl"], "who was slowed down")
    check(abs(limited["nccl"]["gbps"] - 32) < 0.1, f"NCCL at our rate: {limited['nccl']}")
    check(abs(limited["gradwire"]["gbps"] - 27) < 0.1, f"ours at the rate of NCCL with P2P off: {limited['gradwire']}")


def one_gpu_leaves_nccl_out():
    text, found = _bench(GOOD, gpus=1)
    equal((found["placement"], sorted(found["absent"])), ([0, 0], ["nccl", "nccl-host"]), "who takes part")
    contains(text, "two ranks on one GPU", "THIS RUN: 2 ranks shared one GPU", "2 ranks share a GPU's link: 18.2 a rank")
    equal(_targets(found)["GB/s, 64 MiB, idle, one at a time"]["verdict"], "not measured", "what takes two GPUs")


def a_peer_that_fails_ends_nothing_else():
    text, found = _bench(dict(GOOD, nccl=dict(GOOD["nccl"], fails_at="flow")))
    contains(text, "NCCL is left out", "the sky fell")
    equal((len(found["rows"]), sorted(found["absent"])), (8, ["nccl"]), "what goes on")


def our_own_failure_is_an_error():
    text, found = _bench(dict(GOOD, gradwire=dict(GOOD["gradwire"], fails_at="time")), expect=1)
    contains(text, "gradwire is left out", "the sky fell")
    equal(sorted(found["absent"]), ["gradwire"], "who is absent")


def a_rank_that_hangs_ends_the_run_in_time():
    text, found = _bench(dict(GOOD, gradwire=dict(GOOD["gradwire"], hangs_at="check")),
                         arguments=("--quick", "--limit", "4"), expect=1)
    contains(text, "the run was ended after 4 s")
    equal(len(found["limits"]), 1, "what was measured before")


def wrong_results_are_counted():
    text, found = _bench(dict(GOOD, gradwire=dict(GOOD["gradwire"], wrong=3)), expect=1)
    equal(found["rows"][0]["wrong"]["gradwire"], 6, "wrong elements of both ranks")
    equal(_targets(found)["wrong results"]["verdict"], "MISSED", "verdict")
    contains(text, "WRONG")


def ranks_that_differ_are_wrong():
    _, found = _bench(dict(GOOD, gradwire=dict(GOOD["gradwire"], digests=["1", "2"])), expect=1)
    equal(found["rows"][0]["wrong"]["gradwire"], 1024, "wrong elements")


def no_figure_is_rounded_in_our_favour():
    below, above = gpu_report.Target("x", 0.97999, ">=", 0.98), gpu_report.Target("x", 80.0001, "<=", 80.0)
    contains(below.text(), "0.979", "MISSED")
    contains(above.text(), "80.001", "MISSED")
    contains(gpu_report.Target("x", 0.98, ">=", 0.98).text(), "0.980", "met")


def the_gpu_that_keeps_least_counts():
    kept = gpu_report.Kept("compute", "gradwire", [0, 1])
    kept.before, kept.loaded, kept.after = [1000, 1000], [990, 950], [1000, 900]
    check(abs(kept.part() - 0.99) < 1e-9, f"{kept.part()}")
    shared = gpu_report.Kept("compute", "gradwire", [0, 0])
    shared.before, shared.loaded, shared.after = [700, 300], [500, 490], [600, 400]
    check(abs(shared.part() - 0.99) < 1e-9, f"{shared.part()}")


def ranks_on_the_simulated_driver():
    driver = os.path.join(BUILD, "tests", "fake")
    if not all(os.path.exists(path) for path in (f"{driver}/libcuda.so.1", f"{BUILD}/bench/gpu_rank")):
        raise Skip("the build has no CUDA, or sanitizers, which do not know kernels")
    folder = tempfile.mkdtemp(prefix="gw-test-")
    try:
        path = ":".join(filter(None, [driver, os.environ.get("LD_LIBRARY_PATH")]))
        environment = dict(os.environ, LD_LIBRARY_PATH=path, FAKE_CUDA_DIR=folder)
        result = subprocess.run([os.path.join(ROOT, "bench", "run-gpu"), "--build", BUILD, "--out", f"{folder}/gpu.json",
                                 "--quick", "--parts", "idle", "--peers", "gradwire", "--sizes", "4K,1M,4M"],
                                capture_output=True, text=True, check=False, env=environment)
        equal(result.returncode, 0, f"exit code (it said: {result.stdout}{result.stderr})")
        with open(f"{folder}/gpu.json", encoding="utf-8") as file:
            found = json.load(file)
        equal([row["wrong"]["gradwire"] for row in found["rows"]], [0, 0, 0], "wrong elements")
        check(all(row["us"]["gradwire"] > 0 and row["flow_gbps"]["gradwire"] > 0 for row in found["rows"]), "times")
        contains(result.stdout, "THIS RUN: simulated GPUs")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(globals())
