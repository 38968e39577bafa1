"""test_mismatch.py - ranks that do not do the same: in one operation, in order, across groups, at joining"""

import time

from ranks import ON_DEVICE, SLOW, Daemon, check, contains, equal, exchange, join, main, prepare, submit, until


def _both_hear(first, second, *parts):
    """Two ranks submit buckets that differ; both get both versions, and the group goes on."""
    with Daemon() as daemon:
        ranks = daemon.ready(3)
        exchange(ranks)
        for rank in ranks:
            rank.ok("alloc c 65536")
        ranks[0].ok(f"bucket one g {first}")
        ranks[1].ok(f"bucket one g {second}")
        ranks[2].ok(f"bucket one g {first}")
        ops = [rank.ok("submit one") for rank in ranks]
        for r, rank in enumerate(ranks):
            text = rank.expect("GW_ERR_MISMATCH", f"wait g {ops[r]} 5000", "rank 0", "rank 1", *parts)
            equal(text, ranks[0].do(f"wait g {ops[0]} 0").text, "the texts of two ranks")
            report = rank.expect("GW_ERR_MISMATCH", "check g", *parts)
            contains(report, "GW_OK", "failed=1")
        exchange(ranks)
        for rank in ranks:
            contains(rank.ok("check g"), "last=3", "failed=1")
            equal(rank.ok("expect b f32 1024 18"), "0", "wrong elements afterwards")
        equal(daemon.stat("ops_mismatched"), 1, "mismatches counted")


def how_an_operation_failed_is_known_for_a_while():
    """Until so many later ones have been submitted as may be in flight. Of good ones it is never forgotten."""
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        exchange(ranks)
        for r, rank in enumerate(ranks):
            rank.ok("alloc c 4096")
            rank.ok(f"bucket one g all_reduce f32 sum {10 + r} c:0 c:0")
            rank.ok("submit one")
        for rank in ranks:
            rank.expect("GW_ERR_MISMATCH", "wait g 2 5000")
        for _ in range(63):
            exchange(ranks)
        for rank in ranks:
            rank.expect("GW_ERR_MISMATCH", "wait g 2 0")
        exchange(ranks)
        for rank in ranks:
            rank.expect("GW_ERR_NOT_FOUND", "wait g 2 0", "operation 2", "has failed")
            rank.expect("GW_ERR_NOT_FOUND", "test g 1", "operation 1")
            rank.ok("wait g 3 0")
        for _ in range(64):
            exchange(ranks)
        for rank in ranks:
            rank.ok("wait g 3 0")
            rank.expect("GW_ERR_NOT_FOUND", "wait g 200 0", "the last one submitted is 130")


def different_counts():
    _both_hear("all_reduce f32 sum 100 c:0 c:0", "all_reduce f32 sum 101 c:0 c:0", "x100", "x101", "'one'")


def different_types():
    _both_hear("all_reduce f32 sum 64 c:0 c:0", "all_reduce bf16 sum 64 c:0 c:0", "f32", "bf16")


def different_operations():
    _both_hear("all_reduce f32 sum 64 c:0 c:0", "all_reduce f32 avg 64 c:0 c:0", "f32 sum", "f32 avg")


def different_collectives():
    _both_hear("all_reduce f32 sum 64 c:0 c:0", "reduce_scatter f32 sum 64 c:0 c:4096", "all_reduce", "reduce_scatter")


def different_names():
    _both_hear("all_reduce f32 sum 64 c:0 c:0 as=conv1.weight", "all_reduce f32 sum 64 c:0 c:0 as=conv1.bias",
               "'conv1.weight'", "'conv1.bias'")


def different_roots():
    _both_hear("broadcast f32 sum 64 c:0 c:0 root=0", "broadcast f32 sum 64 c:0 c:0 root=1", "root 0", "root 1")


def different_layouts():
    _both_hear("all_reduce f32 sum 64 c:0 c:0 columns=8", "all_reduce f32 sum 64 c:0 c:0 columns=16", "matrices")


def a_barrier_against_an_all_reduce():
    _both_hear("all_reduce f32 sum 64 c:0 c:0", "barrier f32 sum 0 - -", "barrier", "all_reduce")


def different_priorities_are_no_mismatch():
    with Daemon() as daemon:
        ranks = daemon.group(2)
        for r, rank in enumerate(ranks):
            rank.ok("alloc b 4096")
            rank.ok(f"bucket k g all_reduce f32 sum 64 b:0 b:0 priority={r}")
        exchange(ranks)


def different_order_of_the_same_buckets():
    with Daemon() as daemon:
        ranks = daemon.group(3)
        for rank in ranks:
            rank.ok("alloc b 4096")
            for name in ("one", "two"):
                rank.ok(f"bucket {name} g all_reduce f32 sum 64 b:0 b:0")
        for r, rank in enumerate(ranks):
            for name in ("one", "two") if r else ("two", "one"):
                rank.ok(f"submit {name}")
        for rank in ranks:
            for op in (1, 2):
                rank.expect("GW_ERR_MISMATCH", f"wait g {op} 5000", "'one'", "'two'")
        for rank in ranks:  # an operation has ended when the last rank has heard of it
            contains(rank.expect("GW_ERR_MISMATCH", "check g"), "failed=2", "last=2")


def a_late_rank_hears_of_the_mismatch_too():
    with Daemon() as daemon:
        ranks = daemon.ready(3)
        for r, rank in enumerate(ranks):
            rank.ok(f"bucket one g all_reduce f32 sum {64 + (r == 1)} b:0 b:0")
        ops = [rank.ok("submit one") for rank in ranks[:2]]
        for rank, op in zip(ranks, ops):
            rank.expect("GW_ERR_MISMATCH", f"wait g {op} 5000", "x64", "x65")
        op = ranks[2].ok("submit one")
        ranks[2].expect("GW_ERR_MISMATCH", f"wait g {op} 5000", "x64", "x65")
        exchange(ranks)


def a_rank_may_leave_after_a_mismatch():
    """It has ended for that rank; the late one hears the same as the others."""
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(3)]
        join(ranks)
        prepare(ranks[:1])
        prepare(ranks[1:], count=2048)
        ops = submit(ranks[:2])
        for rank, op in zip(ranks, ops):
            rank.expect("GW_ERR_MISMATCH", f"wait g {op} 5000", "x1024", "x2048")
        ranks[0].ok("leave g")
        ops = submit(ranks[2:])
        ranks[2].expect("GW_ERR_MISMATCH", f"wait g {ops[0]} 5000", "x1024", "x2048")
        ranks[2].expect("GW_ERR_MISMATCH", "check g", "failed=1")


def opposite_order_in_two_groups_works_when_nobody_waits_between():
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(2)]
        for name in "gh":
            join(ranks, name)
            prepare(ranks, name, f"k{name}", f"b{name}")
        ranks[0].ok("submit kg")
        ranks[1].ok("submit kh")
        ranks[0].ok("submit kh")
        ranks[1].ok("submit kg")
        for rank in ranks:
            for name in "gh":
                rank.ok(f"wait {name} 1 5000")
                equal(rank.ok(f"expect b{name} f32 1024 3"), "0", "wrong elements")


def opposite_order_in_two_groups_is_reported_when_both_wait():
    with Daemon("--deadline.late_ms=100", "--deadline.cycle_ms=500") as daemon:
        ranks = [daemon.rank() for _ in range(2)]
        for name in "gh":
            join(ranks, name)
        for rank in ranks:
            rank.ok("alloc b 4096")
        begin = time.monotonic()
        for rank, names in zip(ranks, ("gh", "hg")):
            if ON_DEVICE:  # the second of each waits on the stream, behind the first
                for name in names:
                    rank.ok(f"call {name} all_reduce f32 sum 64 b:0 b:0 0 later")
            rank.send(f"settle {names[0]}" if ON_DEVICE else f"call {names[0]} all_reduce f32 sum 64 b:0 b:0")
        for rank in ranks:
            rank.answer("GW_ERR_CYCLE", f"pid {ranks[0].pid}", f"pid {ranks[1].pid}", "group")
        took = time.monotonic() - begin
        check(0.4 < took < 2 * SLOW, f"reported after {took:.2f} s")
        for rank in ranks:
            for name in "gh":
                rank.expect("GW_ERR_CYCLE", f"check {name}")


def a_slow_rank_in_two_groups_is_no_cycle():
    """The negative control: waiting in one group only, for longer than cycle_ms, is nobody's fault."""
    with Daemon("--deadline.late_ms=50", "--deadline.cycle_ms=200") as daemon:
        ranks = [daemon.rank() for _ in range(2)]
        for name in "gh":
            join(ranks, name)
        for rank in ranks:
            rank.ok("alloc b 4096")
        ranks[0].send("call g all_reduce f32 sum 64 b:0 b:0")
        time.sleep(1)
        ranks[1].ok("call g all_reduce f32 sum 64 b:0 b:0")
        ranks[0].answer("GW_OK")
        ranks[1].send("call h all_reduce f32 sum 64 b:0 b:0")
        ranks[0].ok("call h all_reduce f32 sum 64 b:0 b:0")
        ranks[1].answer("GW_OK")


def a_rank_that_never_joins_is_named():
    with Daemon("--deadline.bootstrap_s=1") as daemon:
        ranks = [daemon.rank() for _ in range(2)]
        unique_id = ranks[0].ok("id")
        for r, rank in ((0, ranks[0]), (2, ranks[1])):
            rank.send(f"join g {unique_id} 4 {r}")
        for rank in ranks:
            reply = rank.answer("GW_ERR_BOOTSTRAP", "rank 1, 3 of 4", "deadline.bootstrap_s")
            check(800 < reply.ms < 3000 * SLOW, f"told after {reply.ms} ms")
        until(lambda: ranks[0].do(f"join g {unique_id} 4 1").status == "GW_ERR_UNKNOWN_ID", "the reason is forgotten")


def a_rank_that_never_splits_is_named():
    with Daemon("--deadline.bootstrap_s=1") as daemon:
        ranks = daemon.ready(3)
        for rank in (ranks[0], ranks[2]):
            rank.send("split g h 0 0")
        for rank in (ranks[0], ranks[2]):
            rank.answer("GW_ERR_BOOTSTRAP", "rank 1 of 3")
        exchange(ranks)


def the_same_rank_twice_is_refused():
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(3)]
        unique_id = ranks[0].ok("id")
        ranks[0].send(f"join g {unique_id} 2 0")
        until(lambda: any(g["state"] == "forming" for g in daemon.admin_json("groups")), "rank 0 has joined")
        ranks[2].expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} 2 0", "rank 0", f"pid {ranks[0].pid}")
        ranks[2].expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} 3 1", "3", "2")
        ranks[1].ok(f"join g {unique_id} 2 1")
        ranks[0].answer("GW_OK")
        ranks[2].expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} 2 1", "complete")
        prepare(ranks[:2])
        exchange(ranks[:2])


def ranks_out_of_range_are_refused():
    with Daemon("--limits.ranks_per_group=8") as daemon:
        rank = daemon.rank()
        unique_id = rank.ok("id")
        for words in ("2 2", "2 -1", "0 0", "-1 0", "9 0"):
            rank.expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} {words}")
        rank.ok(f"join g {unique_id} 1 0")


def wrong_tokens_are_refused():
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(2)]
        unique_id = ranks[0].ok("id")
        ranks[0].send(f"join g {unique_id} 2 0")
        for position in (60, 100):  # a digit of the token, and one of what must be zero
            wrong = unique_id[:position] + format(int(unique_id[position], 16) ^ 1, "x") + unique_id[position + 1:]
            ranks[1].expect("GW_ERR_UNKNOWN_ID", f"join g {wrong} 2 1", "belongs to no group")
        ranks[1].expect("GW_ERR_INVALID_ARGUMENT", f"join g {'00' * 128} 2 1")
        ranks[1].ok(f"join g {unique_id} 2 1")
        ranks[0].answer("GW_OK")


def an_id_of_another_daemon_is_refused():
    with Daemon("--deadline.bootstrap_s=1") as one, Daemon() as other:
        unique_id = one.rank().ok("id")
        other.rank().expect("GW_ERR_UNKNOWN_ID", f"join g {unique_id} 1 0", "another daemon")


if __name__ == "__main__":
    main(globals())
