"""test_nodes.py - groups over several daemons: values bit by bit, and what happens when a node, a rank or the way is lost

Each daemon listens on a loopback address of its own; the data goes over TCP.
"""

import contextlib
import os
import re
import signal
import subprocess
import time

from ranks import (ON_DEVICE, PATIENCE_S, SILENCE_MS, SLOW, check, contains, equal, exchange, gw, join, main, nodes as _nodes, prepare,
                   program, ready as _ready, submit, until)

SOON_MS = 2000 * SLOW
TIMEOUT_S = 100 * SLOW
QUICK = ["quick"] if SLOW > 1 else []
WHERE = ["device:auto"] if ON_DEVICE else []


def _sums(ranks, count=1024):
    n = len(ranks)
    for rank in ranks:
        equal(rank.ok(f"expect b f32 {count} {n * (n + 1) // 2}"), "0", "wrong elements of the sum")


def _matrix(places, seed, *words, flags=()):
    patient = f"--deadline.silence_ms={5 * SILENCE_MS}"  # values are asked for, on a machine that may be busy
    with _nodes(max(places) + 1, patient, *flags) as daemons:
        sockets = ",".join(daemons[place].socket for place in places)
        result = subprocess.run([program("tests/integration/matrix"), str(len(places)), str(seed), f"sockets={sockets}",
                                 *words, *WHERE], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        line = re.search(r"^cases (\d+) wrong (\d+) (\w+) digest (\w+) (\w+)$", result.stdout, re.M)
        check(result.returncode == 0 and line, f"matrix {places} ended with {result.returncode}: {result.stderr[:500]}")
        equal(line[5], "ipc" if ON_DEVICE else "shared", "the path of the memory")
        return int(line[1]), int(line[2]), line[3], line[4], result.stderr[:500]


def _all_right(places, *words, flags=()):
    cases, wrong, same, _, said = _matrix(places, 4321 + len(places), *words, *QUICK, flags=flags)
    check(cases > 350, f"only {cases} cases")
    equal(wrong, 0, f"wrong results ({said})")
    equal(same, "same", "results of the ranks")


# ---- values ------------------------------------------------------------------------------------------------


def two_nodes_of_one_rank():
    _all_right([0, 1], "quick")


def two_nodes_of_two_ranks():
    _all_right([0, 0, 1, 1], "quick")


def ranks_take_turns_between_nodes():
    _all_right([0, 1, 0, 1], "quick")


def uneven_nodes():
    _all_right([0, 1, 1, 1, 2], "quick")


def four_nodes():
    _all_right([0, 1, 2, 3], "quick")


def results_do_not_depend_on_chunks_and_threads():
    digests = set()
    for flags in (("--wire.chunk_bytes=16K", "--wire.window=2"), ("--reduce.inline_bytes=0", "--reduce.threads=1")):
        _, wrong, same, digest, said = _matrix([0, 1, 1], 99, "quick", flags=flags)
        equal((wrong, same), (0, "same"), f"wrong results with {flags} ({said})")
        digests.add(digest)
    equal(len(digests), 1, "different results of the same inputs")


def one_flipped_bit_is_seen():
    """The negative control."""
    _, wrong, _, _, said = _matrix([0, 1], 99, "flip", "quick")
    check(wrong > 0, "a flipped bit went unseen")
    contains(said, "wrong bits")


def many_operations_in_flight():
    with _nodes(2) as daemons:
        ranks = _ready(daemons, [0, 1, 1], count=300000)
        for number, rank in enumerate(ranks):
            rank.ok("alloc c 4096")
            rank.ok(f"fill c f32 1024 {number + 1}")
            rank.ok("bucket small g all_reduce f32 sum 1024 c:0 c:0")
        for _ in range(3):
            ops = [submit(ranks, bucket) for bucket in ("k", "small")]
            for pair in ops:
                for rank, op in zip(ranks, pair):
                    rank.ok(f"wait g {op} 20000")
        for number, rank in enumerate(ranks):  # three times the sum of all: 6, 18, 54
            equal(rank.ok("expect c f32 1024 54"), "0", "wrong elements of the small bucket")
            equal(rank.ok("expect b f32 300000 54"), "0", "wrong elements of the large bucket")


def complete_names_the_last_of_the_nodes_ranks_by_its_number_in_the_group():
    with _nodes(2) as daemons, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(gw.Client(daemons[place].socket)) for place in (0, 1, 1)]
        groups = gw.join(clients)
        buckets = [group.bucket("x", client.buffer(4096), count=1024) for group, client in zip(groups, clients)]
        ops = []
        for group, bucket in zip(groups, buckets):
            ops.append(group.submit(bucket, notify=True))
            time.sleep(0.05)  # channels that are ready at once are read in any order
        for group, op, last in zip(groups, ops, (0, 2, 2)):
            equal(group.wait(op), "GW_OK", "the operation's end")
            complete = group.channel.recv()
            equal((complete.name, complete.fields.last_rank), ("Complete", last), "who came last")
        for group in groups:
            group.leave()


def a_node_that_only_gives_does_not_run_away():
    """Node 0 cannot go on without node 2, which stands still, while node 1 has many chunks that are sent unasked."""
    count = 1500 * 16384 // 4  # chunks of 16 KiB
    with _nodes(3, "--wire.chunk_bytes=16K", "--lane.count=1", silence_ms=30000) as daemons:
        ranks = _ready(daemons, [0, 1, 2], count=count, what="reduce f32 sum")
        ops = submit(ranks)
        until(lambda: daemons[2].stat("wire_bytes_sent") > 1 << 20, "it is under way")
        os.kill(daemons[2].pid, signal.SIGSTOP)
        sent = None
        while sent != (sent := daemons[1].stat("wire_bytes_sent")):
            time.sleep(0.5)
        taken = daemons[0].stat("wire_bytes_received") // 2
        os.kill(daemons[2].pid, signal.SIGCONT)
        for rank, op in zip(ranks, ops):
            rank.ok(f"wait g {op} {PATIENCE_S * 1000}")
        equal(ranks[0].ok(f"expect b f32 {count} 6"), "0", "wrong elements of the sum")
        check(sent < taken + (6 << 20), f"node 1 sent {sent} bytes, and {taken} were taken")


# ---- codecs ------------------------------------------------------------------------------------------------

# Largest error of one round in parts of the largest average: the ranks' and the result's, each half a step.
CODECS = {"none": (0, 1e-6), "fp16": (1e-6, 1e-3), "bf16": (1e-4, 8e-3), "fp8": (5e-3, 0.13), "int8": (5e-4, 9e-3),
          "int4": (1e-2, 0.16)}
WITH_RESIDUAL = ["fp8", "int8", "int4"]
BYTES = {"none": 4, "fp16": 2, "bf16": 2, "fp8": 1.016, "int8": 1.016, "int4": 0.516}
COUNT, ROUNDS = 200000, 16


def _coded(daemons, codec, places, *options):
    sent = daemons[0].stat("wire_bytes_sent")
    result = subprocess.run([program("tests/integration/coded"), f"codec={codec}", *options, str(COUNT), str(ROUNDS),
                             *[daemons[place].socket for place in places]], capture_output=True, text=True,
                            timeout=TIMEOUT_S, check=False)
    words = result.stdout.split()
    check(result.returncode == 0 and len(words) == 7, f"coded {codec} ended with {result.returncode}: {result.stderr[:500]}")
    sent = daemons[0].stat("wire_bytes_sent") - sent
    return float(words[1]), float(words[3]), words[4], words[5], sent


def codecs_are_right_on_every_rank():
    with _nodes(2) as daemons:
        for codec, (least, most) in CODECS.items():
            first, mean, same, kept, sent = _coded(daemons, codec, [0, 1, 1])
            print(f"# {codec}: error {first:.2g}, of the mean of {ROUNDS} rounds {mean:.2g}", flush=True)
            equal((same, kept), ("same", "kept"), f"bits of the ranks, and infinities, with {codec}")
            check(least <= first <= most, f"the error with {codec} is {first}, not between {least} and {most}")
            if codec in WITH_RESIDUAL:  # what is left out comes later
                check(mean < first / 4, f"with {codec} the mean of {ROUNDS} rounds is {mean} off, one round {first}")
            expected = BYTES[codec] * COUNT * ROUNDS  # each way half a bucket, to and fro; and a last round
            check(0.98 * expected < sent < 1.3 * expected, f"{codec} sent {sent} bytes, about {expected} expected")


def without_error_feedback_what_is_left_out_is_lost():
    """The negative control of the mean above: the same inputs round after round give the same error."""
    with _nodes(2) as daemons:
        for codec in WITH_RESIDUAL:
            first, mean, same, _, _ = _coded(daemons, codec, [0, 1, 1], "feedback=no")
            equal(same, "same", f"bits of the ranks with {codec}")
            check(0.99 * first < mean < 1.01 * first, f"{codec}: the mean of {ROUNDS} rounds is {mean} off, one round {first}")


def a_codec_on_three_nodes():
    with _nodes(3) as daemons:
        first, mean, same, kept, _ = _coded(daemons, "int8", [0, 1, 2, 1])
        equal((same, kept), ("same", "kept"), "bits of the ranks, and infinities")
        check(mean < first / 4, f"the mean of {ROUNDS} rounds is {mean} off, one round {first}")


def different_codecs_are_a_mismatch():
    with _nodes(2) as daemons:
        ranks = _ready(daemons, [0, 1])
        ranks[0].ok("bucket c g all_reduce f32 sum 1024 b:0 b:0 codec=int8 as=c")
        ranks[1].ok("bucket c g all_reduce f32 sum 1024 b:0 b:0 codec=bf16 as=c")
        equal([daemon.admin_json("buckets")[-1]["codec"] for daemon in daemons], ["int8", "bf16"], "gwctl's codecs")
        for rank, op in zip(ranks, submit(ranks, "c")):
            rank.expect("GW_ERR_MISMATCH", f"wait g {op} 10000")
            contains(rank.do("check g").text, "int8", "bf16")
        for rank, word in zip(ranks, ("", " nofeedback")):
            rank.ok("bucket d g all_reduce f32 sum 1024 b:0 b:0 codec=int8 as=d" + word)
        equal([daemon.admin_json("buckets")[-1]["no_error_feedback"] for daemon in daemons], [False, True], "gwctl's word")
        contains(daemons[1].gwctl("buckets").stdout, "int8, no feedback")
        for rank, op in zip(ranks, submit(ranks, "d")):
            rank.expect("GW_ERR_MISMATCH", f"wait g {op} 10000")
            contains(rank.do("check g").text, "int8 without error feedback")


def a_codec_that_cannot_be_is_refused():
    with _nodes(2) as daemons:
        rank = _ready(daemons, [0, 1])[0]
        for what in ("all_reduce i32 sum", "all_reduce f32 max", "all_gather f32 sum", "all_reduce f64 avg"):
            rank.expect("GW_ERR_UNSUPPORTED", f"bucket x g {what} 256 b:0 b:0 codec=int8", "int8", "all_reduce with sum or avg")


# ---- order, and good ends -----------------------------------------------------------------------------------


def different_buckets_are_named_on_every_node():
    with _nodes(2) as daemons:
        ranks = _ready(daemons, [0, 1, 1])
        ranks[0].ok("bucket other g all_reduce f32 sum 512 b:0 b:0 as=other")
        for rank in ranks[1:]:
            rank.ok("bucket mine g all_reduce f32 sum 1024 b:0 b:0 as=mine")
        ops = [ranks[0].ok("submit other")] + [rank.ok("submit mine") for rank in ranks[1:]]
        for rank, op in zip(ranks, ops):
            rank.expect("GW_ERR_MISMATCH", f"wait g {op} 10000")
            contains(rank.do("check g").text, "'other'", "'mine'", "x512", "x1024")
        exchange(ranks)  # the group goes on


def a_mismatch_on_one_node_is_heard_on_the_other():
    with _nodes(2) as daemons:
        ranks = _ready(daemons, [0, 1, 1])
        ranks[1].ok("bucket other g all_reduce f32 sum 512 b:0 b:0 as=other")
        ops = [ranks[0].ok("submit k"), ranks[1].ok("submit other"), ranks[2].ok("submit k")]
        for rank, op in zip(ranks, ops):
            rank.expect("GW_ERR_MISMATCH", f"wait g {op} 10000")
        contains(ranks[0].do("check g").text, "'other'", "rank 1", "rank 2")
        exchange(ranks)


def a_late_node_is_named():
    with _nodes(2, "--deadline.late_ms=200", "--deadline.bucket_s=2") as daemons:
        ranks = _ready(daemons, [0, 1])
        op = ranks[0].ok("submit k")
        until(lambda: "waits since" in daemons[0].log() and "node 1" in daemons[0].log(), "the late node is named", 5)
        ranks[0].expect("GW_ERR_DEADLINE", f"wait g {op} 10000", "node 1", "lowest rank is 1")
        until(lambda: ranks[1].do("check g").status == "GW_ERR_DEADLINE", "the other node hears of the deadline", 3)


def a_group_ends_in_good_order():
    with _nodes(2) as daemons:
        for _ in range(5):
            ranks = _ready(daemons, [0, 1, 0])
            exchange(ranks)
            for rank in ranks:
                rank.end()
        for daemon in daemons:
            until(lambda d=daemon: d.admin_json("status")["groups"] == 0, "no group is left")
            equal(daemon.stat("groups_failed"), 0, "groups that failed")


def a_node_that_left_is_named_to_those_who_go_on():
    with _nodes(2) as daemons:
        ranks = _ready(daemons, [0, 1])
        exchange(ranks)
        ranks[1].send("leave g")
        time.sleep(0.2)
        op = ranks[0].ok("submit k")
        ranks[0].expect("GW_ERR_RANK_LEFT", f"wait g {op} 10000", "node 1")
        ranks[1].answer("GW_OK")


def lanes_sleep_between_operations():
    """The descriptor of a wire stays readable after a large transfer; a lane that took that for work never slept."""
    with _nodes(2) as daemons:
        ranks = _ready(daemons, [0, 1], count=300000)
        exchange(ranks)
        time.sleep(0.2)
        before = [daemon.stat("lane_wakeups") for daemon in daemons]
        time.sleep(0.5)
        for daemon, woken in zip(daemons, before):
            check(daemon.stat("lane_wakeups") - woken < 200, "a lane does not sleep: heartbeats alone wake it some 10 times")
        exchange(ranks)


# ---- losses -------------------------------------------------------------------------------------------------


def _told(ranks, op, status, *parts, limit_ms=SOON_MS):
    for rank in ranks:
        reply = rank.answer(status, *parts) if op else rank.do("check g")
        equal(reply.status, status, "what a survivor hears")
        check(reply.ms < limit_ms, f"told after {reply.ms} ms")
        contains(rank.do("check g").text, status, *parts)


def a_killed_trainer_is_named_on_the_other_node():
    with _nodes(3) as daemons:
        ranks = _ready(daemons, [0, 1, 2])
        exchange(ranks)
        for rank in (ranks[0], ranks[2]):
            op = rank.ok("submit k")
            rank.send(f"wait g {op} -1")
        time.sleep(0.1)
        ranks[1].kill()
        _told([ranks[0], ranks[2]], 2, "GW_ERR_RANK_DIED", "rank 1", f"pid {ranks[1].pid}")


def _lose_daemon(how, lost, limit_ms):
    with _nodes(3, checks=False) as daemons:
        ranks = _ready(daemons, [0, 1, 2, 2], count=2000000)
        exchange(ranks)
        for rank in ranks:
            rank.send("loop g k 1000000")
        time.sleep(0.3)
        began = time.monotonic()
        how(daemons[lost])
        survivors = [rank for rank, place in zip(ranks, [0, 1, 2, 2]) if place != lost]
        for rank in survivors:
            rank.answer("GW_ERR_NODE_LOST", f"node {lost}")
        check((time.monotonic() - began) * 1000 < limit_ms, f"it took {time.monotonic() - began} s")
        others = [daemon for number, daemon in enumerate(daemons) if number != lost]
        for daemon in others:
            daemon.assert_alive()
        again = _ready(others, [0, 1])  # they go on
        exchange(again)
        _sums(again)
        for rank in again:
            rank.end()


def a_killed_daemon_is_named():
    _lose_daemon(lambda daemon: daemon.die(), 1, SILENCE_MS + SOON_MS)


def the_roots_daemon_is_killed_after_bootstrap():
    _lose_daemon(lambda daemon: daemon.die(), 0, SILENCE_MS + SOON_MS)


def a_daemon_that_stops_is_named():
    def stop(daemon):
        os.kill(daemon.pid, signal.SIGSTOP)
    _lose_daemon(stop, 1, 2 * SILENCE_MS + SOON_MS)


def a_daemon_that_stopped_at_once_goes_on_later():
    """What it finds is a node that has given up, in the middle of making the connection."""
    with _nodes(2) as daemons:
        ranks = [daemon.rank() for daemon in daemons]
        join(ranks)
        os.kill(daemons[0].pid, signal.SIGSTOP)
        until(lambda: ranks[1].do("check g").status == "GW_ERR_NODE_LOST", "the node is missed", 3 * SILENCE_MS / 1000 + 10)
        time.sleep(0.2)  # the group is over there
        os.kill(daemons[0].pid, signal.SIGCONT)
        until(lambda: ranks[0].do("check g").status == "GW_ERR_NODE_LOST", "the daemon goes on")
        for rank in ranks:
            rank.ok("leave g")
        join(ranks, "h")
        prepare(ranks, "h")
        exchange(ranks, "h")
        _sums(ranks)


def other_groups_go_on():
    with _nodes(3, checks=False) as daemons:
        bystanders = _ready(daemons, [0, 2])
        ranks = _ready(daemons, [0, 1, 2])
        op = ranks[0].ok("submit k")
        ranks[0].send(f"wait g {op} -1")
        daemons[1].die()
        ranks[0].answer("GW_ERR_NODE_LOST", "node 1")
        exchange(bystanders)
        _sums(bystanders)


if __name__ == "__main__":
    main(globals(), 110)
