"""test_wire.py - device memory in groups over several daemons: by the trainer's stream, and by the daemons' copy engines

Ends within a minute.
"""

import contextlib

from gpu import SIMULATED, SLOW, Daemon, Skip, check, device_states, equal, exchange, join, kill, main, submit, until

PATIENCE_MS = 20000 * SLOW
SMALL, LARGE = 5000, 1 << 20  # elements: below and above device.stream_bytes


@contextlib.contextmanager
def _nodes(*more, **options):
    flags = ("--wire.port=0", "--wire.transports=tcp", "--wire.devices=lo", *more)
    with Daemon("--wire.listen=127.0.0.2", *flags, bystanders=False, checks=False) as a, \
            Daemon("--wire.listen=127.0.0.3", *flags, bystanders=False, checks=False, **options) as b:
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


def _declare(ranks, codec="none"):
    """A bucket that the daemons copy."""
    for number, rank in enumerate(ranks):
        rank.ok(f"alloc b {LARGE * 4}")
        rank.ok(f"fill b f32 {LARGE} {number + 1} 1")
        rank.ok(f"bucket k g all_reduce f32 sum {LARGE} b:0 b:0 codec={codec}")


def _group(*ranks, **options):
    ranks = list(ranks)
    join(ranks)
    _declare(ranks, **options)
    return ranks


def _copied(daemon):
    return daemon.stat("bytes_copied_in"), daemon.stat("bytes_copied_out")


def large_buckets_go_to_another_node():
    with _nodes() as (a, b):
        before = _copied(b)
        ranks = _group(a.rank(memory="device:0"), b.rank(memory="device:1"), b.rank(memory="device:0"),
                       a.rank(memory="host"))
        exchange(ranks)
        exchange(ranks)
        for rank in ranks:  # 4 times the sum of (1 + i) + (2 + i) + (3 + i) + (4 + i)
            equal(rank.ok(f"expect b f32 {LARGE} 40 16"), "0", "wrong elements")
        bytes_copied = 2 * 2 * LARGE * 4  # twice, of two ranks
        equal([now - then for now, then in zip(_copied(b), before)], [bytes_copied, bytes_copied], "copied by the daemon")
        for rank in ranks:
            rank.end()


def codecs_work_on_what_is_copied():
    """Whole numbers up to 510 and thrice that: bf16 has 8 bits of them."""
    with _nodes() as (a, b):
        ranks = _group(a.rank(memory="device:0"), b.rank(memory="device:1"), codec="bf16")
        exchange(ranks)
        wrong = [int(rank.ok(f"expect b f32 {LARGE} 3 2")) for rank in ranks]
        check(wrong[0] == wrong[1] > LARGE // 2, f"{wrong} of {LARGE} numbers were not exact")


def a_node_dies_while_chunks_are_copied():
    with _nodes() as (a, b):
        ranks = _group(a.rank(memory="device:0"), b.rank(memory="device:1"), a.rank(memory="device:1"))
        exchange(ranks)
        ops = submit(ranks)
        kill(b.process)
        for rank, op in zip(ranks, ops):
            if rank is not ranks[1]:
                reply = rank.do(f"wait g {op} {PATIENCE_MS}")
                check(reply.status in ("GW_OK", "GW_ERR_NODE_LOST"), f"{reply}")
                until(lambda r=rank: r.do("check g").status != "GW_OK", "the group has failed")
                rank.expect("GW_ERR_NODE_LOST", "check g")
                rank.end()
        until(lambda: set(device_states(a).values()) <= {"closed"}, "every device is closed")


def a_device_fails_between_nodes():
    if not SIMULATED:
        raise Skip("no GPU fails when it is told to")
    for fail in ("cuMemcpyAsync:3", "cuMemcpyAsync:6"):
        with _nodes(env={"FAKE_CUDA_FAIL": fail}) as (a, b):
            ranks = _group(a.rank(memory="device:0"), b.rank(memory="device:0"))
            uuid = b.admin_json("status")["devices"][0]["uuid"]
            first, second = submit(ranks)
            reply = ranks[0].do(f"wait g {first} {PATIENCE_MS}")  # its result may be whole before the other's is copied
            check(reply.status in ("GW_OK", "GW_ERR_DEVICE"), f"{reply}")
            ranks[1].expect("GW_ERR_DEVICE", f"wait g {second} {PATIENCE_MS}")
            for rank in ranks:
                until(lambda r=rank: r.do("check g").status == "GW_ERR_DEVICE", "the group has failed")
                rank.expect("GW_ERR_DEVICE", "check g", uuid)
            equal(device_states(b), {uuid: "failed"}, "devices")


def an_arena_that_is_full_is_named():
    """It is rounded up to 2 MiB, which has 8 blocks: those of two ranks."""
    with _nodes("--lane.count=1", "--device.wire_bytes=1M", "--wire.chunk_bytes=256K", "--wire.window=4") as (a, b):
        ranks = _group(a.rank(memory="host"), b.rank(memory="device:1"), b.rank(memory="device:1"))
        exchange(ranks)
        more = [a.rank(memory="host"), b.rank(memory="device:1")]
        join(more)
        for rank in more:
            rank.ok(f"alloc b {LARGE * 4}")
            rank.ok(f"fill b f32 {LARGE} 1 1")
        bucket = f"bucket k g all_reduce f32 sum {LARGE} b:0 b:0"
        more[0].ok(bucket)
        for _ in range(3):
            more[1].expect("GW_ERR_QUOTA", bucket, "device.wire_bytes")
        exchange(ranks)
        ranks[2].ok("drop k")  # gives its blocks back
        more[1].ok(bucket)
        exchange(more)
        for rank in more:
            equal(rank.ok(f"expect b f32 {LARGE} 2 2"), "0", "wrong elements")


if __name__ == "__main__":
    main(globals(), 60)
