"""test_bootstrap.py - groups of several daemons come together, or end on all of them with the reason; strangers at the
port do no harm"""

import contextlib
import hashlib
import os
import signal
import socket
import struct
import subprocess
import time

from network import WIRE_FDS, Network
from ranks import SLOW, Daemon, check, contains, equal, main, program, until

VERSION = 1


def _branch(*flags, **options):
    """One that others cannot connect to. An id that nobody joined with stays for deadline.bootstrap_s."""
    daemon = Daemon("--wire.transports=tcp", "--wire.devices=lo", "--deadline.bootstrap_s=4", *flags, **options)
    daemon.base_fds += WIRE_FDS
    return daemon


def _root(*flags, listen="127.0.0.2", **options):
    return _branch(f"--wire.listen={listen}", "--wire.port=0", *flags, **options)


def _port(daemon):
    return int(daemon.admin_json("status")["listens"][0].split()[-1])


def _join(ranks, unique_id, nranks=None, numbers=None):
    for number, rank in zip(numbers or range(len(ranks)), ranks):
        rank.send(f"join g {unique_id} {nranks or len(ranks)} {number}")


def _use_up(daemon, unique_id):
    """One that nobody joined with stays for deadline.bootstrap_s, and would be waited for at the end."""
    daemon.rank().ok(f"join used {unique_id} 1 0")


def _form(daemons_of_ranks):
    """Ranks 0, 1, ... on these daemons."""
    ranks = [daemon.rank() for daemon in daemons_of_ranks]
    _join(ranks, ranks[0].ok("id"))
    for rank in ranks:
        rank.answer("GW_OK")
    return ranks


def _groups(daemon):
    """Those of the test: the oldest is the bystanders'."""
    return daemon.admin_json("groups")[:-1]


def _wait_joined(daemon, n):
    until(lambda: sum(r["present"] for r in _groups(daemon)[0]["ranks"]) == n, f"{n} ranks have joined")


def _formed_as_asked(daemons, order):
    ranks = _form([daemons[d] for d in order])
    nodes = [daemon.admin_json("status")["node"] for daemon in daemons]
    hashes = set()
    for daemon in {id(daemons[d]): daemons[d] for d in order}.values():
        group = _groups(daemon)[0]
        equal(group["nranks"], len(order), "nranks")
        equal([r["node"] for r in group["ranks"]], [nodes[d] for d in order], "the nodes of the ranks")
        equal([r["pid"] for r in group["ranks"]], [rank.pid for rank in ranks], "their processes")
        hashes.add(group["plan_hash"])
    equal(len(hashes), 1, "number of plans")
    for rank in ranks:
        rank.close()


# ---- coming together ---------------------------------------------------------------------------------


def two_daemons_with_a_rank_each():
    with _root() as a, _branch() as b:
        _formed_as_asked([a, b], [0, 1])


def three_ranks_and_one():
    with _root() as a, _root(listen="127.0.0.3") as b:
        _formed_as_asked([a, b], [0, 0, 0, 1])


def ranks_in_turns_on_three_daemons():
    with _root() as a, _root(listen="127.0.0.3") as b, _branch() as c:
        _formed_as_asked([a, b, c], [0, 1, 2, 0, 1, 2, 2])


def the_root_has_no_rank_or_a_late_one():
    """The id may be made by a process that only starts the others; and all ranks may be on one other daemon."""
    with _root() as a, _branch() as b, _branch() as c:
        for places in ([b, c], [b, b], [b, a]):
            maker, ranks = a.rank(), [place.rank() for place in places]
            _join(ranks, maker.ok("id"))
            for rank in ranks:
                rank.answer("GW_OK")
            for rank in ranks + [maker]:
                rank.close()


def over_ipv6():
    with _root(listen="::1") as a, _branch() as b:
        _formed_as_asked([a, b], [0, 1])


def an_interface_by_name_and_several_addresses():
    with _root(listen="lo, 127.0.0.7") as a, _branch() as b:
        listens = a.admin_json("status")["listens"]
        check(any(text.startswith("127.0.0.1 ") for text in listens), f"lo is not in {listens}")
        check(any(text.startswith("127.0.0.7 ") for text in listens), f"127.0.0.7 is not in {listens}")
        contains(a.gwctl("status").stdout, "127.0.0.7 port ")
        _formed_as_asked([a, b], [0, 1])


def many_groups_at_once():
    with _root() as a, _root(listen="127.0.0.3") as b:
        ranks = [[(a if (r + g) % 2 else b).rank() for r in range(2)] for g in range(20)]
        for pair in ranks:
            _join(pair, pair[0].ok("id"))
        for pair in ranks:
            for rank in pair:
                rank.answer("GW_OK")


# ---- over a network ----------------------------------------------------------------------------------


def over_a_cable():
    with Network() as network:
        for listen in ("eth0", "0.0.0.0", "::", "fe80::1%eth0"):
            with network.daemon(0, f"--wire.listen={listen}") as a, network.daemon(1) as b:
                if listen != "::":  # there is no address but a link-local one, which is not guessed
                    _formed_as_asked([a, b], [0, 1])


def a_cable_that_breaks_is_noticed():
    silence = f"--deadline.silence_ms={1000 * SLOW}"
    with Network() as network:
        with network.daemon(0, "--wire.listen=eth0", silence, checks=False) as a, \
                network.daemon(1, silence, checks=False) as b:
            ranks = [a.rank(), b.rank()]
            _join(ranks, ranks[0].ok("id"), 3)
            _wait_joined(a, 2)
            network.cut()
            for rank in ranks:
                rank.answer("GW_ERR_BOOTSTRAP", "was lost while the group was forming")
            unique_id = a.rank().ok("id")
            b.rank().expect("GW_ERR_BOOTSTRAP", f"join g {unique_id} 2 1", "10.77.0.1 port", "unreachable",
                            "wire.ports")


# ---- what the ranks are told -------------------------------------------------------------------------


def without_a_listener_the_other_daemon_says_what_to_set():
    with _branch() as a, _branch() as b:
        unique_id = a.rank().ok("id")
        b.rank().expect("GW_ERR_UNKNOWN_ID", f"join g {unique_id} 2 1", "wire.listen")
        _use_up(a, unique_id)


def a_rank_that_is_taken_is_refused_alone():
    with _root() as a, _branch() as b:
        first, second, late = a.rank(), b.rank(), b.rank()
        unique_id = first.ok("id")
        _join([first, second], unique_id, 3)
        late.expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} 3 0", "rank 0 is taken by pid", str(first.pid))
        other = a.rank()
        _wait_joined(a, 2)
        other.expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} 3 1", "rank 1 is taken by pid", str(second.pid))
        _join([late], unique_id, 3, [2])
        for rank in (first, second, late):
            rank.answer("GW_OK")


def another_number_of_ranks_is_refused_alone():
    with _root() as a, _branch() as b:
        first, second = a.rank(), b.rank()
        unique_id = first.ok("id")
        _join([first], unique_id, 2)
        until(lambda: _groups(a)[0]["state"] == "forming", "rank 0 has joined")
        second.expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} 3 1", "3 ranks, others said 2")
        _join([second], unique_id, 2, [1])
        first.answer("GW_OK")
        second.answer("GW_OK")


def settings_that_differ_are_named_on_all_ranks():
    for key, one, two in (("wire.chunk_bytes", "1M", "2M"), ("group.credits", "64", "128"),
                          ("deadline.silence_ms", "5000", "4000")):
        with _root() as a, _branch(f"--{key}={two}") as b:
            ranks = [a.rank(), b.rank()]
            _join(ranks, ranks[0].ok("id"))
            for rank in ranks:
                rank.answer("GW_ERR_BOOTSTRAP", f"{key} is {one} on host", f"and {two} on host")


def a_rank_that_comes_late_hears_what_the_others_did():
    with _root() as a, _branch("--group.credits=128") as b:
        first, second, here, there = a.rank(), b.rank(), a.rank(), b.rank()
        unique_id = first.ok("id")
        _join([first, second], unique_id, 4)
        told = [rank.answer("GW_ERR_BOOTSTRAP", "group.credits is 64 on host").text for rank in (first, second)]
        told += [rank.expect("GW_ERR_BOOTSTRAP", f"join g {unique_id} 4 {number}")
                 for number, rank in ((2, here), (3, there))]
        equal(len(set(told)), 1, "different reasons")


def a_reason_is_kept_for_a_while_only():
    """The negative control."""
    with _root("--deadline.bootstrap_s=1") as a, _branch("--group.credits=128") as b:
        first, second, here, there = a.rank(), b.rank(), a.rank(), b.rank()
        unique_id = first.ok("id")
        _join([first, second], unique_id, 4)
        for rank in (first, second):
            rank.answer("GW_ERR_BOOTSTRAP", "group.credits")
        time.sleep(1.2)
        here.expect("GW_ERR_UNKNOWN_ID", f"join g {unique_id} 4 2", "its group has ended")
        there.send(f"join g {unique_id} 4 3")
        there.answer("GW_ERR_BOOTSTRAP", "does not reach the daemon that made the unique id")


def the_deadline_names_the_missing_ranks_on_all_nodes():
    with _root("--deadline.bootstrap_s=1") as a, _branch() as b:
        ranks = [a.rank(), b.rank()]
        _join(ranks, ranks[0].ok("id"), 4)
        for rank in ranks:
            rank.answer("GW_ERR_BOOTSTRAP", "rank 2, 3 of 4 did not join within 1 s")


def a_root_that_is_gone_is_named_with_its_address():
    with _root(checks=False) as a, _branch() as b:
        unique_id, port = a.rank().ok("id"), _port(a)
        a.die()
        rank = b.rank()
        rank.expect("GW_ERR_BOOTSTRAP", f"join g {unique_id} 2 1", f"127.0.0.2 port {port} (connection refused)",
                    "wire.ports")


def a_root_that_does_not_answer_is_named_with_its_address():
    with _root() as a, _branch("--deadline.hello_ms=200", "--deadline.bootstrap_s=2") as b:
        unique_id, port = a.rank().ok("id"), _port(a)
        os.kill(a.pid, signal.SIGSTOP)
        try:
            b.rank().expect("GW_ERR_BOOTSTRAP", f"join g {unique_id} 2 1", f"127.0.0.2 port {port} (", "in time")
        finally:
            os.kill(a.pid, signal.SIGCONT)
        _use_up(a, unique_id)


def a_rank_that_dies_while_forming_is_named_on_all_nodes():
    with _root() as a, _branch() as b:
        for dies in (0, 1):
            ranks = [a.rank(), b.rank(), b.rank()]
            _join(ranks, ranks[0].ok("id"), 4)
            _wait_joined(a, 3)
            pid = ranks[dies].pid
            ranks[dies].kill()
            for rank in ranks[:dies] + ranks[dies + 1:]:
                rank.answer("GW_ERR_RANK_DIED", f"rank {dies} (host", f"pid {pid}", "while the group was forming")


def a_branch_that_dies_while_forming_is_named():
    with _root() as a, _branch(checks=False) as b, _branch() as c:
        ranks = [a.rank(), b.rank(), c.rank()]
        _join(ranks, ranks[0].ok("id"), 4)
        _wait_joined(a, 3)
        b.die()
        for rank in (ranks[0], ranks[2]):
            rank.answer("GW_ERR_BOOTSTRAP", "was lost while the group was forming")


def a_root_that_dies_while_forming_is_named():
    with _root(checks=False) as a, _branch() as b:
        ranks = [a.rank(), b.rank()]
        _join(ranks, ranks[0].ok("id"), 3)
        _wait_joined(a, 2)
        a.die()
        ranks[1].answer("GW_ERR_BOOTSTRAP", "whose daemon made the unique id, was lost while the group was forming")


def _ready_but(a, b, stopped):
    """All ranks have joined, but one daemon stands still before it can say that it is ready."""
    ranks = [a.rank(), b.rank(), stopped.rank()]
    unique_id = ranks[0].ok("id")
    _join(ranks[1:], unique_id, 3, [1, 2])
    _wait_joined(a, 2)
    os.kill(stopped.pid, signal.SIGSTOP)
    _join(ranks[:1], unique_id, 3)
    check(ranks[0].silent(0.3) and ranks[1].silent(0), "the group began without one of its nodes")
    return ranks


def what_goes_wrong_once_some_nodes_have_prepared_ends_all():
    with _root("--deadline.bootstrap_s=3") as a, _branch() as b, _branch() as c, _branch(checks=False) as d:
        ranks = _ready_but(a, b, c)
        pid = ranks[1].pid
        ranks[1].kill()
        ranks[0].answer("GW_ERR_RANK_DIED", "rank 1 (host", f"pid {pid}", "while the group was forming")
        until(lambda: not _groups(a) and not _groups(b), "the others have let go of the group", 3)
        os.kill(c.pid, signal.SIGCONT)
        ranks[2].answer("GW_ERR_RANK_DIED", f"pid {pid}")

        ranks = _ready_but(a, b, c)
        for rank in ranks[:2]:
            rank.answer("GW_ERR_BOOTSTRAP", "did not get ready within 3 s")
        os.kill(c.pid, signal.SIGCONT)
        ranks[2].answer("GW_ERR_BOOTSTRAP", "did not get ready within 3 s")

        ranks = _ready_but(a, b, d)
        d.die()
        for rank in ranks[:2]:
            rank.answer("GW_ERR_BOOTSTRAP", "was lost while the group was forming")


def a_loss_that_a_lane_sees_first_is_told_like_that():
    """Once prepared, lanes watch the other nodes, too: what they find is still about a group that forms."""
    silence = f"--deadline.silence_ms={1000 * SLOW}"
    with _root(silence) as a, _branch(silence) as b, _branch(silence) as c:
        ranks = _ready_but(a, b, c)
        for rank in ranks[:2]:
            rank.answer("GW_ERR_BOOTSTRAP", "a node was lost while the group was forming", "node 2 (host",
                        "has said nothing for")
        os.kill(c.pid, signal.SIGCONT)
        ranks[2].answer("GW_ERR_BOOTSTRAP", "a node was lost while the group was forming")


def draining_ends_what_forms_on_all_nodes():
    with _root() as a, _branch(checks=False) as b:
        ranks = [a.rank(), b.rank()]
        _join(ranks, ranks[0].ok("id"), 3)
        _wait_joined(a, 2)
        b.gwctl("drain")
        b.gwctl("drain")
        ranks[0].answer("GW_ERR_DRAINING")


# ---- the listener ------------------------------------------------------------------------------------


def _refused_start(*flags):
    result = subprocess.run([program("gradwired"), "--config=/dev/null", f"--socket-dir=/tmp/gw-none-{os.getpid()}",
                             *flags], capture_output=True, text=True, timeout=30 * SLOW, check=False)
    equal(result.returncode, 1, "exit code")
    return result.stderr


def an_address_in_use_is_named():
    with _root() as a:
        port = _port(a)
        contains(_refused_start("--wire.listen=127.0.0.2", f"--wire.port={port}"), f"127.0.0.2 port {port}",
                 "address already in use", "wire.port")


def a_name_that_is_nothing_here_is_named():
    contains(_refused_start("--wire.listen=nosuch0"), "wire.listen: 'nosuch0'", "lo")
    contains(_refused_start("--wire.listen=192.0.2.77"), "192.0.2.77 port 7411", "no interface of this host")
    contains(_refused_start("--wire.listen=fe80::1"), "link-local", "%eth0")


# ---- strangers ---------------------------------------------------------------------------------------


def _connect(daemon):
    return socket.create_connection(("127.0.0.2", _port(daemon)), timeout=10 * SLOW)


def _closed(connection):
    """Whether the other side closes it without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def _knock(name=bytes(16), version=VERSION):
    return b"GWBS" + struct.pack("<I", version) + name + os.urandom(48)


def _token(unique_id):
    return bytes.fromhex(unique_id)[24:56]


def _hash(token, label, more=b"", size=32):
    return hashlib.blake2b(label + b"\0" + more, key=token, digest_size=size).digest()


def strangers_get_no_answer():
    with _root("--deadline.hello_ms=500") as a:
        unique_id = a.rank().ok("id")
        for _ in range(50):
            _connect(a).close()
        for data in (b"GET / HTTP/1.0\r\n\r\n" + bytes(72), os.urandom(200), _knock(), _knock(os.urandom(16))):
            with _connect(a) as connection:
                connection.send(data)
                check(_closed(connection), f"{data[:8]!r} got an answer")
        with _connect(a) as waiting, _connect(a) as half:
            half.send(_knock(_hash(_token(unique_id), b"name", size=16))[:40])
            begin = time.monotonic()
            check(_closed(waiting) and _closed(half), "silence got an answer")
            check(time.monotonic() - begin < 5 * SLOW, "silence was waited for too long")
        _use_up(a, unique_id)
        logged = a.log().count("a connection from")
        check(1 <= logged < 20, f"{logged} lines about strangers")


def _handshake(daemon, token, tamper=-1):
    """Knocks, answers the challenge; returns the connection, what was sent, and the root's proof or b""."""
    connection = _connect(daemon)
    knock = _knock(_hash(token, b"name", size=16))
    connection.send(knock)
    challenge = connection.recv(56, socket.MSG_WAITALL)
    equal(len(challenge), 56, "bytes of the challenge")
    proof = bytearray(_hash(token, b"branch", knock + challenge))
    if tamper >= 0:
        proof[tamper] ^= 1
    connection.send(proof)
    try:
        answer = connection.recv(32, socket.MSG_WAITALL)
    except ConnectionResetError:
        answer = b""
    equal(answer in (b"", _hash(token, b"root", knock + challenge)), True, "the root's proof is right, or absent")
    return connection, knock + bytes(proof), answer


def a_wrong_proof_and_a_repeated_one_are_refused():
    with _root() as a:
        unique_id = a.rank().ok("id")
        token = _token(unique_id)
        good, record, answer = _handshake(a, token)
        equal(len(answer), 32, "bytes of the root's proof")
        for tamper in (0, 15, 31):
            bad, _, answer = _handshake(a, token, tamper)
            bad.close()
            equal(answer, b"", "the answer to a proof with one wrong bit")
        with _connect(a) as again:
            again.send(record)
            again.recv(56, socket.MSG_WAITALL)
            check(_closed(again), "a recorded handshake was taken")
        good.send(struct.pack("<I", 40) + os.urandom(40))  # proven, but not sealed with the key
        check(_closed(good), "a forged frame was taken")
        good.close()
        for length in (0, 16, 1 << 31):
            with _handshake(a, token)[0] as good:
                good.send(struct.pack("<I", length))
                check(_closed(good), f"a frame of {length} bytes was taken")
        _use_up(a, unique_id)


def another_version_is_named():
    with _root() as a:
        unique_id = a.rank().ok("id")
        token = _token(unique_id)
        connection = _connect(a)
        connection.send(_knock(_hash(token, b"name", size=16), VERSION + 1))
        equal(connection.recv(56, socket.MSG_WAITALL)[:8], b"GWBS" + struct.pack("<I", VERSION), "its version")
        connection.close()
        a.wait_log(f"speaks version {VERSION + 1} between daemons, this one {VERSION}")
        _use_up(a, unique_id)


def a_root_of_another_version_or_without_the_token_is_named():
    """Each is tried three times, a second apart; all at once, since that is a long wait."""
    node = os.urandom(16)

    def answer(server, said):
        connection = server.accept()[0]
        connection.send(said + node + bytes(32))
        if said.endswith(struct.pack("<I", VERSION)):
            connection.recv(104, socket.MSG_WAITALL)
            connection.send(bytes(32))
        _closed(connection)
        connection.close()
    with _branch() as b, contextlib.ExitStack() as stack:
        tried = []
        for said, text in ((b"GWBS" + struct.pack("<I", 7), "speaks version 7 between daemons, and this one 1"),
                           (b"SSH-2.0-", "no gradwire daemon"),
                           (b"GWBS" + struct.pack("<I", VERSION), "does not prove")):
            server = stack.enter_context(socket.create_server(("127.0.0.9", 0)))
            address = struct.pack(">BBH4s12x", 4, 0, server.getsockname()[1], socket.inet_aton("127.0.0.9"))
            unique_id = (b"GWID" + struct.pack("<I", 1) + node + os.urandom(32) + address).ljust(128, b"\0")
            tried.append((b.rank(), server, said, text))
            tried[-1][0].send(f"join g {unique_id.hex()} 2 1")
        for _ in range(3):
            for _, server, said, _ in tried:
                answer(server, said)
        for rank, server, _, text in tried:
            rank.answer("GW_ERR_BOOTSTRAP", text, f"127.0.0.9 port {server.getsockname()[1]}")


def a_flood_of_connections_leaves_room_for_a_daemon():
    with _root("--deadline.hello_ms=60000", "--deadline.bootstrap_s=60") as a, _branch() as b:
        ranks = [a.rank(), b.rank()]
        unique_id = ranks[0].ok("id")
        before = a.fd_count()
        flood = [_connect(a) for _ in range(300)]
        until(lambda: a.fd_count() <= before + 64, "no more than 64 strangers stay")
        _join(ranks, unique_id)
        for rank in ranks:
            rank.answer("GW_OK")
        for connection in flood:
            connection.close()


def nothing_leaks():
    """After everything that can go wrong: the second time costs no descriptor."""
    def storm():
        ranks = _form([a, b, a])
        for rank in ranks:
            rank.close()
        ranks = [a.rank(), b.rank()]
        unique_id = ranks[0].ok("id")
        _join(ranks, unique_id, 3)
        _wait_joined(a, 2)
        b.rank().expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} 3 0", "is taken")
        ranks[1].kill()
        ranks[0].answer("GW_ERR_RANK_DIED")
        b.rank().expect("GW_ERR_RANK_DIED", f"join g {unique_id} 3 1")
        for _ in range(20):
            with _connect(a) as connection:
                connection.send(_knock())
        unique_id = a.rank().ok("id")
        for tamper in (-1, 3):
            _handshake(a, _token(unique_id), tamper)[0].close()
        _use_up(a, unique_id)
        for daemon in (a, b):
            for rank in daemon.ranks:
                rank.close()
            daemon.ranks.clear()
        until(lambda: len(a.admin_json("groups")) == len(b.admin_json("groups")) == 1, "the groups have ended")
        time.sleep(0.5 * SLOW)
        return [len([fd for fd in daemon.fds().values() if "timerfd" not in fd]) for daemon in (a, b)]
    with _root("--deadline.bootstrap_s=2", "--deadline.hello_ms=500") as a, _branch() as b:
        storm()
        before = storm()
        check(before[1] - b.base_fds <= 0, f"a wire takes {before[1] + WIRE_FDS - b.base_fds} descriptors")
        after = storm()
        check(after[0] <= before[0] and after[1] <= before[1], f"descriptors: {before}, then {after}")


if __name__ == "__main__":
    main(dict(globals()))
