"""test_death.py - ranks that die, stop, leave or fork, and a daemon that dies"""

import os
import signal
import time

from ranks import SLOW, Daemon, check, contains, equal, exchange, join, main, prepare, until

SOON_MS = 2000 * SLOW  # "within 2 s"


def _told_of(survivors, dead, *parts, op=None, group="g"):
    """Every survivor's wait ends soon with an error that names rank and pid; all agree on what is complete."""
    reports = set()
    for rank in survivors:
        if op:
            reply = rank.answer("GW_ERR_RANK_DIED", f"pid {dead.pid}", *parts)
            check(reply.ms < SOON_MS, f"told after {reply.ms} ms")
        report = rank.do(f"check {group}")
        equal(report.status, "GW_ERR_RANK_DIED", "gw_group_check")
        contains(report.text, "GW_ERR_RANK_DIED", f"pid {dead.pid}", *parts)
        reports.add(report.text.split(" failed=")[0])
    equal(len(reports), 1, f"different last completed operations: {reports}")
    return reports.pop()


def killed_before_any_submit():
    with Daemon() as daemon:
        ranks = daemon.ready(3)
        ranks[1].kill()
        until(lambda: ranks[0].do("check g").status != "GW_OK", "rank 0 hears of the death", 2)
        until(lambda: ranks[2].do("check g").status != "GW_OK", "rank 2 hears of the death", 2)
        _told_of([ranks[0], ranks[2]], ranks[1], "rank 1")
        for r in (0, 2):
            ranks[r].expect("GW_ERR_RANK_DIED", "submit k", "rank 1", f"pid {ranks[1].pid}")
            ranks[r].expect("GW_ERR_RANK_DIED", "call g barrier f32 sum 0 - -", "rank 1")


def killed_while_the_others_wait_for_it():
    with Daemon() as daemon:
        ranks = daemon.ready(4, more="as=layer1.weight")
        exchange(ranks)
        for r in (0, 1, 3):
            op = ranks[r].ok("submit k")
            ranks[r].send(f"wait g {op} -1")
        time.sleep(0.1)
        ranks[2].kill()
        last = _told_of([ranks[r] for r in (0, 1, 3)], ranks[2], "rank 2", "layer1.weight", op=2)
        contains(last, "last=1")


def killed_after_its_submit():
    with Daemon() as daemon:
        ranks = daemon.ready(3, more="as=layer2.bias")
        ranks[0].ok("submit k")
        op = ranks[1].ok("submit k")
        ranks[1].send(f"wait g {op} -1")
        ranks[0].kill()
        reply = ranks[1].answer("GW_ERR_RANK_DIED", "rank 0", f"pid {ranks[0].pid}", "layer2.bias")
        check(reply.ms < SOON_MS, f"told after {reply.ms} ms")
        ranks[2].expect("GW_ERR_RANK_DIED", "submit k", "rank 0")
        _told_of(ranks[1:], ranks[0], "rank 0")


def killed_in_the_middle_of_large_buckets():
    """At any moment of submit, reduction and completion."""
    with Daemon() as daemon:
        for delay_ms in (0, 1, 3, 7, 15, 30):
            ranks = daemon.ready(3, count=2 << 20, more="as=large")
            for rank in ranks:
                rank.send("loop g k 1000000")
            time.sleep(0.05 + delay_ms / 1000)
            ranks[1].kill()
            for r in (0, 2):
                reply = ranks[r].recv()
                equal(reply.status, "GW_ERR_RANK_DIED", "the end of the loop")
                contains(reply.text, "rank 1", f"pid {ranks[1].pid}")
            _told_of([ranks[0], ranks[2]], ranks[1], "rank 1")
            for rank in ranks:
                rank.close()
        daemon.check_bystanders()


def killed_during_bootstrap():
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(3)]
        unique_id = ranks[0].ok("id")
        for r in (0, 2):
            ranks[r].send(f"join g {unique_id} 3 {r}")
        until(lambda: [g for g in daemon.admin_json("groups") if g["state"] == "forming" and
                       sum(r["present"] for r in g["ranks"]) == 2], "two ranks have joined")
        ranks[2].kill()
        reply = ranks[0].answer("GW_ERR_RANK_DIED", "rank 2", f"pid {ranks[2].pid}")
        ranks[1].expect("GW_ERR_RANK_DIED", f"join g {unique_id} 3 1", "rank 2", f"pid {ranks[2].pid}")
        check(reply.ms < 10000 * SLOW, f"told after {reply.ms} ms")


def killed_while_the_others_split():
    with Daemon() as daemon:
        ranks = daemon.group(3)
        for r in (0, 1):
            ranks[r].send("split g h 0 0")
        time.sleep(0.1)
        ranks[2].kill()
        for r in (0, 1):
            ranks[r].answer("GW_ERR_RANK_DIED", "rank 2", f"pid {ranks[2].pid}")


def all_ranks_killed_at_once():
    with Daemon() as daemon:
        ranks = daemon.ready(4, count=1 << 20)
        for rank in ranks:
            rank.send("loop g k 1000000")
        time.sleep(0.05)
        for rank in ranks:
            os.kill(rank.pid, signal.SIGKILL)


def exit_without_goodbye():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        op = ranks[0].ok("submit k")
        ranks[0].send(f"wait g {op} -1")
        ranks[1].send("exit 0")
        ranks[0].answer("GW_ERR_RANK_DIED", "rank 1", f"pid {ranks[1].pid}")


def other_groups_of_a_process_that_lost_a_peer_go_on():
    with Daemon() as daemon:
        ranks = daemon.ready(3)
        join(ranks[:2], "h")
        for rank in ranks[:2]:
            rank.ok("alloc c 4096")
            rank.ok("bucket kh h all_reduce f32 sum 1024 c:0 c:0")
        ranks[2].kill()
        until(lambda: ranks[0].do("check g").status == "GW_ERR_RANK_DIED", "group g fails", 2)
        exchange(ranks[:2], "h", "kh")


def leaving_after_the_last_operation_is_no_error():
    with Daemon() as daemon:
        ranks = daemon.ready(3)
        exchange(ranks)
        ranks[1].ok("leave g")
        for r in (0, 2):
            contains(ranks[r].ok("check g"), "GW_OK", "last=1")
            ranks[r].ok("leave g")


def leaving_while_others_submit_is_told_to_them():
    with Daemon() as daemon:
        ranks = daemon.ready(3, more="as=late.bucket")
        exchange(ranks)
        op = ranks[0].ok("submit k")
        ranks[0].send(f"wait g {op} -1")
        time.sleep(0.05)
        ranks[1].ok("leave g")
        reply = ranks[0].answer("GW_ERR_RANK_LEFT", "rank 1", f"pid {ranks[1].pid}", "late.bucket")
        check(reply.ms < SOON_MS, f"told after {reply.ms} ms")
        ranks[2].expect("GW_ERR_RANK_LEFT", "submit k")


def submitting_after_another_has_left_is_an_error_at_once():
    with Daemon() as daemon:
        ranks = daemon.ready(2, more="as=too.late")
        exchange(ranks)
        ranks[1].ok("leave g")
        op = ranks[0].ok("submit k")
        reply = ranks[0].do(f"wait g {op} -1")
        equal(reply.status, "GW_ERR_RANK_LEFT", "the wait")
        contains(reply.text, "rank 1", "too.late")
        check(reply.ms < SOON_MS, f"told after {reply.ms} ms")


def leaving_with_an_unfinished_operation_fails_the_group():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        ranks[0].ok("submit k")
        ranks[0].ok("leave g")
        ranks[1].expect("GW_ERR_RANK_LEFT", "submit k", "rank 0")


def what_a_rank_submitted_before_it_left_is_heard():
    """More than a lane reads of one channel at once: the command to let the rank go is there before the last submit."""
    names = [f"k{n}" for n in range(33)]
    with Daemon() as daemon:
        for _ in range(20):
            ranks = daemon.ready(2)
            for n, name in enumerate(names):
                for rank in ranks:
                    rank.ok(f"bucket {name} g all_reduce f32 sum 16 b:{64 * n} b:{64 * n}")
            for name in names[:-1]:
                ranks[1].ok(f"submit {name}")
            os.kill(daemon.pid, signal.SIGSTOP)
            try:
                for name in names:
                    ranks[0].ok(f"submit {name}")
                ranks[0].send("leave g")
                time.sleep(0.01)
            finally:
                os.kill(daemon.pid, signal.SIGCONT)
            ranks[0].answer("GW_OK")
            ranks[1].expect("GW_ERR_RANK_LEFT", f"submit {names[-1]}", "rank 0")
            for rank in ranks:
                rank.end()


def stopped_rank_is_named_and_goes_on_when_continued():
    with Daemon("--deadline.late_ms=200") as daemon:
        ranks = daemon.ready(3, more="as=slow.bucket")
        ranks[2].stop()
        for rank in ranks[:2]:
            op = rank.ok("submit k")
            rank.send(f"wait g {op} -1")
        until(lambda: "slow.bucket" in daemon.log(), "the late rank is named", 3)
        line = next(line for line in daemon.log().splitlines() if "slow.bucket" in line)
        contains(line, "rank 2", f"pid {ranks[2].pid}")
        check("rank 0" not in line and "rank 1" not in line, f"ranks that are not late are named: {line}")
        equal(daemon.stat("late_reports"), 1, "late reports")
        group = next(g for g in daemon.admin_json("groups") if g["nranks"] == 3)
        check("late" in group and group["late"]["ranks"] == [2], f"gwctl groups names others: {group.get('late')}")
        ranks[2].go_on()
        op = ranks[2].ok("submit k")
        ranks[2].ok(f"wait g {op} 5000")
        for rank in ranks[:2]:
            rank.answer("GW_OK")
        group = next(g for g in daemon.admin_json("groups") if g["nranks"] == 3)
        check("late" not in group, "it is still called late")
        late = group["ranks"][2]
        check(late["last_count"] == 1 and late["last_ns"] > 1e8, f"lateness is not counted: {late}")


def stopped_rank_ends_the_group_at_the_deadline():
    with Daemon("--deadline.late_ms=100", "--deadline.bucket_s=1") as daemon:
        ranks = daemon.ready(2, more="as=dead.line")
        ranks[1].stop()
        op = ranks[0].ok("submit k")
        reply = ranks[0].do(f"wait g {op} -1")
        equal(reply.status, "GW_ERR_DEADLINE", "the wait")
        contains(reply.text, "rank 1", f"pid {ranks[1].pid}", "dead.line")
        check(900 < reply.ms < 2500 * SLOW, f"the deadline came after {reply.ms} ms")
        ranks[1].go_on()
        ranks[1].expect("GW_ERR_DEADLINE", "submit k", "rank 1")


def killed_daemon_is_noticed_at_once():
    with Daemon(bystanders=False, checks=False) as daemon:
        ranks = daemon.ready(3)
        idle = daemon.rank()
        half = daemon.rank()
        half_id = half.ok("id")
        half.send(f"join h {half_id} 2 0")
        op = ranks[0].ok("submit k")
        ranks[0].send(f"wait g {op} -1")
        ranks[1].send("poll g 10000")
        time.sleep(0.2)
        daemon.die()
        killed = time.monotonic()
        ranks[0].answer("GW_ERR_DAEMON_GONE")
        ranks[1].answer("GW_OK", "readable")
        half.answer("GW_ERR_DAEMON_GONE")
        ranks[2].expect("GW_ERR_DAEMON_GONE", "submit k")
        ranks[2].expect("GW_ERR_DAEMON_GONE", "check g")
        ranks[2].expect("GW_ERR_DAEMON_GONE", "call g barrier f32 sum 0 - -")
        idle.expect("GW_ERR_DAEMON_GONE", "id")
        idle.expect("GW_ERR_DAEMON_GONE", "alloc b 4096")
        check(time.monotonic() - killed < 1 * SLOW, "it took more than a second")
        for rank in ranks[:2]:
            rank.expect("GW_ERR_DAEMON_GONE", "submit k")
        for rank in ranks + [idle, half]:
            rank.ok("disconnect")
        idle.expect("GW_ERR_NO_DAEMON", "connect", daemon.socket)


def killed_daemon_in_the_middle_of_traffic():
    for delay_ms in (1, 5, 20):
        with Daemon(bystanders=False, checks=False) as daemon:
            ranks = daemon.ready(2, count=1 << 20)
            for rank in ranks:
                rank.send("loop g k 1000000")
            time.sleep(0.05 + delay_ms / 1000)
            daemon.die()
            killed = time.monotonic()
            for rank in ranks:
                rank.answer("GW_ERR_DAEMON_GONE")
            check(time.monotonic() - killed < 1 * SLOW, "it took more than a second")


def clients_find_a_restarted_daemon():
    with Daemon(bystanders=False) as daemon:
        ranks = daemon.ready(2)
        old_id = ranks[0].ok("id")
        daemon.die()
        daemon.restart()
        for rank in ranks:
            rank.ok("disconnect")
            rank.ok("connect")
        ranks[0].expect("GW_ERR_UNKNOWN_ID", f"join g {old_id} 2 0", "restarted")
        join(ranks)
        prepare(ranks)
        exchange(ranks)


def forked_child_is_told_and_its_parent_goes_on():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        child, *statuses = ranks[1].ok("fork g k").split()
        try:
            equal(statuses, ["GW_ERR_FORKED"] * 4 + ["GW_OK"], "check, submit, id, alloc and a connection of its own")
            exchange(ranks)
        finally:
            os.kill(int(child), signal.SIGKILL)
        exchange(ranks)


def parent_killed_while_its_child_holds_the_sockets():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        child = int(ranks[1].ok("fork g k").split()[0])
        try:
            op = ranks[0].ok("submit k")
            ranks[0].send(f"wait g {op} -1")
            ranks[1].kill()
            os.kill(child, 0)  # the child lives, so the sockets are open
            reply = ranks[0].answer("GW_ERR_RANK_DIED", "rank 1", f"pid {ranks[1].pid}")
            check(reply.ms < SOON_MS, f"told after {reply.ms} ms")
        finally:
            os.kill(child, signal.SIGKILL)


def abort_reaches_every_rank():
    with Daemon() as daemon:
        ranks = daemon.ready(3)
        op = ranks[0].ok("submit k")
        ranks[0].send(f"wait g {op} -1")
        ranks[2].ok("abort g loss-is-nan")
        ranks[0].answer("GW_ERR_ABORTED", "rank 2", "loss-is-nan")
        ranks[1].expect("GW_ERR_ABORTED", "submit k", "loss-is-nan")
        ranks[2].expect("GW_ERR_ABORTED", "check g", "loss-is-nan")


def abort_ends_a_split():
    with Daemon() as daemon:
        ranks = daemon.group(3)
        ranks[0].send("split g h 0 0")
        time.sleep(0.1)
        ranks[1].ok("abort g enough")
        ranks[0].answer("GW_ERR_ABORTED", "enough")


def many_groups_of_one_pair_fail_one_by_one():
    with Daemon() as daemon:
        ranks = [daemon.rank() for _ in range(2)]
        for n in range(20):
            join(ranks, f"g{n}")
        ranks[1].kill()
        until(lambda: all(ranks[0].do(f"check g{n}").status == "GW_ERR_RANK_DIED" for n in range(20)),
              "all groups have failed", 2)
        for n in range(20):
            ranks[0].ok(f"leave g{n}")


if __name__ == "__main__":
    main(globals())
