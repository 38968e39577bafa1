"""test_node_faults.py - what happens between nodes that no daemon can help: cables that are cut, packets that are lost,
processors that differ, groups that fail and are made again
"""

import contextlib
import re
import subprocess
import threading
import time

from network import Network
from ranks import SLOW, check, contains, equal, exchange, fds_at_rest, join, loopback, main, prepare, program, submit, until

SILENCE_MS = 1000 * SLOW
KNOWN_MS = 4 * SILENCE_MS  # the limit is 5 s where the silence is 5 s; here a busy machine may take its time
SILENCE = f"--deadline.silence_ms={SILENCE_MS}"
MIB = 1 << 20
TURNS = 24 if SLOW == 1 else 12


@contextlib.contextmanager
def _two(network, silence=SILENCE):
    with network.daemon(0, "--wire.listen=eth0", silence, checks=False) as a, \
            network.daemon(1, silence, bystanders=False, checks=False) as b:
        yield a, b


def _nodes(n, **options):
    return loopback(n, checks=False, **options)


def _ready(daemons, **options):
    ranks = [daemon.rank() for daemon in daemons]
    join(ranks)
    prepare(ranks, **options)
    return ranks


def _works(daemons):
    ranks = _ready(daemons)
    exchange(ranks)
    for rank in ranks:
        equal(rank.ok("expect b f32 1024 3"), "0", "wrong elements of the sum")
        rank.end()
    for daemon in daemons:
        daemon.ranks = []


def _at_rest(daemon):
    """Descriptors of a daemon whose groups have gone."""
    until(lambda: daemon.admin_json("status")["groups"] == bool(daemon.bystanders), "the groups have gone", 10)
    return fds_at_rest(daemon)


# ---- cables -------------------------------------------------------------------------------------------------


def _broken(how):
    """In the middle of a large bucket; both sides hear of it in time, lose what they had open, and go on."""
    with Network() as network, _two(network) as (a, b):
        _works([a, b])
        before = [_at_rest(a), _at_rest(b)]
        memory = a.memory()
        ranks = _ready([a, b], count=4 * MIB)
        exchange(ranks)
        for rank in ranks:
            rank.send("loop g k 1000000")
        time.sleep(0.2)
        began = time.monotonic()
        mend = how(network)
        for number, rank in enumerate(ranks):
            rank.answer("GW_ERR_NODE_LOST", f"node {1 - number} (host")
        took_ms = (time.monotonic() - began) * 1000
        check(took_ms < KNOWN_MS, f"it took {took_ms:.0f} ms")
        check(a.memory() < memory + 64 * MIB, f"{(a.memory() - memory) >> 20} MiB are held for a node that is lost")
        a.check_bystanders()
        for daemon in (a, b):
            daemon.close_ranks() if not daemon.bystanders else [rank.close() for rank in daemon.ranks]
            daemon.ranks = []
        after = [_at_rest(a), _at_rest(b)]
        check(all(x <= y for x, y in zip(after, before)), f"descriptors: {before}, then {after}")
        if mend:
            mend()
            _works([a, b])
        for daemon in (a, b):
            daemon.assert_alive()


def a_cable_that_is_cut_in_the_middle_of_a_bucket():
    def cut(network):
        network.cut()
        return network.mend
    _broken(cut)


def a_node_whose_packets_are_swallowed():
    """It hears everything, but for the other it neither reads nor speaks."""
    _broken(lambda network: network.swallow(1))


def the_mtu_changes_in_the_middle_of_buckets():
    with Network() as network, _two(network, f"--deadline.silence_ms={5000 * SLOW}") as (a, b):
        ended = threading.Event()

        def change():
            sizes = [9000, 1280, 1500, 65535]
            while not ended.wait(0.05):
                sizes.append(sizes.pop(0))
                network.set_mtu(sizes[-1])
        changer = threading.Thread(target=change)
        changer.start()
        try:
            ranks = _ready([a, b], count=2 * MIB)
            for _ in range(12):
                for number, rank in enumerate(ranks):
                    rank.ok(f"fill b f32 {2 * MIB} {number + 1}")
                exchange(ranks)
                for rank in ranks:
                    equal(rank.ok(f"expect b f32 {2 * MIB} 3"), "0", "wrong elements of the sum")
        finally:
            ended.set()
            changer.join()
        equal([daemon.stat("groups_failed") for daemon in (a, b)], [0, 0], "groups that failed")


# ---- processors ---------------------------------------------------------------------------------------------


def nodes_with_other_instructions_have_the_same_bits():
    """Every type and collective, then every codec: nodes of one form, and mixed ones."""
    forms = [form for form in ("avx512", "avx2", "sse2", "neon", "generic") if _has(form)]
    check(len(forms) > 1, f"there is only {forms}")
    digests = {}
    for mixed in ([forms[0], forms[0]], [forms[0], forms[-1]]):
        with _nodes(2, each=[[f"--reduce.isa={form}"] for form in mixed]) as daemons:
            sockets = ",".join(daemon.socket for daemon in daemons)
            result = subprocess.run([program("tests/integration/matrix"), "2", "5", "quick", f"sockets={sockets}"],
                                    capture_output=True, text=True, timeout=60 * SLOW, check=False)
            contains(result.stdout, "wrong 0 same")
            digests.setdefault("none", set()).add(re.search(r"digest (\w+)", result.stdout)[1])
            for codec in ("fp16", "bf16", "fp8", "int8", "int4"):
                result = subprocess.run([program("tests/integration/coded"), f"codec={codec}", "20011", "4",
                                         *[daemon.socket for daemon in daemons]], capture_output=True, text=True,
                                        timeout=60 * SLOW, check=False)
                contains(result.stdout, " same kept")
                digests.setdefault(codec, set()).add(tuple(result.stdout.split()[:4]))
    for what, found in digests.items():
        equal(len(found), 1, f"different results with {what}: {found}")


def _has(form):
    """It is the first thing that a daemon looks at; the next is a folder that cannot be made."""
    result = subprocess.run([program("gradwired"), "--config=/dev/null", f"--reduce.isa={form}",
                             "--socket-dir=/proc/none"], capture_output=True, text=True, timeout=30 * SLOW, check=False)
    equal(result.returncode, 1, "exit status")
    return "reduce.isa" not in result.stderr


def a_form_that_is_not_there_is_named():
    check(not _has("mmx"), "mmx was taken")


# ---- many ---------------------------------------------------------------------------------------------------


def sixteen_pairs_on_eight_nodes_at_once():
    with _nodes(8) as daemons:
        pairs = [[daemons[n].rank(), daemons[n + 4].rank()] for n in range(4) for _ in range(4)]
        for number, pair in enumerate(pairs):
            unique_id = pair[number % 2].ok("id")
            for r, rank in enumerate(pair):
                rank.send(f"join g {unique_id} 2 {r}")
        for pair in pairs:
            for rank in pair:
                rank.answer("GW_OK")
        for number, pair in enumerate(pairs):
            for r, rank in enumerate(pair):
                rank.ok("alloc b 400000")
                rank.ok(f"fill b f32 100000 {number + 100 * r}")
                rank.ok("bucket k g all_reduce f32 sum 100000 b:0 b:0")
        for _ in range(3):
            ops = [submit(pair) for pair in pairs]
            for pair, of in zip(pairs, ops):
                for rank, op in zip(pair, of):
                    rank.ok(f"wait g {op} {20000 * SLOW}")
        for number, pair in enumerate(pairs):  # each round doubles the sum of both
            for rank in pair:
                equal(rank.ok(f"expect b f32 100000 {4 * (2 * number + 100)}"), "0", "wrong elements of the sum")


def groups_that_fail_in_a_bucket_are_made_again():
    """With the same ranks, at once: nothing that is late for the old one reaches the new one, and nothing is left."""
    with _nodes(2) as daemons:
        ranks = [daemons[0].rank(), daemons[1].rank(), daemons[1].rank()]
        for rank in ranks:
            rank.ok(f"alloc b {2 * MIB}")
        for turn in range(TURNS):
            join(ranks)
            for number, rank in enumerate(ranks):
                rank.ok(f"bucket k{turn} g all_reduce f32 sum 500000 b:0 b:0 as=k")
                rank.ok(f"fill b f32 500000 {number + turn}")
            exchange(ranks, bucket=f"k{turn}")
            for rank in ranks:
                equal(rank.ok(f"expect b f32 500000 {3 * turn + 3}"), "0", "wrong elements of the sum")
            leaver = ranks[turn % 3]
            ops = submit(ranks, f"k{turn}")
            leaver.ok("abort g" if turn % 2 else "leave g")
            for rank, op in zip(ranks, ops):
                if rank is not leaver:
                    reply = rank.do(f"wait g {op} {20000 * SLOW}")
                    check(reply.status in ("GW_OK", "GW_ERR_RANK_LEFT", "GW_ERR_ABORTED"), f"it ended with {reply}")
            for rank in ranks:
                if rank is not leaver or turn % 2:
                    rank.ok("leave g")
            if turn == 9:
                before = [(_at_rest(daemon), daemon.memory()) for daemon in daemons]
        for daemon, (fds, memory) in zip(daemons, before):
            check(_at_rest(daemon) <= fds, f"{fds} descriptors, then {daemon.fds()}")
            check(daemon.memory() < memory + 16 * MIB, f"{memory} bytes, then {daemon.memory()}")


if __name__ == "__main__":
    main(globals())
