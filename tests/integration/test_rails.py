"""test_rails.py - large buckets of a group over several nodes are carried by several lanes together

Each daemon listens on a loopback address of its own; the data goes over TCP.
"""

import glob
import re
import subprocess
import time

from ranks import (SILENCE_MS, SLOW, check, equal, exchange, loopback, main, nodes, program, ready, until)

SOON_MS = 2000 * SLOW
TIMEOUT_S = 100 * SLOW
SMALL = "--wire.chunk_bytes=16K"  # so that buckets of tests have many chunks
COUNT = 2000000


def _rails(daemon):
    return [group["wire"]["rails"] for group in daemon.admin_json("groups") if "wire" in group]


def _matrix(*flags):
    with nodes(2, SMALL, *flags) as daemons:
        sockets = ",".join(daemons[place].socket for place in (0, 1, 1))
        result = subprocess.run([program("tests/integration/matrix"), "3", "77", f"sockets={sockets}", "quick"],
                                capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        line = re.search(r"^cases (\d+) wrong (\d+) (\w+) digest (\w+) ", result.stdout, re.M)
        check(result.returncode == 0 and line, f"matrix ended with {result.returncode}: {result.stderr[:500]}")
        return line[2], line[3], line[4]


def results_do_not_depend_on_how_many_lanes_there_are():
    one, four = _matrix("--lane.count=1"), _matrix("--lane.count=4")
    equal(four[:2], ("0", "same"), "wrong results, and results of the ranks, with four lanes")
    equal(four, one, "results with four lanes and with one")


def what_codecs_leave_out_is_kept_on_every_lane():
    said = []
    for lanes in (1, 3):
        with nodes(2, SMALL, f"--lane.count={lanes}") as daemons:
            result = subprocess.run([program("tests/integration/coded"), "codec=int8", "200000", "8", daemons[0].socket,
                                     daemons[1].socket], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            equal(result.returncode, 0, f"coded with {lanes} lanes ({result.stderr[:500]})")
            said.append(result.stdout)
    equal(said[1], said[0], "errors and bits with three lanes and with one")


def the_node_with_the_fewest_lanes_decides():
    with loopback(2, SMALL, each=(["--lane.count=4"], ["--lane.count=2"])) as daemons:
        ranks = ready(daemons, [0, 1], count=COUNT)
        exchange(ranks)
        for daemon in daemons:
            equal(_rails(daemon), [2], "rails of the group")
        for rank in ranks:
            equal(rank.ok(f"expect b f32 {COUNT} 3"), "0", "wrong elements of the sum")


def _lane_ticks(daemon):
    """CPU time of each lane's thread."""
    ticks = []
    for path in glob.glob(f"/proc/{daemon.pid}/task/*/stat"):
        with open(path, encoding="ascii") as file:
            name, rest = re.match(r"\d+ \((.*)\) (.*)", file.read()).groups()
        if name == "gw-lane":
            ticks.append(sum(map(int, rest.split()[11:13])))
    return ticks


def every_lane_works():
    with nodes(2, "--lane.count=3") as daemons:
        ranks = ready(daemons, [0, 1], count=COUNT)
        for rank in ranks:
            rank.send("loop g k 1000000")
        until(lambda: len(_lane_ticks(daemons[0])) == 3 and min(_lane_ticks(daemons[0])) >= 3, "all lanes take CPU time", 20)
        ranks[0].kill()
        ranks[1].answer("GW_ERR_RANK_DIED")


def all_lanes_measure_where_the_first_is_busy():
    """The others hear of the group from it, and must not be asked before."""
    with nodes(2, "--lane.count=2", "--wire.codec=auto:int8", "--reduce.inline_bytes=1G", "--deadline.bootstrap_s=20",
               silence_ms=20000) as daemons:
        busy = ready([daemons[0]] * 2, [0, 0], count=8 * COUNT)  # on the first lane, which reduces it itself
        ready([daemons[0]], [0])  # on the second
        for rank in busy:
            rank.send("loop g k 1000000")
        for _ in range(3):
            ranks = ready(daemons, [0, 1])
            exchange(ranks)
            for rank in ranks:
                rank.end()
        busy[0].kill()
        busy[1].answer("GW_ERR_RANK_DIED")


def a_group_ends_on_all_its_lanes():
    with nodes(2, SMALL, "--lane.count=3") as daemons:
        for _ in range(5):
            ranks = ready(daemons, [0, 1, 0], count=COUNT)
            exchange(ranks)
            for rank in ranks:
                rank.end()
        for daemon in daemons:
            until(lambda d=daemon: d.admin_json("status")["groups"] == 0, "no group is left")
            equal(daemon.stat("groups_failed"), 0, "groups that failed")


def two_groups_share_the_lanes():
    with nodes(2, SMALL, "--lane.count=3") as daemons:
        groups = [ready(daemons, [0, 1], count=COUNT), ready(daemons, [1, 0], count=COUNT + 1)]
        ranks = [rank for group in groups for rank in group]
        for rank in ranks:
            rank.send("loop g k 5")
        for rank in ranks:
            rank.answer("GW_OK")
        for count, group in zip((COUNT, COUNT + 1), groups):
            for rank in group:  # 1 and 2, summed five times: 3, then doubled
                equal(rank.ok(f"expect b f32 {count} {3 * 2 ** 4}"), "0", "wrong elements of the sum")


def _lose(how, status, limit_ms):
    with nodes(3, SMALL, "--lane.count=3", checks=False) as daemons:
        ranks = ready(daemons, [0, 1, 2], count=COUNT)
        exchange(ranks)
        for rank in ranks:
            rank.send("loop g k 1000000")
        time.sleep(0.3)
        began = time.monotonic()
        how(daemons, ranks)
        for rank in (ranks[0], ranks[2]):
            rank.answer(status)
        check((time.monotonic() - began) * 1000 < limit_ms, f"it took {time.monotonic() - began} s")
        for rank in (ranks[0], ranks[2]):
            rank.ok("leave g")  # its memory is not used any more
        for daemon in (daemons[0], daemons[2]):
            daemon.assert_alive()
            until(lambda d=daemon: d.admin_json("status")["groups"] == 0, "the group is gone")
        again = ready([daemons[0], daemons[2]], [0, 1], count=COUNT)
        exchange(again)
        for rank in again:
            equal(rank.ok(f"expect b f32 {COUNT} 3"), "0", "wrong elements of the sum")


def a_killed_daemon_is_named_in_the_middle_of_a_bucket():
    _lose(lambda daemons, ranks: daemons[1].die(), "GW_ERR_NODE_LOST", SILENCE_MS + SOON_MS)


def a_killed_trainer_is_named_in_the_middle_of_a_bucket():
    _lose(lambda daemons, ranks: ranks[1].kill(), "GW_ERR_RANK_DIED", SOON_MS)


if __name__ == "__main__":
    main(globals(), 60)
