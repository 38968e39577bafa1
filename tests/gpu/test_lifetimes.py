"""test_lifetimes.py - after 1000 client lifetimes the daemon's memory, descriptors and GPU memory are back at the baseline

Most clients are connections of a few processes, since it takes a process a third of a second to get at a GPU; some are
processes of their own, and die in several ways. GW_GPU_LIFETIMES says how many. Ends within 3 minutes.
"""

import os
import time

from gpu import (QUICK, SLOW, Daemon, check, check_given_back, device_states, equal, exchange,
                 fds_at_rest, held_mib, join, main, prepare, until)

LIFETIMES = int(os.environ.get("GW_GPU_LIFETIMES", 60 if QUICK else 1000))
WARM_UP = max(LIFETIMES // 10, 10)
PROCESSES = max(LIFETIMES // 50, 2)
COUNT, LARGE = 5000, 300001
KINDS = {"malloc": "ipc", "vmm": "vmm", "pool": "pool"}
KB, MB = 1 << 10, 1 << 20
GROWTH_KB = 4096  # allocators keep what was used at once; a leak of 5 KB a lifetime would be seen


def _live(pair, number):
    """Two clients meet, average small and large buckets, and end in one of several ways. They are connected before."""
    join(pair)
    prepare(pair, count=COUNT)
    prepare(pair, bucket="large", buffer="l", count=LARGE)
    for _ in range(2):
        exchange(pair)
    exchange(pair, bucket="large")
    for rank in pair:
        equal(rank.ok(f"expect b f32 {COUNT} 6"), "0", "wrong elements")
        equal(rank.ok(f"expect l f32 {LARGE} 3"), "0", "wrong elements of a large bucket")
    way = number % 4
    if way == 0:
        for rank in pair:
            for command in ("drop k", "drop large", "release b", "release l", "leave g"):
                rank.ok(command)
    elif way == 1:
        pair[0].ok("submit k")  # and goes away in the middle of it
    elif way == 2:
        for rank in pair:
            rank.ok("release l")


def _live_again(pair, number):
    for rank in pair:
        rank.ok("connect")
    _live(pair, number)
    for rank in pair:
        rank.ok("disconnect")


def _live_once(daemon, number):
    """As processes of their own; some are killed in the middle of buckets."""
    pair = [daemon.rank(connect=False) for _ in range(2)]
    for rank in pair:
        rank.send("connect")
    for rank in pair:
        rank.answer("GW_OK")
    _live(pair, 3)
    if number % 2:
        for rank in pair:
            rank.send("loop g large 1000000")
        time.sleep(0.01)
    for rank in pair:
        if number % 2:
            rank.kill()
        rank.close()
        daemon.ranks.remove(rank)


class Figures:
    def __init__(self, daemon):
        self.memory, self.fds, self.gpu_mib = daemon.memory(), daemon.fd_count(), held_mib(daemon.pid)

    def __str__(self):
        gpu = "unknown" if self.gpu_mib is None else f"{self.gpu_mib} MiB"
        return f"{self.memory // KB} KiB resident without what is shared, {self.fds} descriptors, {gpu} of GPU memory"


def _settled(daemon, keepers):
    until(lambda: daemon.admin_json("status")["clients"] == 1 + keepers, "the clients have gone")
    fds_at_rest(daemon)
    return Figures(daemon)


def everything_is_back_at_the_baseline():
    with Daemon("--trace.events=64", "--log.level=warning", "--device.linger_s=1", "--limits.buffers_per_uid=100") as daemon:
        keeper = [daemon.rank(memory="device:0"), daemon.rank(memory="device:1")]  # so that the contexts stay
        join(keeper)
        prepare(keeper, count=LARGE)
        exchange(keeper)
        pairs = [[daemon.rank(connect=False, memory=f"device:{n}") for n in range(2)] for _ in range(2)]
        done, begin, baseline = 0, time.monotonic(), None
        while done < WARM_UP + LIFETIMES:
            if baseline is None and done >= WARM_UP:
                baseline = _settled(daemon, 4)
                print(f"# after {done} lifetimes: {baseline}", flush=True)
            if done // 2 % (max(LIFETIMES // PROCESSES, 2) // 2) == 1:
                _live_once(daemon, done // 2)
            else:
                _live_again(pairs[done // 2 % 2], done // 2)
            done += 2
            if done % 200 == 0:
                print(f"# {done} lifetimes, {time.monotonic() - begin:.0f} s", flush=True)
        after = _settled(daemon, 4)
        print(f"# after {done} lifetimes: {after}, {time.monotonic() - begin:.0f} s", flush=True)
        exchange(keeper)
        check(SLOW > 1 or after.memory <= baseline.memory + GROWTH_KB * KB, f"memory: {baseline}; then {after}")
        until(lambda: daemon.fd_count() <= baseline.fds,  # those of the last clients are being closed
              f"descriptors are back at {baseline}; they were {after}: {daemon.fds()}")
        check(None in (after.gpu_mib, baseline.gpu_mib) or after.gpu_mib <= baseline.gpu_mib,
              f"GPU memory: {baseline}; then {after}")
        check("failed" not in device_states(daemon).values(), f"a device has failed: {device_states(daemon)}")
        for rank in keeper + [rank for pair in pairs for rank in pair]:
            rank.close()
        daemon.ranks = []
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the last clients have gone")
        check_given_back(daemon)
        print(f"# without clients: {Figures(daemon)}", flush=True)


def memory_of_each_kind_leaves_no_descriptor():
    with Daemon(bystanders=False) as daemon:
        keeper = [daemon.rank(memory="device:0"), daemon.rank(memory="device:1")]  # so that the contexts stay
        join(keeper)
        for rank in keeper:
            rank.ok(f"alloc b {4 * LARGE}")
        places = [(device, kind) for device in (0, 1) for kind in KINDS]
        for device, kind in places:  # what the driver opens once and keeps
            _one_buffer(daemon, device, kind)
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the first clients have gone")
        before, links = fds_at_rest(daemon), daemon.fds()
        for _ in range(10):
            for device, kind in places:
                _one_buffer(daemon, device, kind)
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the clients have gone")
        try:
            until(lambda: daemon.fd_count() <= before, "the descriptors of the last client are closed")
        except AssertionError as error:
            new = sorted(link for fd, link in daemon.fds().items() if links.get(fd) != link)
            raise AssertionError(f"{error}: {daemon.fd_count()} are open, {before} were; new: {new}") from None
        print(f"# {before} descriptors, then {daemon.fd_count()} after {10 * len(places)} imports", flush=True)


def _one_buffer(daemon, device, kind):
    rank = daemon.rank(memory=f"device:{device}:{kind}")
    join([rank])
    equal(rank.ok(f"alloc b {4 * LARGE}"), KINDS[kind], "the path of the memory")
    rank.ok("release b")
    rank.close()
    daemon.ranks.remove(rank)


def what_is_not_released_is_seen():
    """The negative control: buffers that are kept show up where the test above looks."""
    with Daemon(bystanders=False) as daemon:
        ranks = daemon.ready(2, count=COUNT)
        exchange(ranks)
        before = Figures(daemon)
        for n in range(64):
            ranks[0].ok(f"alloc x{n} {MB}")
            ranks[0].ok(f"bucket y{n} g all_reduce f32 sum 1000 x{n}:0 x{n}:0")
        after = Figures(daemon)
        check(after.memory > before.memory or after.fds > before.fds, f"64 buffers cannot be seen: {before}; then {after}")
        equal(daemon.admin_json("status")["buffers"] >= 64 + 2, True, "whether they are counted")


if __name__ == "__main__":
    main(globals(), 200)
