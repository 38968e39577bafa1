"""test_groups.py - what a trainer may do with groups: several of them, many buckets in flight, priorities, splits,
waiting in every way, memory of every kind"""

import os
import subprocess
import time

from ranks import (ON_DEVICE, SLOW, Daemon, check, contains, equal, exchange, join, main, prepare, program, submit, until)


def several_groups_of_one_process():
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(3)]
        for n in range(8):
            members = ranks if n % 2 else ranks[:2]
            join(members, f"g{n}")
            prepare(members, f"g{n}", f"k{n}", f"b{n}", count=1000 + n)
        ops = [(n, rank, rank.ok(f"submit k{n}")) for n in range(8) for rank in (ranks if n % 2 else ranks[:2])]
        for n, rank, op in reversed(ops):
            rank.ok(f"wait g{n} {op} 5000")
            equal(rank.ok(f"expect b{n} f32 {1000 + n} {6 if n % 2 else 3}"), "0", f"wrong elements in group {n}")


def more_buckets_in_flight_than_credits():
    """The 65th submit of a rank waits for the first operation."""
    with Daemon() as daemon:
        ranks = daemon.group(2)
        for r, rank in enumerate(ranks):
            rank.ok("alloc b 1048576")
            for n in range(100):
                rank.ok(f"fill b:{n * 4096} f32 1000 {n + 1000 * r}")
                rank.ok(f"bucket k{n} g all_reduce f32 sum 1000 b:{n * 4096} b:{n * 4096}")
        for n in range(64):
            equal(ranks[0].ok(f"submit k{n}"), str(n + 1), "the operation's number")
        ranks[0].send("submit k64")
        check(ranks[0].silent(0.3), "a 65th operation was taken while 64 were in flight")
        ranks[1].ok("submit k0")
        ranks[0].answer("GW_OK")
        for n in range(1, 100):
            if n >= 65:
                ranks[0].ok(f"submit k{n}")
            ranks[1].ok(f"submit k{n}")
        for rank in ranks:
            for n in reversed(range(100)):
                rank.ok(f"wait g {n + 1} 5000")  # the first have given their places to others
                equal(rank.ok(f"expect b:{n * 4096} f32 1000 {2 * n + 1000}"), "0", f"wrong elements of bucket {n}")
            contains(rank.ok("check g"), "GW_OK last=100 failed=0")


def waiting_again_gives_the_same_answer():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        exchange(ranks)
        ranks[0].ok("wait g 1 0")
        ranks[0].ok("test g 1")
        ranks[0].expect("GW_ERR_NOT_FOUND", "wait g 2 0")
        ranks[0].expect("GW_ERR_NOT_FOUND", "wait g 0 0")


def _waited(daemon, priority):
    """What part of the time that a large bucket still took a small one waited, which was submitted after it."""
    ranks = daemon.group(2)
    for rank in ranks:
        rank.ok("alloc b 402653184")
        rank.ok("bucket large g all_reduce f32 sum 67108864 b:0 b:0")
        rank.ok(f"bucket small g all_reduce f32 sum 65536 b:268435456 b:268435456 priority={priority}")
    for op in range(1, 100, 2):
        for bucket in ("large", "small"):
            for rank in ranks:
                rank.ok(f"submit {bucket}")
        for rank in ranks:
            rank.ok(f"wait g {op} {20000 * SLOW}")
            rank.ok(f"wait g {op + 1} {20000 * SLOW}")
        events = [e for e in daemon.admin_json("trace")["traceEvents"] if e.get("cat") == "operation"]
        group = max(e["pid"] for e in events)
        at = {(moment, e["args"]["sequence"]): e["ts"] + e["args"][f"{moment}_us"]
              for e in events if e["pid"] == group for moment in ("matched", "done")}
        begin = at["matched", op + 1]
        if at["done", op] - begin > 4000:  # us; otherwise the large one was nearly done when the small one came
            for rank in ranks:
                rank.close()
            return (at["done", op + 1] - begin) / (at["done", op] - begin)
    raise AssertionError("a large bucket never took 4 ms more")


def an_urgent_bucket_passes_a_large_one():
    """And one that is not urgent does not, but for the last pieces of the large one. A large one of a device leaves
    room for others, whatever they are."""
    with Daemon("--reduce.threads=1") as daemon:
        for _ in range(3):  # what else the machine does may stretch a time, but not three times
            urgent, other = _waited(daemon, 100), _waited(daemon, -100)
            what = f"an urgent bucket waited for {urgent:.3f} of a large one's time, another for {other:.3f}"
            print(f"# {what}")
            if urgent < 0.5 and (ON_DEVICE or other > 0.5):
                return
        raise AssertionError(what)


def a_pollable_descriptor_tells_of_the_end():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        contains(ranks[0].ok("poll g 0"), "quiet")
        op = ranks[0].ok("submit k")
        contains(ranks[0].ok("poll g 100"), "quiet")
        ranks[0].expect("GW_IN_PROGRESS", f"test g {op}")
        ranks[0].send("poll g 10000")
        check(ranks[0].silent(0.1), "it is readable before the operation has ended")
        ranks[1].ok("submit k")
        ranks[0].answer("GW_OK", "readable")
        if ON_DEVICE:  # the result is still to go back
            until(lambda: ranks[0].do(f"test g {op}").status == "GW_OK", "the operation has ended", 1)
        ranks[0].ok(f"test g {op}")
        contains(ranks[0].ok("poll g 100"), "quiet")
        ranks[1].ok("wait g 1 5000")


def a_pollable_descriptor_tells_of_a_failure():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        ranks[0].ok("poll g 0")
        op = ranks[0].ok("submit k")
        ranks[0].send("poll g 10000")
        check(ranks[0].silent(0.1), "it is readable before anything has happened")
        ranks[1].kill()
        ranks[0].answer("GW_OK", "readable")
        ranks[0].expect("GW_ERR_RANK_DIED", f"test g {op}", "rank 1")


def a_pollable_descriptor_tells_of_a_failure_without_operations():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        ranks[0].send("poll g 10000")
        check(ranks[0].silent(0.1), "it is readable before anything has happened")
        ranks[1].kill()
        ranks[0].answer("GW_OK", "readable")
        ranks[0].expect("GW_ERR_RANK_DIED", "check g", "rank 1")


def a_wait_ends_at_its_timeout_and_can_be_repeated():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        op = ranks[0].ok("submit k")
        for ms in (0, 30, 300):
            reply = ranks[0].do(f"wait g {op} {ms}")
            equal(reply.status, "GW_ERR_TIMEOUT", "the wait")
            check(ms <= reply.ms < ms + 250, f"a timeout of {ms} ms took {reply.ms} ms")
        ranks[1].ok("submit k")
        for rank in ranks:
            rank.ok(f"wait g {op} 5000")


def a_bucket_in_flight_cannot_be_submitted_again():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        ranks[0].ok("submit k")
        ranks[0].expect("GW_ERR_BUSY", "submit k")
        ranks[0].expect("GW_ERR_BUSY", "drop k")
        ranks[0].expect("GW_ERR_BUSY", "release b")
        ranks[1].ok("submit k")
        for rank in ranks:
            rank.ok("wait g 1 5000")
        exchange(ranks)
        for rank in ranks:
            rank.ok("drop k")
            rank.ok("release b")


def a_released_buffer_takes_its_buckets_along():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        exchange(ranks)
        for rank in ranks:
            rank.ok("release b")
            rank.expect("GW_ERR_NOT_FOUND", "submit k")
        left = [b["bytes"] for b in daemon.admin_json("buffers") if not (b["copied"] and b["device"])]
        equal(left, [8192, 8192], "buffers that are left, but for what the library has behind buckets")
        prepare(ranks, bucket="k2")
        exchange(ranks, bucket="k2")


def registered_memory_at_odd_addresses():
    with Daemon() as daemon:
        ranks = daemon.group(3)
        for odd in (0, 1, 3, 7, 4095):
            for r, rank in enumerate(ranks):
                rank.ok(f"register b{odd} 400001 {odd}")
                rank.ok(f"fill b{odd} f32 100000 {r + odd} 0.5")
                rank.ok(f"bucket k{odd} g all_reduce f32 sum 100000 b{odd}:0 b{odd}:0")
            exchange(ranks, bucket=f"k{odd}")
            for rank in ranks:
                equal(rank.ok(f"expect b{odd} f32 100000 {3 + 3 * odd} 1.5"), "0", f"wrong elements, {odd} bytes off")
        kinds = {(b["copied"], b["path"]) for b in daemon.admin_json("buffers")}
        equal(len(kinds), 2, f"kinds of buffers shown, of {kinds}")


def registered_memory_beside_allocated_memory():
    with Daemon() as daemon:
        ranks = daemon.group(2)
        for r, rank in enumerate(ranks):
            rank.ok("register b 40000 1" if r else "alloc b 40000")
            rank.ok("alloc c 40000" if r else "register c 40000 3")
            rank.ok(f"fill b f32 10000 {r + 1} 1")
            rank.ok("bucket k g all_reduce f32 avg 10000 b:0 c:0")
        exchange(ranks)
        for r, rank in enumerate(ranks):
            equal(rank.ok("expect c f32 10000 1.5 1"), "0", "wrong elements of the result")
            equal(rank.ok(f"expect b f32 10000 {r + 1} 1"), "0", "elements of the input that have changed")


def splitting_a_group():
    with Daemon() as daemon:
        ranks = daemon.group(5)
        for r, rank in enumerate(ranks):  # two colors with keys that turn the order round; rank 4 takes no part
            rank.send(f"split g h {-1 if r == 4 else r % 2} {-r}")
        equal([rank.answer("GW_OK").text for rank in ranks], ["1 2", "1 2", "0 2", "0 2", "-1 -1"],
              "ranks and sizes after the split")
        for r, rank in enumerate(ranks[:4]):
            rank.ok("alloc b 4096")
            rank.ok(f"fill b f32 64 {r + 1}")
            rank.ok("bucket k h all_gather f32 sum 32 b:0 b:2048")
        exchange(ranks[:4], "h")
        for r, rank in enumerate(ranks[:4]):
            equal(rank.ok(f"expect b:2048 f32 32 {r % 2 + 3}"), "0", "rank 0 of the new group")
            equal(rank.ok(f"expect b:2176 f32 32 {r % 2 + 1}"), "0", "rank 1 of the new group")
        for rank in ranks:
            rank.ok("leave g")
        exchange(ranks[:4], "h")  # it does not depend on the group that it was split off
        for rank in ranks[:4]:
            rank.ok("leave h")


def splitting_again_and_again_leaves_nothing():
    with Daemon() as daemon:
        ranks = daemon.group(2)
        fds = daemon.fd_count()
        for _ in range(50):
            for rank in ranks:
                rank.send("split g h 0 0")
            for rank in ranks:
                rank.answer("GW_OK")
            for rank in ranks:
                rank.ok("leave h")
        until(lambda: daemon.fd_count() <= fds, f"no more than {fds} descriptors are open again")


def every_one_call_collective():
    with Daemon() as daemon:
        ranks = daemon.group(3)
        for r, rank in enumerate(ranks):
            rank.ok("alloc b 65536")
            rank.ok(f"fill b f32 96 {r + 1}")
        for words, result in (("all_reduce f32 sum 96 b:0 b:4096", ("b:4096 f32 96 6",) * 3),
                              ("all_reduce f32 max 96 b:0 b:4096", ("b:4096 f32 96 3",) * 3),
                              ("reduce_scatter f32 sum 32 b:0 b:8192", ("b:8192 f32 32 6",) * 3),
                              ("all_gather f32 sum 96 b:0 b:12288", ("b:12672 f32 96 2",) * 3),
                              ("broadcast f32 sum 96 b:0 b:20480 2", ("b:20480 f32 96 3",) * 3),
                              ("reduce f32 sum 96 b:0 b:24576 1",
                               ("b:24576 f32 96 0", "b:24576 f32 96 6", "b:24576 f32 96 0")),
                              ("barrier f32 sum 0 - -", ("b:0 f32 96 1", "b:0 f32 96 2", "b:0 f32 96 3"))):
            for _ in range(2):
                for rank in ranks:
                    rank.send(f"call g {words}")
                for rank in ranks:
                    rank.answer("GW_OK")
                for rank, expected in zip(ranks, result):
                    equal(rank.ok(f"expect {expected}"), "0", f"wrong elements after {words}")


def more_one_call_shapes_than_are_kept():
    with Daemon() as daemon:
        ranks = daemon.group(2)
        for r, rank in enumerate(ranks):
            rank.ok("alloc b 65536")
        for n in list(range(1, 300)) + [1, 2, 299]:
            for r, rank in enumerate(ranks):
                rank.ok(f"fill b f32 {n} {r + n}")
                rank.send(f"call g all_reduce f32 sum {n} b:0 b:0")
            for rank in ranks:
                rank.answer("GW_OK")
                equal(rank.ok(f"expect b f32 {n} {2 * n + 1}"), "0", f"wrong elements of {n}")
        check(len(daemon.admin_json("buckets")) <= 2 * 256 + 2, "more buckets are kept than documented")


def a_barrier_holds_everybody():
    with Daemon() as daemon:
        ranks = daemon.group(3)
        for rank in ranks[:2]:
            rank.send("call g barrier f32 sum 0 - -")
        check(ranks[0].silent(0.2) and ranks[1].silent(0.2), "a barrier let ranks through before all had come")
        ranks[2].ok("call g barrier f32 sum 0 - -")
        for rank in ranks[:2]:
            rank.answer("GW_OK")


def bad_spans_are_refused():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        for words, status in (
                ("all_reduce f32 sum 3000 b:0 b:0", "GW_ERR_"),
                ("all_reduce f32 sum 16 b:1 b:1", "GW_ERR_SPAN"),
                ("all_reduce f32 sum 16 b:0 b:4", "GW_ERR_SPAN"),
                ("all_reduce f32 sum 16 b:0 b:8000000", "GW_ERR_"),
                ("all_gather f32 sum 1025 b:0 b:0", "GW_ERR_"),
                ("all_reduce f32 sum 16 - b:0", "GW_ERR_INVALID"),
                ("reduce_scatter f32 sum 16 b:0 b:4", "GW_ERR_SPAN"),
                ("broadcast f32 sum 4 b:0 b:0 root=2", "GW_ERR_INVALID"),
                ("all_reduce 99 sum 16 b:0 b:0", "GW_ERR_INVALID"),
                ("all_reduce f32 99 16 b:0 b:0", "GW_ERR_INVALID"),
                ("99 f32 sum 16 b:0 b:0", "GW_ERR_INVALID"),
                ("barrier f32 sum 1 - -", "GW_ERR_INVALID"),
                ("all_reduce f32 sum 4611686018427387905 b:0 b:0", "GW_ERR_"),
                ("all_reduce f32 sum 16 b:0 b:0 priority=200", "GW_ERR_INVALID")):
            reply = ranks[0].do(f"bucket bad g {words}")
            check(reply.status.startswith(status), f"'{words}' gave {reply}")
        ranks[0].ok("bucket empty g all_reduce f32 sum 0 - -")
        exchange(ranks)


def count_zero_completes():
    with Daemon() as daemon:
        ranks = daemon.group(3)
        for rank in ranks:
            for what in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"):
                rank.ok(f"bucket {what} g {what} f32 sum 0 - -")
        for what in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"):
            exchange(ranks, bucket=what)
        for rank in ranks:
            contains(rank.ok("check g"), "GW_OK last=5 failed=0")


def eight_ranks_and_a_group_of_one():
    with Daemon() as daemon:
        ranks = daemon.ready(8, count=100003)
        exchange(ranks)
        for rank in ranks:
            equal(rank.ok("expect b f32 100003 36"), "0", "wrong elements")
        alone = daemon.ready(1)
        exchange(alone)
        equal(alone[0].ok("expect b f32 1024 1"), "0", "wrong elements of a group of one")


def joining_in_any_order():
    with Daemon() as daemon:
        for order in ([2, 0, 1], [1, 2, 0]):
            ranks = [daemon.rank() for _ in range(3)]
            unique_id = ranks[1].ok("id")
            for r in order:
                ranks[r].send(f"join g {unique_id} 3 {r}")
                time.sleep(0.02)
            for rank in ranks:
                rank.answer("GW_OK")
            prepare(ranks)
            submit(ranks)
            for rank in ranks:
                rank.ok("wait g 1 5000")
                rank.close()


def threads_of_a_rank_call_the_same_collective_at_once():
    with Daemon() as daemon:
        result = subprocess.run([program("tests/integration/threads")], capture_output=True, text=True, check=False,
                                env=dict(os.environ, GRADWIRE_SOCKET=daemon.socket), timeout=30 * SLOW)
        equal(result.returncode, 0, f"exit code ({result.stderr})")


if __name__ == "__main__":
    main(globals())
