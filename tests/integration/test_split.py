"""test_split.py - groups over several daemons make new groups of themselves; and what happens when that fails"""

import os
import signal
import time

from ranks import SLOW, check, contains, equal, exchange, fds_at_rest, main, nodes, ready, until

PATIENT = "--deadline.silence_ms=60000"  # nodes are slow on a busy machine, and those that are lost here are not silent

_buckets = 0


def _split(ranks, arguments, group="g", new="h"):
    """Splits by (color, key) of each rank; returns what each has become: new rank and size, (-1, -1) for none."""
    for rank, (color, key) in zip(ranks, arguments):
        rank.send(f"split {group} {new} {color} {key}")
    return [tuple(int(word) for word in rank.answer("GW_OK").text.split()) for rank in ranks]


def _sums(groups):
    """One operation in all of these groups at once; a group: its ranks, and its name. Exact sums on every rank."""
    global _buckets
    _buckets += 1
    bucket, count = f"k{_buckets}", 50000
    begun = []
    for g, (ranks, name) in enumerate(groups):
        for number, rank in enumerate(ranks):
            rank.ok(f"alloc {bucket}{name} {count * 4}")
            rank.ok(f"fill {bucket}{name} f32 {count} {(number + 1) * (g + 1)}")
            rank.ok(f"bucket {bucket}{name} {name} all_reduce f32 sum {count} {bucket}{name}:0 {bucket}{name}:0")
    for ranks, name in groups:
        begun += [(rank, name, rank.ok(f"submit {bucket}{name}")) for rank in ranks]
    for rank, name, op in begun:
        rank.ok(f"wait {name} {op} {20000 * SLOW}")
    for g, (ranks, name) in enumerate(groups):
        total = (g + 1) * len(ranks) * (len(ranks) + 1) // 2
        for rank in ranks:
            equal(rank.ok(f"expect {bucket}{name} f32 {count} {total}"), "0", f"wrong elements in group {g}")


def _order(ranks, name):
    """The new group's ranks, in order, seen by what each gathers."""
    for number, rank in enumerate(ranks):
        rank.ok(f"alloc o{name} 4096")
        rank.ok(f"fill o{name} f32 8 {number + 1}")
        rank.ok(f"bucket o{name} {name} all_gather f32 sum 8 o{name}:0 o{name}:512")
    exchange(ranks, name, f"o{name}")
    for rank in ranks:
        for number in range(len(ranks)):
            equal(rank.ok(f"expect o{name}:{512 + 32 * number} f32 8 {number + 1}"), "0", f"rank {number} of {name}")


def _leave(ranks, *names):
    for name in names:
        for rank in ranks:
            rank.send(f"leave {name}")
        for rank in ranks:
            rank.answer("GW_OK")


def _each(daemons, *parts):
    """Runs what is given, one after the other on the same daemons: to start daemons takes long."""
    for part in parts:
        print(f"# {part.__name__[1:].replace('_', ' ')}", flush=True)
        part(daemons)
        for daemon in daemons:
            if daemon.is_alive():
                daemon.close_ranks()
        for daemon in daemons:
            if daemon.is_alive():
                until(lambda d=daemon: d.admin_json("status")["groups"] == 0, "no group is left")


# ---- values -------------------------------------------------------------------------------------------------


def _colors_across_two_nodes(daemons):
    ranks = ready(daemons, [0, 0, 1, 1])
    equal(_split(ranks, [(r % 2, 0) for r in range(4)]), [(0, 2), (0, 2), (1, 2), (1, 2)], "ranks and sizes")
    _sums([(ranks, "g"), (ranks[0::2], "h"), (ranks[1::2], "h")])
    _order(ranks[0::2], "h")
    _leave(ranks, "g")  # the new ones do not depend on it
    _sums([(ranks[0::2], "h"), (ranks[1::2], "h")])


def _colors_on_one_node_each(daemons):
    ranks = ready(daemons, [0, 1, 0, 1])
    equal(_split(ranks, [(5 + r % 2, 0) for r in range(4)]), [(0, 2), (0, 2), (1, 2), (1, 2)], "ranks and sizes")
    _sums([(ranks, "g"), (ranks[0::2], "h"), (ranks[1::2], "h")])
    for daemon in daemons[:2]:
        spans = sorted(len({rank["node"] for rank in group["ranks"]}) for group in daemon.admin_json("groups"))
        equal(spans, [1, 2], "nodes of the groups")


def _keys_turn_the_order_round(daemons):
    ranks = ready(daemons, [0, 1, 2, 0])
    equal(_split(ranks, [(0, -r) for r in range(4)]), [(3, 4), (2, 4), (1, 4), (0, 4)], "ranks and sizes")
    _order(ranks[::-1], "h")
    _sums([(ranks[::-1], "h"), (ranks, "g")])
    shown = [[rank["pid"] for rank in daemon.admin_json("groups")[0]["ranks"]] for daemon in daemons[:3]]
    equal(shown, [[rank.pid for rank in ranks[::-1]]] * 3, "pids of the new ranks")


def _uneven_colors_and_none(daemons):
    ranks = ready(daemons, [0, 1, 1, 2, 3, 3])
    equal(_split(ranks, [(0, 0), (0, 0), (7, 0), (-1, 3), (0, 0), (-5, 0)]),
          [(0, 3), (1, 3), (0, 1), (-1, -1), (2, 3), (-1, -1)], "ranks and sizes")
    _sums([([ranks[0], ranks[1], ranks[4]], "h"), ([ranks[2]], "h"), (ranks, "g")])
    equal(_split(ranks, [(-1, 0)] * 6, new="i"), [(-1, -1)] * 6, "ranks and sizes when nobody takes part")
    _sums([(ranks, "g")])


def _a_split_of_a_split(daemons):
    ranks = ready(daemons, [0, 1, 2, 3, 0, 1, 2, 3])
    equal(_split(ranks, [(r // 4, 0) for r in range(8)]), [(r % 4, 4) for r in range(8)], "ranks and sizes")
    halves = [ranks[:4], ranks[4:]]
    for half in halves:  # both at once, of groups that span the same nodes
        for r, rank in enumerate(half):
            rank.send(f"split h i {r % 2} 0")
    for half in halves:
        equal([rank.answer("GW_OK").text for rank in half], ["0 2", "0 2", "1 2", "1 2"], "ranks and sizes")
    _sums([(half[o::2], "i") for half in halves for o in (0, 1)] + [(half, "h") for half in halves] + [(ranks, "g")])


def new_groups_are_right():
    with nodes(4, PATIENT) as daemons:
        _each(daemons, _colors_across_two_nodes, _colors_on_one_node_each, _keys_turn_the_order_round,
              _uneven_colors_and_none, _a_split_of_a_split)


def sixteen_pairs_over_eight_nodes():
    with nodes(8, PATIENT) as daemons:
        ranks = ready(daemons, [r // 4 for r in range(32)])
        equal(_split(ranks, [(r % 16, 0) for r in range(32)]), [(r // 16, 2) for r in range(32)], "ranks and sizes")
        _sums([([ranks[p], ranks[p + 16]], "h") for p in range(16)] + [(ranks, "g")])


def splitting_again_and_again_leaves_nothing():
    with nodes(2, PATIENT) as daemons:
        ranks = ready(daemons, [0, 1, 1])
        exchange(ranks)
        until(lambda: [len(d.admin_json("groups")) for d in daemons] == [1, 1], "only the first group is there")
        fds = [fds_at_rest(daemon) for daemon in daemons]
        memory = None
        for turn in range(12):
            _split(ranks, [(0, turn), (0, 0), (0, -turn)])
            _split(ranks, [(r % 2, 0) for r in range(3)], new="i")
            if turn == 0:
                _sums([(ranks[0::2], "i")])
            _leave(ranks, "h", "i")
            if turn == 3:
                memory = [daemon.memory() for daemon in daemons]
        for daemon, before, bytes_ in zip(daemons, fds, memory):
            until(lambda d=daemon: len(d.admin_json("groups")) == 1, "no new group is left")
            daemon.wait_fd_count(before, 5)
            check(SLOW > 1 or daemon.memory() < bytes_ + (8 << 20), f"{daemon.memory() - bytes_} more bytes are in use")
        exchange(ranks)


# ---- failures -----------------------------------------------------------------------------------------------


def _ranks_that_do_not_call_are_named(daemons):
    ranks = ready(daemons, [0, 0, 1, 1])
    for r in (0, 2):
        ranks[r].send("split g h 0 0")
    for r in (0, 2):
        ranks[r].answer("GW_ERR_BOOTSTRAP", "rank 1, 3 of 4 did not call split", "deadline.bootstrap_s")
    exchange(ranks)
    equal(_split(ranks, [(0, 0)] * 4), [(r, 4) for r in range(4)], "ranks and sizes of the next one")
    _sums([(ranks, "h"), (ranks, "g")])


def _a_quota_on_one_node_ends_it_on_all(daemons):
    others = [ready(daemons[1:2], [0])[0] for _ in range(2)]
    ranks = ready(daemons, [0, 1, 2, 0])
    for r, rank in enumerate(ranks):
        rank.send(f"split g h {r % 2} 0")
    for rank in ranks:
        rank.answer("GW_ERR_QUOTA", "limits.groups_per_uid", f"host {daemons[1].admin_json('status')['host']}")
    exchange(ranks)
    for rank in others:
        rank.end()
    until(lambda: [len(d.admin_json("groups")) for d in daemons] == [1, 1, 1], "nothing is left of it")
    equal(_split(ranks, [(0, 0)] * 4), [(r, 4) for r in range(4)], "ranks and sizes of the next one")
    _sums([(ranks, "h"), (ranks, "g")])


def _a_killed_rank_ends_it_on_all_nodes(daemons):
    ranks = ready(daemons, [0, 1, 2, 2])
    for r in (0, 2, 3):
        ranks[r].send("split g h 0 0")
    time.sleep(0.1)
    ranks[2].kill()  # one that has called
    for r in (0, 3):
        ranks[r].answer("GW_ERR_RANK_DIED", "rank 2", f"pid {ranks[2].pid}")
    ranks[1].expect("GW_ERR_RANK_DIED", "split g h 0 0", "rank 2")


def _an_abort_ends_it_on_all_nodes(daemons):
    ranks = ready(daemons, [0, 1])
    ranks[0].send("split g h 0 0")
    time.sleep(0.1)
    ranks[1].ok("abort g enough")
    ranks[0].answer("GW_ERR_ABORTED", "enough")


def _a_rank_that_leaves_ends_it(daemons):
    ranks = ready(daemons, [0, 1, 1])
    ranks[0].send("split g h 0 0")
    check(ranks[0].silent(0.3), "the split does not wait")
    ranks[1].ok("leave g")
    ranks[0].answer("GW_ERR_RANK_LEFT", "rank 1")
    ranks[0].expect("GW_ERR_RANK_LEFT", "split g h 0 0", "has left")  # the other node says so
    ranks[2].expect("GW_ERR_RANK_LEFT", "split g h 0 0", "has left")
    ranks[2].send("leave g")
    until(lambda: ranks[0].do("split g h 0 0").status == "GW_ERR_RANK_LEFT", "the node has left")
    ranks[0].ok("leave g")
    ranks[2].answer("GW_OK")


def _a_killed_daemon_is_named_to_those_who_wait(daemons):
    others = ready(daemons, [0, 2])
    ranks = ready(daemons, [0, 1, 2])
    for r in (0, 1):
        ranks[r].send("split g h 0 0")
    time.sleep(0.1)
    daemons[1].die()
    ranks[0].answer("GW_ERR_NODE_LOST", "node 1")
    ranks[2].expect("GW_ERR_NODE_LOST", "split g h 0 0", "node 1")
    equal(_split(others, [(0, 0), (0, 0)]), [(0, 2), (1, 2)], "ranks and sizes of another group's")
    _sums([(others, "h"), (others, "g")])


def _all_call_while_one_is_stopped(daemons, ranks, stopped):
    """All ranks have called, and all daemons but one have made the new groups."""
    for rank in ranks[1:]:
        rank.send("split g h 0 0")
    time.sleep(0.3)
    os.kill(daemons[stopped].pid, signal.SIGSTOP)
    ranks[0].send("split g h 0 0")
    for number, daemon in enumerate(daemons):
        if number != stopped:
            until(lambda d=daemon: len(d.admin_json("groups")) == 2, "the new group is there")


def _a_daemon_that_is_killed_while_the_new_groups_form(daemons):
    ranks = ready(daemons, [0, 1, 2])
    _all_call_while_one_is_stopped(daemons, ranks, 1)
    daemons[1].die()
    for r in (0, 2):
        ranks[r].answer("GW_ERR_NODE_LOST", "node 1")
    for r in (0, 2):
        ranks[r].ok("leave g")
        until(lambda d=daemons[r]: d.admin_json("status")["groups"] == 0, "no group is left")


def _a_daemon_that_is_late_ends_it_and_the_parent_goes_on(daemons):
    ranks = ready(daemons, [0, 1, 2])
    exchange(ranks)
    fds = [fds_at_rest(daemon) for daemon in daemons]
    _all_call_while_one_is_stopped(daemons, ranks, 1)
    for r in (0, 2):
        text = ranks[r].answer("GW_ERR_BOOTSTRAP", "node 1 (host", "did not get ready").text
        check("node 0" not in text and "node 2" not in text, f"others are named: {text}")
    os.kill(daemons[1].pid, signal.SIGCONT)
    ranks[1].answer("GW_ERR_BOOTSTRAP")  # by its own deadline or that of the others
    exchange(ranks)
    for daemon, before in zip(daemons, fds):
        until(lambda d=daemon: len(d.admin_json("groups")) == 1, "nothing is left of it")
        daemon.wait_fd_count(before, 5)
    equal(_split(ranks, [(0, 0)] * 3), [(r, 3) for r in range(3)], "ranks and sizes of the next one")
    _sums([(ranks, "h"), (ranks, "g")])


def _a_rank_is_killed_while_the_new_groups_form(daemons):
    ranks = ready(daemons, [0, 1, 2])
    _all_call_while_one_is_stopped(daemons, ranks, 1)
    ranks[2].kill()
    ranks[0].answer("GW_ERR_RANK_DIED", f"pid {ranks[2].pid}")
    os.kill(daemons[1].pid, signal.SIGCONT)
    ranks[1].answer("GW_ERR_RANK_DIED", f"pid {ranks[2].pid}")


def _a_node_without_descriptors_ends_it_on_all(daemons):
    ranks = ready(daemons, [0, 1])
    exchange(ranks)
    for spare in (0, 2, 6):
        daemons[1].spare_fds(spare)
        for rank in ranks:
            rank.send("split g h 0 0")
        replies = [rank.recv() for rank in ranks]
        check({reply.status for reply in replies} == {"GW_ERR_FD_LIMIT"}, f"{replies}")
        contains(replies[0].text, "host ")
        daemons[1].spare_fds(None)
        until(lambda: [len(d.admin_json("groups")) for d in daemons[:2]] == [1, 1], "nothing is left of it")
        exchange(ranks)
    equal(_split(ranks, [(0, 0)] * 2), [(0, 2), (1, 2)], "ranks and sizes of the next one")
    _sums([(ranks, "h"), (ranks, "g")])


def losses_and_limits_end_it_on_all_nodes():
    with nodes(3, PATIENT, "--limits.groups_per_uid=3") as daemons:
        _each(daemons, _a_killed_rank_ends_it_on_all_nodes, _an_abort_ends_it_on_all_nodes, _a_rank_that_leaves_ends_it,
              _a_rank_is_killed_while_the_new_groups_form, _a_quota_on_one_node_ends_it_on_all,
              _a_node_without_descriptors_ends_it_on_all)


def those_who_are_late_are_named():
    with nodes(3, PATIENT, f"--deadline.bootstrap_s={2 * SLOW}") as daemons:
        _each(daemons, _ranks_that_do_not_call_are_named, _a_daemon_that_is_late_ends_it_and_the_parent_goes_on)


def a_lost_daemon_ends_it():
    with nodes(4, PATIENT, checks=False) as daemons:
        _each(daemons, _a_killed_daemon_is_named_to_those_who_wait)
        _each([daemons[0], daemons[2], daemons[3]], _a_daemon_that_is_killed_while_the_new_groups_form)


if __name__ == "__main__":
    main(globals(), 110)
