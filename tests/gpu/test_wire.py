"""test_wire.py - device memory in groups over several daemons: what goes by the trainer's stream works, the rest is refused

Ends within a minute.
"""

import contextlib

from gpu import Daemon, equal, exchange, join, main, until

SMALL, LARGE = 5000, 1 << 20  # elements: below and above device.stream_bytes


@contextlib.contextmanager
def _nodes():
    flags = ("--wire.port=0", "--wire.transports=tcp", "--wire.devices=lo")
    with Daemon("--wire.listen=127.0.0.2", *flags, bystanders=False, checks=False) as a, \
            Daemon("--wire.listen=127.0.0.3", *flags, bystanders=False, checks=False) as b:
        yield a, b


def small_buckets_go_to_another_node():
    with _nodes() as (a, b):
        ranks = [a.rank(memory="device:0"), b.rank(memory="device:1"), b.rank(memory="device:0")]
        join(ranks)
        for number, rank in enumerate(ranks):
            rank.ok(f"alloc b {SMALL * 4}")
            rank.ok(f"fill b f32 {SMALL} {number + 1} 1")
            rank.ok(f"bucket k g all_reduce f32 sum {SMALL} b:0 b:0")
        exchange(ranks)
        exchange(ranks)
        for rank in ranks:  # 3 times the sum of (1 + i) + (2 + i) + (3 + i)
            equal(rank.ok(f"expect b f32 {SMALL} 18 9"), "0", "wrong elements")
        for rank in ranks:
            rank.end()
        for daemon in (a, b):
            until(lambda d=daemon: d.admin_json("status")["groups"] == 0, "the group has ended")


def large_buckets_are_refused():
    with _nodes() as (a, b):
        ranks = [a.rank(memory="device:0"), b.rank(memory="device:1")]
        join(ranks)
        for rank in ranks:
            rank.ok(f"alloc b {LARGE * 4}")
            rank.expect("GW_ERR_UNSUPPORTED", f"bucket k g all_reduce f32 sum {LARGE} b:0 b:0", "several nodes",
                        "device.stream_bytes")
        for rank in ranks:
            rank.end()


if __name__ == "__main__":
    main(globals(), 60)
