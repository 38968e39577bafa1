"""test_trace.py - gwctl trace: every stage of an operation, a row a rank, who was late, and what is said of what is lost"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

from ranks import (ON_DEVICE, PATIENCE_S, Daemon, Skip, check, contains, equal, exchange, gw, gwtest, loopback, main, prepare, program,
                   ready, spawn, until)

LATE_S = 0.15
INT8 = "codec=int8 as=fc1.weight"


class _Trace:
    """A document of gwctl trace, with its operations by rank and sequence number, and its other bars by category."""

    def __init__(self, document):
        self.events = document["traceEvents"]
        self.other = document["otherData"]
        bars = [e for e in self.events if e["ph"] == "X"]
        self.names = {(e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["name"] == "thread_name"}
        self.groups = {e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"}
        self.ops = {(e["pid"], self.row(e), e["args"]["sequence"]): e for e in bars if e["cat"] == "operation"}
        self.stages = [e for e in bars if e["cat"] == "stage"]
        self.work = [e for e in bars if e["cat"] not in ("operation", "stage")]

    def row(self, event):
        """Without the number of the row's line."""
        return re.sub(r" \(\d+\)$", "", self.names[event["pid"], event["tid"]])

    def op(self, rank, sequence, pid=None):
        """`pid` None: of the newest group."""
        return self.ops[pid or max(self.groups), f"rank {rank}", sequence]

    def of(self, category, sequence, pid=None):
        return [e for e in self.work if e["cat"] == category and e["args"]["sequence"] == sequence
                and e["pid"] == (pid or max(self.groups))]


def _trace(daemon, *words):
    result = daemon.gwctl("trace", *words)
    equal((result.returncode, result.stderr), (0, ""), "gwctl trace")
    return _Trace(json.loads(result.stdout))


def _is_within(inner, outer, slack_us=0.01):
    return inner["ts"] >= outer["ts"] - slack_us and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + slack_us


def _are_submitted(daemons, n):
    """Waits until the daemons have read so many submits of their newest groups."""
    until(lambda: sum(rank.get("submitted", 0) for daemon in daemons
                      for rank in max(daemon.admin_json("groups"), key=lambda group: group["id"])["ranks"]) == n,
          f"{n} submits were read")


def _one_is_late(daemons, ranks, late):
    """The time that the late one slept, in us, after the others' submits."""
    for number, rank in enumerate(ranks):
        if number != late:
            rank.ok("submit k")
    _are_submitted(daemons, len(ranks) - 1)
    begin = time.monotonic()
    time.sleep(LATE_S)
    slept = time.monotonic() - begin
    ranks[late].ok("submit k")
    for rank in ranks:
        rank.ok(f"wait g 1 {PATIENCE_S * 1000}")
    return slept * 1e6


def _check_rows(trace):
    """Bars of one line do not overlap, and what a rank waited for lies in its operation's bar."""
    lines = {}
    for event in [*trace.ops.values(), *trace.work]:
        lines.setdefault((event["pid"], event["tid"]), []).append(event)
    for line in lines.values():
        line.sort(key=lambda e: e["ts"])
        for before, after in zip(line, line[1:]):
            check(before["ts"] + before["dur"] <= after["ts"] + 0.01, f"bars overlap: {before}, {after}")
    for stage in trace.stages:
        check(any(e["tid"] == stage["tid"] and e["pid"] == stage["pid"] and _is_within(stage, e)
                  for e in trace.ops.values()), f"a stage outside of its operation: {stage}")


def _check_order(op, *moments):
    at = [op["args"][f"{moment}_us"] for moment in moments]
    equal(at, sorted(at), f"the order of {moments}")
    check(at[-1] <= op["dur"] + 0.01, f"it lasts for {op['dur']} us, and is done after {at[-1]}")


def every_stage_on_one_node_and_the_late_rank():
    with Daemon(bystanders=False) as daemon:
        ranks = daemon.ready(3, count=300000, more="as=fc1.weight")
        slept = _one_is_late([daemon], ranks, 1)
        trace = _trace(daemon)
        ops = [trace.op(r, 1) for r in range(3)]
        for op in ops:
            equal((op["name"], op["args"]["bytes"], op["args"]["codec"], op["args"]["last_rank"]),
                  ("fc1.weight", 1200000, "none", 1), "an operation")
            _check_order(op, "matched", "ready", "reduced", "done")
            check("met_us" not in op["args"], "a group on one node met others")
        equal(max(ops, key=lambda e: e["ts"]), ops[1], "the last to submit")
        for op in ops:
            check(op is ops[1] or ops[1]["ts"] - op["ts"] >= slept, f"rank 1 slept for {slept} us: {ops}")
        check(ops[1]["args"]["late_us"] >= slept and min(op["args"]["late_us"] for op in ops) == 0, "how late it was")
        waits = {trace.row(e): e["dur"] for e in trace.stages if e["name"] == "wait for ranks"}
        equal(sorted(waits), ["rank 0", "rank 2"], "those who waited for rank 1")
        check(min(waits.values()) >= slept, f"they waited for {waits}")
        reductions = trace.of("reduce", 1)
        check(reductions and all(e["ts"] >= ops[1]["ts"] + ops[1]["args"]["ready_us"] - 0.01 for e in reductions),
              "no reduction, or too early")
        equal(len(trace.of("copy_in", 1)) > 0, ON_DEVICE, "copies from devices")
        equal(len(trace.of("copy_out", 1)) > 0, ON_DEVICE, "copies to devices")
        equal([len(trace.of(c, 1)) for c in ("encode", "sent", "received", "decode")], [0] * 4, "work between nodes")
        _check_rows(trace)


def _check_node(trace, other):
    """Between nodes, of operation 1."""
    op = next(op for op in trace.ops.values() if op["args"]["sequence"] == 1)
    begin = {c: min(e["ts"] for e in trace.of(c, 1)) for c in ("reduce", "encode", "sent", "received", "decode")}
    end = {c: max(e["ts"] + e["dur"] for e in trace.of(c, 1)) for c in begin}
    check(op["ts"] + op["args"]["met_us"] <= begin["encode"] + 0.01, "encoded before the nodes met")
    check(begin["encode"] <= begin["sent"] and begin["received"] <= end["reduce"], f"out of order: {begin}")
    check(end["encode"] <= end["sent"] and max(end.values()) <= op["ts"] + op["args"]["reduced_us"] + 0.01,
          f"the operation was reduced before {end}")
    equal({trace.row(e) for e in trace.of("sent", 1)} | {trace.row(e) for e in trace.of("received", 1)},
          {f"to node {other}", f"from node {other}"}, "rows of the wire")
    sent = sum(e["args"]["bytes"] for e in trace.of("sent", 1))
    check(1.0 <= sent / 400000 <= 1.1, f"{sent} bytes were sent of 400000 numbers with int8")


def every_stage_on_two_nodes_and_the_late_rank():
    with loopback(2) as daemons:
        ranks = ready(daemons, [0, 0, 1], count=400000, more=INT8)
        slept = _one_is_late(daemons, ranks, 2)
        traces = [_trace(daemon) for daemon in daemons]
        ops = [traces[0].op(0, 1), traces[0].op(1, 1), traces[1].op(2, 1)]
        for op in ops:
            equal((op["name"], op["args"]["codec"]), ("fc1.weight", "int8"), "an operation")
            _check_order(op, "matched", "ready", "met", "reduced", "done")
        equal(len({op["args"]["sequence"] for op in ops}), 1, "sequence numbers")
        check(min(op["args"]["met_us"] for op in ops[:2]) >= slept, "node 0 did not wait for node 1")
        waits = [op["args"]["met_us"] - op["args"]["ready_us"] for op in ops]
        check(waits[2] < min(waits[:2]), f"node 1 waited for node 0: {waits}")
        for number, trace in enumerate(traces):
            _check_node(trace, 1 - number)
            _check_rows(trace)
        _merged(daemons, traces, slept)


def _merged(daemons, traces, slept):
    """On one host both daemons have one clock, so the shift of a merge is next to nothing."""
    files = []
    for daemon in daemons:
        files.append(os.path.join(daemon.dir, "trace.json"))
        contains(daemon.gwctl("trace", f"--out={files[-1]}").stdout, "wrote", files[-1])
    result = daemons[0].gwctl("trace", "--merge", *files)
    equal((result.returncode, result.stderr), (0, ""), "the merge")
    whole = _Trace(json.loads(result.stdout))
    equal(len(whole.groups), sum(len(trace.groups) for trace in traces), "groups of both")
    equal([node["node"] for node in whole.other["nodes"]], [trace.other["node"] for trace in traces], "the nodes")
    ranks = {row: e for (_, row, sequence), e in whole.ops.items() if sequence == 1 and e["name"] == "fc1.weight"}
    equal(sorted(ranks), ["rank 0", "rank 1", "rank 2"], "ranks of both")
    equal(max(ranks.values(), key=lambda e: e["ts"]), ranks["rank 2"], "the last to submit, over the nodes")
    check(ranks["rank 2"]["ts"] - ranks["rank 0"]["ts"] >= 0.5 * slept, "how late it was, over the nodes")
    _check_rows(whole)
    _drawn(daemons[0], result.stdout)


def _drawn(daemon, document):
    """docs/step.py makes a picture of it, with a row for each rank, and the late one's bar last."""
    path = os.path.join(daemon.dir, "both.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(document)
    made = subprocess.run([sys.executable, os.path.join(gwtest.ROOT, "docs/step.py"), path, "--operations", "1-1"],
                          capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    equal((made.returncode, made.stderr), (0, ""), "docs/step.py")
    svg = "{http://www.w3.org/2000/svg}"
    picture = xml.etree.ElementTree.fromstring(made.stdout)
    places = {e.text: float(e.get("y")) for e in picture.iter(f"{svg}text") if (e.text or "").startswith("rank ")}
    equal(sorted(places), ["rank 0", "rank 1", "rank 2"], "rows")
    first = {}
    for bar in picture.iter(f"{svg}rect"):
        for name, y in places.items():
            if bar.get("y") and 0 <= y - float(bar.get("y")) < 16:
                first[name] = min(first.get(name, 9999), float(bar.get("x")))
    equal(max(first, key=first.get), "rank 2", "the bar that begins last")


def what_several_lanes_carry_is_of_one_operation():
    """Lanes other than the first count the large operations alone."""
    with loopback(2, "--lane.count=3", "--wire.chunk_bytes=16K") as daemons:
        ranks = ready(daemons, [0, 1], count=400000, more="as=large")
        for rank in ranks:
            rank.ok("bucket s g all_reduce f32 sum 100 b:0 b:0 as=small")
        for bucket in "sk":
            exchange(ranks, bucket=bucket)
        for daemon in daemons:
            trace = _trace(daemon)
            for sequence, n_bytes in ((1, 400), (2, 1600000)):
                sent = sum(e["args"]["bytes"] for e in trace.of("sent", sequence))
                check(n_bytes <= sent <= n_bytes + 1000, f"{sent} bytes were sent of operation {sequence}")


def an_operation_that_waits_is_shown():
    with Daemon(bystanders=False) as daemon:
        ranks = daemon.ready(2)
        ranks[0].ok("submit k")
        _are_submitted([daemon], 1)
        time.sleep(0.05)
        trace = _trace(daemon)
        equal([key[1:] for key in trace.ops], [("rank 0", 1)], "operations")
        op = trace.op(0, 1)
        check(op["dur"] >= 50000 and "done_us" not in op["args"], f"it goes on: {op}")
        equal([(e["name"], e["dur"]) for e in trace.stages], [("wait for ranks", op["dur"])], "what it waits for")
        ranks[1].kill()
        until(lambda: daemon.admin_json("groups")[0]["state"] == "failed", "the group has failed")
        equal(_trace(daemon).op(0, 1)["args"]["status"], "GW_ERR_RANK_DIED", "how it ended")


def a_trace_of_some_seconds_has_what_comes_only():
    with Daemon(bystanders=False) as daemon:
        ranks = daemon.ready(2)
        exchange(ranks)
        path = os.path.join(daemon.dir, "trace.json")
        tracing = spawn([program("gwctl"), f"--socket={daemon.admin}", "trace", "--seconds", "1", "--out", path],
                        stdout=subprocess.DEVNULL)
        until(lambda: daemon.admin_json("status")["clients"] > 3, "gwctl is connected")
        until(lambda: tracing.poll() is not None or exchange(ranks), "the trace has ended", 20)
        equal(tracing.returncode, 0, "gwctl trace --seconds")
        with open(path, encoding="utf-8") as file:
            trace = _Trace(json.load(file))
        sequences = {sequence for _, _, sequence in trace.ops}
        check(sequences and 1 not in sequences, f"operations {sorted(sequences)[:5]}")


def old_events_are_overwritten_whole():
    """A ring of 64 events, which a page may read while it is written."""
    with Daemon("--trace.events=64", bystanders=False) as daemon:
        ranks = daemon.ready(2, count=64, more="as=small")
        with gw.Client(daemon.admin) as admin:
            first = json.loads(admin.admin("trace"))
            for _ in range(40):
                exchange(ranks)
            page = json.loads(admin.admin("trace", first["cursor"]))
            check(page["lost"] > 0 and len(page["events"]) <= 64 * daemon.admin_json("status")["lanes"],
                  f"{page['lost']} events lost")
            for event in page["events"]:
                check(event["kind"] != "submit" or (event["name"], event["bytes"]) == ("small", 256), f"garbage: {event}")
            equal(json.loads(admin.admin("trace", page["cursor"]))["events"], [], "events after the last")
            _refused(admin, "x", "1,2,3,4,5,6,7,8,9,0,1,2", "99999999", "-1", "end,")
        trace = _trace(daemon)
        equal(max(sequence for _, _, sequence in trace.ops), 40, "the last operation")
        check(min(sequence for _, _, sequence in trace.ops) > 20, "old operations are gone")
        _check_rows(trace)


def _refused(admin, *cursors):
    for cursor in cursors:
        try:
            admin.admin("trace", cursor)
        except gw.Refused as error:
            contains(str(error), "GW_ERR_INVALID_ARGUMENT")
        else:
            raise AssertionError(f"cursor {cursor} was taken")


def pages_join():
    """More events than a page holds: gwctl reads them all, each once."""
    with Daemon(bystanders=False) as daemon:
        ranks = daemon.ready(2, count=16)
        for _ in range(250):
            exchange(ranks)
        with gw.Client(daemon.admin) as admin:
            page = json.loads(admin.admin("trace"))
            check(page["more"] and len(page["events"]) <= 1024, f"{len(page['events'])} events in a page")
        trace = _trace(daemon)
        equal(sorted(trace.ops), sorted((max(trace.groups), f"rank {r}", s) for r in (0, 1) for s in range(1, 251)),
              "operations")


def it_is_for_the_admin_socket():
    """As all that shows the groups of others."""
    with Daemon(bystanders=False) as daemon, gw.Client(daemon.socket) as client:
        for command in ("groups", "trace"):
            try:
                client.admin(command)
            except gw.Refused as error:
                contains(str(error), "GW_ERR_PERMISSION")
            else:
                raise AssertionError(f"a client was shown {command}")


def ranges_reach_a_profiler():
    """Those of daemon and library, by way of a profiler of our own, which NVTX loads."""
    recorder = program("tests/profiler/recorder.so")
    if not ON_DEVICE:
        raise Skip("the plugins of devices alone have ranges")
    if not os.path.exists(recorder):
        raise Skip("the toolkit has no NVTX")
    with tempfile.TemporaryDirectory() as folder:
        profiled = {"NVTX_INJECTION64_PATH": recorder, "RANGES": os.path.join(folder, "ranges")}
        with Daemon(bystanders=False, env=profiled) as daemon:
            ranks = daemon.group(2, **profiled)
            prepare(ranks, count=300000, more="as=fc1.weight")
            exchange(ranks)
            seen = {pid: _ranges(f"{folder}/ranges.{pid}") for pid in (daemon.pid, *(rank.pid for rank in ranks))}
        check({"copy in fc1.weight", "copy out fc1.weight"} <= set(seen[daemon.pid]), f"the daemon's ranges: {seen}")
        equal(sum(seen[daemon.pid]["copy in fc1.weight"]), 2 * 1200000, "bytes copied from devices")
        for rank in ranks:
            equal(seen[rank.pid]["submit fc1.weight"], [1200000], "a trainer's ranges")


def _ranges(path):
    """What was written of each name, by name; all are of gradwire's domain, and none is left open."""
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n").split(", ", 3) for line in file]
    found = {}
    for domain, depth, payload, text in lines:
        equal((domain, depth, text[:9]), ("gradwire", "0", "gradwire "), "a range")
        found.setdefault(text[9:], []).append(int(payload))
    return found


def a_full_disk_is_named_and_a_device_is_left_alone():
    with Daemon(bystanders=False) as daemon:
        link = os.path.join(daemon.dir, "full")
        os.symlink("/dev/full", link)
        result = daemon.gwctl("trace", f"--out={link}")
        equal(result.returncode, 1, "gwctl trace to a full disk")
        contains(result.stderr, "No space left")
        check(os.path.islink(link), "gwctl has removed what is no file of its own")


def files_that_are_none_are_refused():
    with Daemon(bystanders=False) as daemon:
        path = os.path.join(daemon.dir, "x.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"traceEvents": [], "otherData": {}}')
        for words, code, said in ((("--merge", path, path), 1, "no trace of `gwctl trace`"),
                                  (("--merge", path, daemon.dir), 1, "x.json"),
                                  (("--merge", path), 2, "two files"),
                                  (("--seconds=0",), 2, "--seconds wants"),
                                  (("--seconds",), 2, "--seconds wants"),
                                  (("--out",), 2, "--out needs"),
                                  ((f"--out={daemon.dir}/no/x",), 1, "No such file")):
            result = daemon.gwctl("trace", *words)
            equal(result.returncode, code, f"gwctl trace {words}")
            contains(result.stderr, said)
        equal(daemon.gwctl("status", "--out=x").returncode, 2, "gwctl status --out")


if __name__ == "__main__":
    main(dict(globals()))
