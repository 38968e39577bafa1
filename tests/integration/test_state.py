"""test_state.py - what codecs leave out between nodes is saved, loaded and charged

A training of some steps, cut in the middle and continued by new processes and daemons, gives the same bits as one that
was not cut.
"""

import contextlib
import os
import shutil
import signal
import struct
import tempfile
import time

from ranks import SLOW, Daemon, Skip, check, contains, equal, gw, join, loopback, main, until

COUNT, SMALL = 30000, 700  # elements of the two buckets
PLACES = [0, 1, 0]  # the daemon of each rank: 0 and 1 are the lowest of their nodes
CARRIERS = [0, 1]
HEAD = struct.Struct("<8sIIIIQQII")  # PROTOCOL.md, section 17


def _nodes(*flags, silence_ms=5000):
    return loopback(2, f"--deadline.silence_ms={silence_ms * SLOW}", *flags, checks=False)


@contextlib.contextmanager
def _folder():
    path = tempfile.mkdtemp(prefix="gw-state-")
    os.chmod(path, 0o755)
    try:
        yield lambda rank: os.path.join(path, f"rank{rank}")
    finally:
        shutil.rmtree(path)


def _group(daemons, places=None):
    ranks = [daemons[place].rank() for place in places or PLACES]
    join(ranks)
    return ranks


def _declare(ranks, codec="int4"):
    for rank in ranks:
        rank.ok(f"alloc in {COUNT * 4}")
        rank.ok(f"alloc out {COUNT * 4}")
        rank.ok(f"bucket k g all_reduce f32 avg {COUNT} in:0 out:0 codec={codec}")
        rank.ok(f"bucket s g all_reduce f32 sum {SMALL} in:0 out:0 codec=fp8")


def _train(ranks, steps):
    """The digest of each step's results, which are the same on all ranks."""
    digests = []
    for step in steps:
        for number, rank in enumerate(ranks):
            rank.ok(f"noise in {COUNT} {1000 * number + step}")
        for bucket, n_bytes in (("k", COUNT * 4), ("s", SMALL * 4)):
            ops = [rank.ok(f"submit {bucket}") for rank in ranks]
            for rank, op in zip(ranks, ops):
                rank.ok(f"wait g {op} {20000 * SLOW}")
            got = {rank.ok(f"digest out {n_bytes}") for rank in ranks}
            equal(len(got), 1, f"different results of step {step}")
            digests.append(got.pop())
    return digests


def _save(ranks, file):
    return [int(rank.ok(f"save g {file(number)}")) for number, rank in enumerate(ranks)]


def _load(ranks, file):
    for number, rank in enumerate(ranks):
        rank.ok(f"load g {file(number)}")


def _is_clean(daemon):
    status = daemon.admin_json("status")
    return [status[what] for what in ("groups", "buffers", "buffer_bytes", "buckets", "residual_bytes", "flight_bytes")] == [0] * 6


def _prepared(daemons):
    ranks = _group(daemons)
    _declare(ranks)
    return ranks


def _give_back(daemons):
    for daemon in daemons:
        daemon.close_ranks()
    for daemon in daemons:
        until(lambda d=daemon: _is_clean(d), "all is given back")


# ---- going on ------------------------------------------------------------------------------------------------


def training_goes_on_bit_for_bit():
    with _folder() as file:
        with _nodes() as daemons:
            straight = _train(_prepared(daemons), range(10))
            check(_train(_prepared(daemons), range(5, 10)) != straight[10:], "the state changes nothing")  # negative control
            ranks = _prepared(daemons)
            first = _train(ranks, range(5))
            sizes = _save(ranks, file)
            _give_back(daemons)
        equal(first, straight[:10], "the first half")
        for number, size in enumerate(sizes):
            residuals = 2 * 32 + 8 * (COUNT + SMALL) if number in CARRIERS else 0
            equal(size, HEAD.size + 4 * len(PLACES) + residuals + 32, f"bytes of rank {number}'s state")
        with _nodes() as daemons:
            ranks = _group(daemons)
            _load(ranks, file)  # as a script does: before anything is declared
            _declare(ranks)
            equal(_train(ranks, range(5, 10)), straight[10:], "the second half with the state")
            _save(ranks, file)  # and once more, from one that was loaded
            _load(ranks, file)
            _give_back(daemons)


def loading_replaces_what_there_is():
    """Also of buckets that the state does not know: they begin anew."""
    with _folder() as file, _nodes() as daemons:
        ranks = _prepared(daemons)
        empty, later = (lambda rank: file(rank) + "e"), (lambda rank: file(rank) + "l")
        _save(ranks, empty)
        first = _train(ranks, range(3))
        _save(ranks, later)
        second = _train(ranks, range(3))
        check(second != first, "residuals change nothing")
        _load(ranks, empty)
        equal(_train(ranks, range(3)), first, "from the beginning again")
        _load(ranks, later)
        equal(_train(ranks, range(3)), second, "from the middle again")
        others = _group(daemons)
        _save(others, file)  # of a group without any bucket
        _load(ranks, file)
        equal(_train(ranks, range(3)), first, "after a state without residuals")


def _two_tensors(both, how):
    """What comes of tensor b, after tensor a of the same size or without it."""
    with _nodes("--wire.codec=int4") as daemons:
        ranks = _group(daemons, [0, 1])
        for number, rank in enumerate(ranks):
            for name, seed in (("a", 1), ("b", 11)):
                rank.ok(f"alloc {name} {COUNT * 4}")
                rank.ok(f"alloc out{name} {COUNT * 4}")
                rank.ok(f"noise {name} {COUNT} {number + seed}")
                if how == "buckets":
                    rank.ok(f"bucket {name} g all_reduce f32 avg {COUNT} {name}:0 out{name}:0 as=one")
        for name in ("a", "b") if both else ("b",):
            for rank in ranks:
                rank.send(f"submit {name}" if how == "buckets" else
                          f"call g all_reduce f32 avg {COUNT} {name}:0 out{name}:0")
            for rank, reply in [(rank, rank.recv()) for rank in ranks]:
                equal(reply.status, "GW_OK", "the operation")
                if how == "buckets":
                    rank.ok(f"wait g {reply.text} 20000")
        kept = 4096 * -(-2 * 4 * COUNT // 4096) * (2 if how == "buckets" else 0)
        equal([daemon.admin_json("status")["residual_bytes"] for daemon in daemons], [kept, kept], "bytes kept")
        return ranks[0].ok(f"digest outb {COUNT * 4}")


def what_one_tensor_leaves_out_is_not_added_to_another():
    """They have the same name and size."""
    for how in ("buckets", "calls"):
        equal(_two_tensors(True, how), _two_tensors(False, how), f"results with {how}")


def groups_that_keep_nothing_have_small_states():
    with _folder() as file, Daemon(bystanders=False) as daemon:
        ranks = daemon.ready(2, more="codec=int8")  # on one node no codec is used
        equal(_save(ranks, file), [HEAD.size + 4 * 2 + 32] * 2, "bytes of states on one node")
        _load(ranks, file)
        ranks[0].expect("GW_ERR_STATE", f"load g {file(1)}", "of rank 1", "given to rank 0")


# ---- what is refused -----------------------------------------------------------------------------------------


def _broken(file, rank, change):
    """A changed copy of a rank's state."""
    with open(file(rank), "rb") as whole:
        data = bytearray(whole.read())
    path = file(rank) + "x"
    with open(path, "wb") as copy:
        copy.write(change(data) or data)
    return path


def a_state_that_does_not_fit_changes_nothing():
    def flip(at):
        def change(data):
            data[at % len(data)] ^= 1
        return change

    with _folder() as file, _nodes() as daemons:
        ranks = _prepared(daemons)
        _train(ranks, range(3))
        _save(ranks, file)
        kept = (lambda rank: file(rank) + "k")
        again = _train(ranks, range(3, 5))
        _load(ranks, file)
        other = _group(daemons, [0, 0, 1])
        _declare(other)
        bad = {"flipped in the middle": (flip(5000), "checksum"), "flipped at the end": (flip(-1), "checksum"),
               "flipped counter": (flip(HEAD.size + 12 + 16), "checksum"),
               "no magic": (flip(0), "not made by"), "version": (flip(8), "version", "knows 2"),
               "truncated": (lambda data: data[:-100], "cut or damaged"), "longer": (lambda data: data + b"x", "cut or damaged"),
               "tiny": (lambda data: data[:7], "shorter"), "sizes": (flip(HEAD.size + 12 + 8), "add up"),
               "ranks": (flip(15), "numbers of ranks")}
        for change, *parts in bad.values():
            ranks[0].expect("GW_ERR_STATE", f"load g {_broken(file, 0, change)}", *parts)
        ranks[0].expect("GW_ERR_STATE", f"load g {file(1)}", "of rank 1", "given to rank 0")
        other[0].expect("GW_ERR_STATE", f"load g {file(0)}", "3 ranks on 2 nodes (0 1 0)", "(0 0 1)", "start the ranks")
        _save(ranks, kept)
        for number in range(len(ranks)):
            with open(file(number), "rb") as before, open(kept(number), "rb") as after:
                check(before.read() == after.read(), f"what rank {number} keeps has changed")
        equal(_train(ranks, range(3, 5)), again, "after all that was refused")


def other_chunks_are_refused():
    with _folder() as file:
        with _nodes() as daemons:
            _save(_prepared(daemons), file)
        with _nodes("--wire.chunk_bytes=64K") as daemons:
            _prepared(daemons)[0].expect("GW_ERR_STATE", f"load g {file(0)}", "chunks of 262144", "65536")


def _left_to_the_group(daemons):
    ranks = _group(daemons, [0, 1])
    for rank in ranks:
        rank.ok(f"alloc in {COUNT * 4}")
        rank.ok(f"alloc out {COUNT * 4}")
        rank.ok(f"bucket k g all_reduce f32 avg {COUNT} in:0 out:0")
    return ranks


def other_codecs_of_the_group_and_another_rounding_are_refused():
    with _folder() as file:
        with _nodes("--wire.codec=int8") as daemons:
            _save(_left_to_the_group(daemons), file)
            _load(_left_to_the_group(daemons), file)  # the negative control
        with _nodes("--wire.codec=int4") as daemons:
            ranks = _left_to_the_group(daemons)
            ranks[0].expect("GW_ERR_STATE", f"load g {file(0)}", "had int8, and this group has int4", "wire.codec")
        with _nodes("--wire.codec=int8", "--wire.rounding=stochastic") as daemons:
            ranks = _left_to_the_group(daemons)
            ranks[0].expect("GW_ERR_STATE", f"load g {file(0)}", "nearest rounding, and the group has stochastic")


def what_auto_chooses_otherwise_is_loaded_and_logged():
    with _folder() as file:
        with _nodes("--wire.codec=int8") as daemons:
            _save(_left_to_the_group(daemons), file)
        with _nodes("--wire.codec=auto:bf16") as daemons:
            _load(_left_to_the_group(daemons), file)
            contains(daemons[0].log(), "goes on with a state of codec int8 where auto now has")


def buckets_that_name_their_codec_go_on_in_any_group():
    with _folder() as file:
        with _nodes("--wire.codec=int8") as daemons:
            _save(_prepared(daemons), file)
        with _nodes("--wire.codec=bf16") as daemons:
            _load(_prepared(daemons), file)


def an_operation_under_way_is_in_the_way():
    with _folder() as file, _nodes(silence_ms=60000) as daemons:
        ranks = _group(daemons, [0, 1])
        _declare(ranks)
        _train(ranks, range(1))
        _save(ranks, file)
        op = ranks[1].ok("submit k")
        until(lambda: daemons[1].admin_json("groups")[0]["in_flight"] == 1, "the other node has it")
        time.sleep(0.2 * SLOW)  # and has told this one, which no report shows
        os.kill(daemons[1].pid, signal.SIGSTOP)
        try:
            ranks[0].ok("submit k")
            until(lambda: ranks[0].do(f"save g {file(0)}").status == "GW_ERR_BUSY", "saving is refused")
            ranks[0].expect("GW_ERR_BUSY", f"save g {file(0)}", "under way", "wait for all")
            ranks[0].expect("GW_ERR_BUSY", f"load g {file(1)}", "under way", "then load")
        finally:
            os.kill(daemons[1].pid, signal.SIGCONT)
        for rank in ranks:
            rank.ok(f"wait g {op} {20000 * SLOW}")
        _save(ranks, file)
        _load(ranks, file)


def clients_that_give_no_proper_memfd_are_refused():
    with _nodes() as daemons:
        client, peer = gw.Client(daemons[0].socket), gw.Client(daemons[1].socket)
        group, _ = gw.join([client, peer])

        def refused(status, fds, message="GroupStateSave", **fields):
            try:
                client.request(message, fds, group=group.handle, **fields)
            except gw.Refused as error:
                equal(error.status, status, f"what {message} gets")
            else:
                raise AssertionError(f"{message} was not refused with {status}")

        size = client.request("GroupStateSave", group=group.handle).fields.bytes
        equal(size, HEAD.size + 4 * 2 + 32, "bytes of a state")
        small = gw.Memory(size - 1)
        equal(client.request("GroupStateSave", [small.fd], group=group.handle).fields.bytes, size, "the answer to too little")
        check(bytes(small.map[:]) == bytes(size - 1), "the daemon has written into it all the same")
        for status, memory in (("GW_ERR_BUFFER_SEAL", gw.Memory(size, seals=0)),
                               ("GW_ERR_BUFFER_HOLES", gw.Memory(size, allocate=False)),
                               ("GW_ERR_BUFFER_SEAL", gw.Memory(size, seals=gw.F_SEAL_SHRINK | gw.F_SEAL_SEAL))):
            refused(status, [memory.fd])
        state = group.save_state()
        equal(HEAD.unpack(state[:HEAD.size]), (b"GWSTATE\0", 2, 2, 2, 0, 2 * 131072, size, 0, 0), "the head of a state")
        group.load_state(state)
        with tempfile.TemporaryFile() as file:
            file.write(state)
            file.flush()
            refused("GW_ERR_BUFFER_KIND", [file.fileno()], "GroupStateLoad", bytes=size)
        refused("GW_ERR_BUFFER_KIND", [], "GroupStateLoad", bytes=size)
        refused("GW_ERR_BUFFER_SHORT", [small.fd], "GroupStateLoad", bytes=size)
        refused("GW_ERR_BUFFER_SHORT", [small.fd], "GroupStateLoad", bytes=1 << 60)
        client.close()
        peer.close()
        _give_back(daemons)


def trainers_that_die_while_states_are_copied_leave_nothing():
    with _folder() as file, _nodes() as daemons:
        for what, wait_s in (("save", 0), ("load", 0), ("save", 0.01), ("load", 0.01)):
            ranks = _prepared(daemons)
            _save(ranks, file)
            for number, rank in enumerate(ranks):
                rank.send(f"{what} g {file(number)}")
            time.sleep(wait_s)
            for rank in ranks:
                rank.kill()
            _give_back(daemons)


# ---- quota ---------------------------------------------------------------------------------------------------


def residuals_and_chunks_are_charged():
    with _nodes("--limits.buffer_bytes_per_uid=24M", "--wire.chunk_bytes=64K", "--wire.window=2") as daemons:
        ranks = _group(daemons, [0, 1])
        for rank in ranks:
            rank.ok(f"alloc b {4 << 20}")
        for rank in ranks:  # 8 MiB each
            rank.ok("bucket first g all_reduce f32 sum 1048576 b:0 b:0 codec=int8")
            rank.ok("bucket plain g all_reduce f32 sum 1048576 b:0 b:0 codec=bf16")  # keeps nothing
            rank.ok("bucket second g all_reduce f32 sum 1048576 b:0 b:0 codec=int8")
            rank.expect("GW_ERR_QUOTA", "bucket third g all_reduce f32 sum 1048576 b:0 b:0 codec=int8", "'third'", "int8",
                        "8388608 bytes", "limits.buffer_bytes_per_uid is 25165824")
        for daemon in daemons:
            status = daemon.admin_json("status")
            equal((status["residual_bytes"], status["buffer_bytes"]), (16 << 20, 4 << 20), "bytes of residuals and buffers")
            check(status["flight_bytes"] > 2 * 5 * 65536, f"{status['flight_bytes']} bytes for chunks under way")
            rows = {row["name"]: row["residual_bytes"] for row in daemon.admin_json("buckets")}
            equal(rows, {"first": 8 << 20, "plain": 0, "second": 8 << 20}, "residuals of the buckets")
            contains(daemon.gwctl("status").stdout, "16.0 MiB of residuals")
        for bucket in ("first", "second", "plain"):  # what was declared works
            ops = [rank.ok(f"submit {bucket}") for rank in ranks]
            for rank, op in zip(ranks, ops):
                rank.ok(f"wait g {op} {20000 * SLOW}")
        _give_back(daemons)


def a_group_without_room_for_chunks_is_told_at_the_first_bucket():
    with _nodes("--limits.buffer_bytes_per_uid=4M") as daemons:
        rank = _group(daemons, [0, 1])[0]
        rank.ok("alloc b 4096")
        rank.expect("GW_ERR_QUOTA", "bucket k g all_reduce f32 sum 1024 b:0 b:0", "'k'", "wire.window", "wire.chunk_bytes",
                    "limits.buffer_bytes_per_uid is 4194304")
        _give_back(daemons)


def a_group_keeps_residuals_of_so_many_buckets():
    """Freed ones included; those that it has can be declared again."""
    with _nodes() as daemons:
        client, peer = gw.Client(daemons[0].socket, timeout=10 * SLOW), gw.Client(daemons[1].socket)
        group, _ = gw.join([client, peer])
        buffer = client.buffer(4096)

        def declare(number):
            return group.bucket(f"b{number}", buffer, count=1, codec=5)

        buckets = [declare(number) for number in range(4096)]
        group.free_bucket(buckets[7])
        equal(daemons[0].admin_json("status")["residual_bytes"], 4096 * 4096, "bytes of residuals")
        declare(7)
        try:
            declare(4096)
        except gw.Refused as error:
            equal(error.status, "GW_ERR_QUOTA", "what one bucket too many gets")
            contains(error.text, "'b4096'", "4096 buckets already", "make a new group")
        else:
            raise AssertionError("one bucket too many is taken")
        client.close()
        peer.close()
        _give_back(daemons)


def who_loads_pays_for_the_reading():
    """Not who made the group."""
    if os.getuid() != 0:
        raise Skip("only root has ranks of other users")
    with _folder() as file, Daemon("--limits.buffer_bytes_per_uid=1M", bystanders=False) as daemon:
        with open(file(0), "wb") as nonsense:
            nonsense.write(bytes(512 << 10))
        ranks = [daemon.rank(), daemon.rank(user=12345)]
        join(ranks)
        ranks[0].ok(f"alloc b {768 << 10}")
        ranks[0].expect("GW_ERR_QUOTA", f"load g {file(0)}", "limits.buffer_bytes_per_uid is 1048576")
        ranks[1].expect("GW_ERR_STATE", f"load g {file(0)}", "damaged")


def a_loaded_state_is_charged():
    with _folder() as file:
        with _nodes() as daemons:
            ranks = _prepared(daemons)
            _train(ranks, range(1))
            _save(ranks, file)
        with _nodes("--limits.buffer_bytes_per_uid=200K") as daemons:
            ranks = _group(daemons)
            ranks[0].expect("GW_ERR_QUOTA", f"load g {file(0)}", "limits.buffer_bytes_per_uid is 204800")
            equal(daemons[0].admin_json("status")["residual_bytes"], 0, "bytes of residuals")
            _give_back(daemons)


if __name__ == "__main__":
    main(globals(), 60)
