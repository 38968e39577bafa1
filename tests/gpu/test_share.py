"""test_share.py - trainers that share a GPU, trainers on two, and memory that stays each one's own

Ends within 2 minutes.
"""

import re
import struct

from gpu import Daemon, Skip, check, count_devices, equal, exchange, join, main, prepare, submit, until

SECRET = 1234567.0  # on nobody else's mind
WORDS = struct.pack("<f", SECRET) * 8
LARGE = (1 << 20) + 13  # elements: by the daemon's copies, in chunks, with a rest


def _on_devices(*devices):
    n, total = len(devices), sum(range(1, len(devices) + 1))
    with Daemon() as daemon:
        ranks = [daemon.rank(memory=f"device:{device}") for device in devices]
        join(ranks)
        prepare(ranks, count=1000)
        prepare(ranks, bucket="large", buffer="l", count=LARGE)
        for bucket, buffer, count in (("k", "b", 1000), ("large", "l", LARGE)):
            exchange(ranks, bucket=bucket)
            for rank in ranks:
                equal(rank.ok(f"expect {buffer} f32 {count} {total}"), "0", f"wrong elements of {count}, {n} ranks")
        used = [d["uuid"] for d in daemon.admin_json("status")["devices"] if d["state"] == "open"]
        equal(len(used), len(set(devices)), "devices in use")


def two_trainers_on_one_gpu():
    _on_devices(0, 0)


def five_trainers_on_one_gpu():
    _on_devices(0, 0, 0, 0, 0)


def two_trainers_on_two_gpus():
    if count_devices() < 2:
        raise Skip("one GPU only")
    _on_devices(0, 1)


def four_trainers_on_two_gpus():
    if count_devices() < 2:
        raise Skip("one GPU only")
    _on_devices(0, 1, 1, 0)


def one_rank_in_host_memory_and_one_on_a_gpu():
    with Daemon() as daemon:
        ranks = [daemon.rank(memory="host"), daemon.rank(memory="device:0")]
        join(ranks)
        prepare(ranks, count=LARGE)
        exchange(ranks)
        for rank in ranks:
            equal(rank.ok(f"expect b f32 {LARGE} 3"), "0", "wrong elements")


def _shared_memory(pid):
    """All that a process has in memfds, byte by byte: what it shares with the daemon."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span = re.match(r"([0-9a-f]+)-([0-9a-f]+) (r\S+) .*memfd:", line)
            if span:
                memory.seek(int(span[1], 16))
                found.append(memory.read(int(span[2], 16) - int(span[1], 16)))
    return b"".join(found)


def _use(ranks, count, value):
    """Buckets on both paths; the contents go through everything that the daemon or the library keeps."""
    for rank in ranks:
        for name in ("s", "l"):
            rank.ok(f"alloc {name} {count[name] * 4 * 2}")
            rank.ok(f"fill {name} f32 {count[name]} {value}")
            rank.ok(f"bucket {name} g all_reduce f32 max {count[name]} {name}:0 {name}:0")
    for name in ("s", "l"):
        exchange(ranks, bucket=name)
        exchange(ranks, bucket=name)


def memory_of_one_trainer_is_never_seen_by_another():
    with Daemon() as daemon:
        first = daemon.group(2)
        _use(first, {"s": 10000, "l": LARGE}, SECRET)
        for rank in first:  # the control: what is looked for can be found
            check(WORDS in _shared_memory(rank.pid), "the first group's memory does not hold what it must")
        second = daemon.group(2)  # beside the first
        _use(second, {"s": 10001, "l": LARGE + 2}, 1)
        for rank in first:
            rank.close()
        until(lambda: daemon.admin_json("status")["clients"] == 5, "the first group has gone")
        third = daemon.group(2)  # after it: with what is free now
        _use(third, {"s": 9999, "l": LARGE - 7}, 1)
        for rank in second + third:
            check(WORDS not in _shared_memory(rank.pid), f"pid {rank.pid} shares memory that was another trainer's")
        for ranks, small, large in ((second, 10001, LARGE + 2), (third, 9999, LARGE - 7)):
            for rank in ranks:
                for name, count in (("s", small), ("l", large)):
                    equal(rank.ok(f"expect {name} f32 {count} 1"), "0", "elements of another trainer")
                    equal(rank.ok(f"expect {name}:{count * 4} f32 {count} 0"), "0", "elements behind the bucket")


def fresh_memory_of_the_library_is_zero():
    """What the library shares with the daemon for a bucket that was never submitted holds nothing."""
    with Daemon() as daemon:
        ranks = daemon.group(2)
        _use(ranks, {"s": 10000, "l": LARGE}, SECRET)
        for rank in ranks:
            rank.close()
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the first group has gone")
        rank = daemon.group(1)[0]
        rank.ok("alloc b 40000")
        rank.ok("bucket k g all_reduce f32 sum 10000 b:0 b:0")
        before = daemon.admin_json("buffers")
        check(any(b["copied"] and b["device"] for b in before), f"there is no memory behind the bucket: {before}")
        check(WORDS not in _shared_memory(rank.pid), "memory of another trainer")


def ranks_on_one_gpu_submit_at_once_in_several_groups():
    with Daemon() as daemon:
        ranks = [daemon.rank(memory="device:0") for _ in range(3)]
        for n in range(4):
            members = ranks if n % 2 else ranks[:2]
            join(members, f"g{n}")
            prepare(members, f"g{n}", f"k{n}", f"b{n}", count=LARGE if n < 2 else 777)
        for n in range(4):
            submit(ranks if n % 2 else ranks[:2], f"k{n}")
        for n in reversed(range(4)):
            for rank in ranks if n % 2 else ranks[:2]:
                rank.ok(f"wait g{n} 1 20000")
                count = LARGE if n < 2 else 777
                equal(rank.ok(f"expect b{n} f32 {count} {6 if n % 2 else 3}"), "0", f"wrong elements in group {n}")


if __name__ == "__main__":
    main(globals(), 60)
