"""test_cipher.py - wire.cipher: results are the same, nobody else can read them, and strangers at the data ports change
nothing

fake_node.c is the other node where a message must be what no daemon sends.
"""

import contextlib
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time

from ranks import (PATIENCE_S, SLOW, WIRE, Daemon, Skip, check, contains, equal, exchange, join, kill, listening, loopback,
                   main, prepare, program, ready, reap, spawn, until)

CIPHER = "--wire.cipher=chacha20-poly1305"
ALIVE, BEGIN, PART, RESULT, FAIL, BYE = 5, 1, 2, 3, 4, 6
ETH_P_ALL = 3


def _nodes(n, *flags):
    return loopback(n, "--deadline.silence_ms=20000", *flags, checks=False)


# ---- values --------------------------------------------------------------------------------------------------


def _matrix(places, *flags):
    with _nodes(max(places) + 1, *flags) as daemons:
        sockets = ",".join(daemons[place].socket for place in places)
        result = subprocess.run([program("tests/integration/matrix"), str(len(places)), "4711", f"sockets={sockets}",
                                 "quick"], capture_output=True, text=True, timeout=100 * SLOW, check=False)
        words = result.stdout.split()
        check(result.returncode == 0 and words[:1] == ["cases"], f"matrix {places}: {result.stderr[:500]}")
        refused = sum(daemon.stat("wire_refused") for daemon in daemons)
        equal((words[3], words[4], refused), ("0", "same", 0), "wrong results, the ranks', messages refused")


def every_collective_is_exact():
    _matrix([0, 1, 2, 1], CIPHER)


def small_chunks_over_several_paths_by_several_threads():
    _matrix([0, 1], CIPHER, "--wire.paths=4", "--wire.chunk_bytes=16K", "--reduce.inline_bytes=0", "--reduce.threads=2")


def codecs_are_right():
    """What every rank gets is the same; and as many bytes travel as without the cipher."""
    said = []
    for flags in ((), (CIPHER,)):
        with _nodes(2, *flags) as daemons:
            said.append([])
            for codec in ("none", "bf16", "int8"):
                result = subprocess.run([program("tests/integration/coded"), f"codec={codec}", "50000", "4",
                                         *[daemons[place].socket for place in (0, 1, 1)]], capture_output=True, text=True,
                                        timeout=100 * SLOW, check=False)
                equal(result.returncode, 0, f"coded {codec}: {result.stderr[:500]}")
                said[-1].append(result.stdout)
            said[-1].append(daemons[0].stat("wire_bytes_sent"))
    equal(said[1], said[0], "errors, bits and bytes with the cipher and without")


def gwctl_says_it_and_hosts_that_differ_are_named():
    for flags, name in (((), "none"), ((CIPHER,), "chacha20-poly1305")):
        with _nodes(2, *flags) as daemons:
            ranks = [daemon.rank() for daemon in daemons]
            join(ranks)
            for daemon in daemons:
                equal(daemon.admin_json("groups")[0]["cipher"], name, "the group's cipher")
                contains(daemon.gwctl("groups").stdout, f"cipher between nodes: {name}")
    with _nodes(1, CIPHER) as (one,), Daemon(*WIRE, bystanders=False, checks=False) as other:
        ranks = [one.rank(), other.rank()]
        for number, rank in enumerate(ranks):
            unique_id = ranks[0].ok("id") if number == 0 else unique_id
            rank.send(f"join g {unique_id} 2 {number}")
        for rank in ranks:
            rank.answer("GW_ERR_BOOTSTRAP", "wire.cipher is chacha20-poly1305 on host", "and none on host")


# ---- what others see -----------------------------------------------------------------------------------------


class _Capture(threading.Thread):
    """Looks for bytes in all that the loopback device carries, or shows each packet to a function."""

    def __init__(self, wanted=b"", look=None):
        super().__init__()
        self.look, self.found, self.over = look or (lambda packet: wanted in packet), 0, False
        try:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            self.socket.bind(("lo", 0))
        except (AttributeError, OSError):
            raise Skip("packets are captured by root, and not in every container") from None
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        self.start()

    def run(self):
        while not self.over:
            if select.select([self.socket], [], [], 0.05)[0]:
                self.found += bool(self.look(self.socket.recv(1 << 17)))

    def end(self):
        time.sleep(0.1)
        self.over = True
        self.join()
        self.socket.close()
        return self.found


def others_read_nothing():
    """Neither what a rank sends, nor the result, nor the name of the bucket. The control: without the cipher all three."""
    for flags, is_seen in (((), True), ((CIPHER,), False)):
        with _nodes(2, *flags) as daemons:
            ranks = [daemon.rank() for daemon in daemons]
            join(ranks)
            prepare(ranks, count=20000)
            value, name = random.randrange(1 << 20, 1 << 22), f"secret{random.randrange(1 << 30)}"
            captures = [_Capture(struct.pack("<f", value) * 16), _Capture(struct.pack("<f", 2 * value) * 16),
                        _Capture(name.encode())]
            for rank in ranks:
                rank.ok(f"bucket s g all_reduce f32 sum 20000 b:0 b:0 as={name}")
            for _ in range(2):
                for rank in ranks:
                    rank.ok(f"fill b f32 20000 {value}")
                exchange(ranks, bucket="s")
                for rank in ranks:
                    equal(rank.ok(f"expect b f32 20000 {2 * value}"), "0", "wrong elements")
            found = [capture.end() for capture in captures]
            equal([n > 0 for n in found], [is_seen] * 3, f"inputs, results and name are seen with {flags} ({found} packets)")


class _Repeats:
    """Finds a message's data that has been in another message to these ports, too: of buckets whose elements are all the
    same."""

    def __init__(self, ports):
        self.ports, self.seen = ports, {}

    def __call__(self, packet):
        if len(packet) < 5000 or packet[12:14] != b"\x08\x00" or packet[23] != socket.IPPROTO_TCP:
            return False
        if self.ports.isdisjoint(struct.unpack("!HH", packet[34:38])):
            return False  # of another test
        message = packet[34:42]  # ports and sequence number: the device shows a packet twice
        return self.seen.setdefault(packet[4000:4064], message) != message


def no_two_lanes_encrypt_alike():
    """Each counts for itself, so each needs keys of its own. The control: without the cipher."""
    for flags, is_seen in (((), True), ((CIPHER,), False)):
        with _nodes(2, "--lane.count=4", "--wire.chunk_bytes=16K", *flags) as daemons:
            ranks = ready(daemons, [0, 1], count=400000)
            look = _Repeats({port for daemon in daemons for port in _data_ports(daemon)})
            capture = _Capture(look=look)
            exchange(ranks)
            found = capture.end()
            check(len(look.seen) > 1, "no data was seen")
            equal(found > 0, is_seen, f"data of a message that another has, too, with {flags} ({found} packets)")


# ---- strangers and forgers -----------------------------------------------------------------------------------


class _Fake:
    """A group of a daemon's rank and a node that sends what it is told."""

    def __init__(self, daemon, *settings, version=None, **environment):
        self.rank = daemon.rank()
        unique_id = self.rank.ok("id")
        self.rank.send(f"join g {unique_id} 2 0")
        alike = [f"{item['name']}={item['value']}" for item in daemon.admin_json("config")
                 if item["name"] in ("wire.chunk_bytes", "group.credits", "deadline.silence_ms")]
        self.process = spawn([program("tests/integration/fake_node"), unique_id, "2", "1", *alike, *settings],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=dict(os.environ, GW_TEST_VERSION=version or daemon.admin_json("status")["version"],
                                      **environment))

    def join(self):
        self.answer("ready")
        self.rank.answer("GW_OK")

    def answer(self, word):
        check(select.select([self.process.stdout], [], [], PATIENCE_S)[0], "the fake node has not answered")
        equal(self.process.stdout.readline().strip(), word, "what the fake node says")

    def do(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self.answer("done")

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        equal(reap(self.process), 0, "the exit status of the fake node")


@contextlib.contextmanager
def _fake(*flags, name="chacha20-poly1305"):
    with Daemon("--wire.listen=127.0.0.2", *WIRE, f"--wire.cipher={name}", *flags, bystanders=False, checks=False) as daemon:
        fake = _Fake(daemon, f"wire.cipher={name}")
        fake.join()
        yield daemon, fake
        fake.end()
        daemon.assert_alive()


def _counted(daemon, fake, command, n):
    before = daemon.stat("wire_refused")
    fake.do(command)
    until(lambda: daemon.stat("wire_refused") == before + n, f"{n} more refused after {command}", PATIENCE_S)
    equal(fake.rank.do("check g").status, "GW_OK", f"the group after {command}")


def another_version_is_named():
    """What goes over the wire has no version of its own."""
    with Daemon("--wire.listen=127.0.0.2", *WIRE, bystanders=False, checks=False) as daemon:
        fake = _Fake(daemon, "wire.cipher=none", version="9.9.9")
        fake.rank.answer("GW_ERR_BOOTSTRAP", "9.9.9 on host fake", "the same version")
        kill(fake.process)


def what_a_node_says_of_its_failure_is_made_safe():
    with Daemon("--wire.listen=127.0.0.2", *WIRE, bystanders=False, checks=False) as daemon:
        for said, status in ((0, "GW_ERR_ABORTED"), (1, "GW_ERR_ABORTED"), (9999, "GW_ERR_ABORTED"), (12, "GW_ERR_QUOTA")):
            fake = _Fake(daemon, "wire.cipher=none")
            fake.join()
            fake.do(f"fail {said}")
            until(lambda f=fake: f.rank.do("check g").status != "GW_OK", "the group has failed")
            contains(fake.rank.expect(status, "check g"), r"words\x1b[2J of a fake node")
            fake.end()


def a_measurement_that_ends_too_early_is_refused():
    """The memory for what is on its way must not be given back."""
    with Daemon("--wire.listen=127.0.0.2", *WIRE, "--wire.codec=auto:int8", "--deadline.silence_ms=60000",
                bystanders=False, checks=False) as daemon:
        fake = _Fake(daemon, "wire.cipher=none", GW_TEST_PROBE="20")
        fake.answer("done")
        fake.rank.answer("GW_ERR_PROTOCOL_RANK", "node 1 (host fake", "a measurement that nobody asked for")
        kill(fake.process)
        fake.process.stdout.close()
        fake.process.stdin.close()
        daemon.assert_alive()


def a_root_that_does_not_wait_for_what_it_has_asked_is_refused():
    with Daemon("--wire.listen=127.0.0.2", *WIRE, "--wire.codec=auto:int8", bystanders=False, checks=False) as daemon:
        root = spawn([program("tests/integration/fake_node"), "root", daemon.admin_json("status")["node"]],
                     stdout=subprocess.PIPE, text=True)
        rank = daemon.rank()
        rank.expect("GW_ERR_BOOTSTRAP", f"join g {root.stdout.readline().strip()} 2 1", "broke the protocol between daemons")
        kill(root)
        root.stdout.close()
        daemon.assert_alive()


def what_strangers_send_is_dropped_and_counted():
    with _fake("--deadline.silence_ms=60000") as (daemon, fake):
        for kind in (FAIL, BYE, BEGIN, PART, RESULT, ALIVE, 99):
            for how in ("forged", "returned", "plain"):
                _counted(daemon, fake, f"send {how} {kind}", 1)
        fake.do(f"send good {ALIVE}")
        for _ in range(3):
            _counted(daemon, fake, f"send again {ALIVE}", 1)
        before = daemon.stat("wire_refused") + daemon.stat("wire_dropped")
        fake.do("random 100")
        until(lambda: daemon.stat("wire_refused") + daemon.stat("wire_dropped") == before + 100, "all are counted", PATIENCE_S)
        equal(fake.rank.do("check g").status, "GW_OK", "the group after anything")
        fake.do(f"send good {FAIL}")  # the node itself can
        until(lambda: fake.rank.do("check g").status != "GW_OK", "the node's own word is heard")
        contains(fake.rank.do("check g").text, "words of a fake node")
        equal(daemon.log().count("dropped a message"), 1, "lines about strangers")


def without_the_cipher_a_stranger_ends_the_group():
    """The control."""
    with _fake("--deadline.silence_ms=60000", name="none") as (_, fake):
        fake.do(f"send plain {FAIL}")
        until(lambda: fake.rank.do("check g").status != "GW_OK", "a stranger has ended the group")


def words_that_were_changed_end_the_group_with_the_nodes_name():
    for kind in (BEGIN, FAIL):
        with _fake("--deadline.silence_ms=60000") as (_, fake):
            fake.do(f"send changed {kind}")
            until(lambda f=fake: f.rank.do("check g").status == "GW_ERR_PROTOCOL_RANK", "the group has failed")
            contains(fake.rank.do("check g").text, "node 1 (host fake", "changed on the way")


def a_message_that_was_taken_away_is_missed():
    silence_ms = 600 * SLOW
    with _fake(f"--deadline.silence_ms={silence_ms}") as (_, fake):
        begin = time.monotonic()
        while time.monotonic() < begin + 2 * silence_ms * 1e-3:  # none is missing
            fake.do(f"send good {ALIVE}")
            time.sleep(0.05)
        equal(fake.rank.do("check g").status, "GW_OK", "the group while all came")
        fake.do(f"send lost {ALIVE}")
        until(lambda: fake.do(f"send good {ALIVE}") or fake.rank.do("check g").status == "GW_ERR_NODE_LOST",
              "the group has failed", PATIENCE_S)
        contains(fake.rank.do("check g").text, "node 1 (host fake", "has not come, though later ones have")


def anything_at_the_data_ports():
    """Not of UCX at all."""
    with _nodes(2, CIPHER) as daemons:
        ranks = [daemon.rank() for daemon in daemons]
        join(ranks)
        prepare(ranks)
        exchange(ranks)
        ports = listening(daemons[0])
        check(len(ports) > 1, f"the daemon listens at {ports} only")
        for port in ports:
            for data in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(20000), bytes(20000), b"\xff" * 20000):
                with socket.create_connection(("127.0.0.1", port)) if port != _bootstrap_port(daemons[0]) else \
                        socket.create_connection(("127.0.0.2", port)) as connection:
                    with contextlib.suppress(OSError):
                        connection.sendall(data)
            exchange(ranks)
        daemons[0].assert_alive()


# ---- strangers before UCX ------------------------------------------------------------------------------------

DEADLY = struct.pack("<QBI", 0xCAFEBABE12345678, 1, 0)  # UCX's greeting, and a packet that 1.13 asserts not to come


def _bootstrap_port(daemon):
    return int(daemon.admin_json("status")["listens"][0].split()[-1])


def _data_ports(daemon):
    return [port for port in listening(daemon) if port != _bootstrap_port(daemon)]


def _stranger(port, address="127.0.0.9"):
    connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S, (address, 0))
    connection.settimeout(0.3)
    return connection


def _is_closed(connection):
    """Whether the other side has closed it."""
    try:
        return connection.recv(1) == b""
    except socket.timeout:
        return False
    except ConnectionResetError:
        return True


def a_stranger_at_the_data_ports_is_turned_away():
    with _nodes(2) as daemons:
        ranks = ready(daemons, [0, 1])
        exchange(ranks)
        for daemon in daemons:
            ports = _data_ports(daemon)
            check(ports, "the daemon does not listen for data")
            for port in ports:
                with _stranger(port) as connection:
                    connection.sendall(DEADLY)
                    until(lambda c=connection: _is_closed(c), "the connection is closed")
                with _stranger(port, "127.0.0.1") as connection:  # a node's
                    check(not _is_closed(connection), "a connection from a node's address was closed")
            exchange(ranks)
            contains(daemon.log(), "came from ::ffff:127.0.0.9, which is no address of its nodes")


def without_the_gate_ucx_gets_a_stranger():
    """The negative control."""
    with _nodes(2, "--wire.gate=no") as daemons:
        exchange(ready(daemons, [0, 1]))
        for port in _data_ports(daemons[0]):
            with _stranger(port) as connection:
                check(not _is_closed(connection), "the connection was closed")


def while_a_group_forms_strangers_are_held():
    with _nodes(3) as daemons:
        ranks = [daemon.rank() for daemon in daemons]
        unique_id = ranks[0].ok("id")
        ranks[1].send(f"join g {unique_id} 3 1")
        until(lambda: _data_ports(daemons[1]), "its wire is there")
        with contextlib.ExitStack() as stack:
            strangers = [stack.enter_context(_stranger(port, address)) for port in _data_ports(daemons[1])
                         for address in ("127.0.0.9", "127.0.0.1")]
            for stranger in strangers[::2]:
                stranger.sendall(DEADLY)
            check(not any(_is_closed(stranger) for stranger in strangers), "a connection was not held")
            for number in (0, 2):
                ranks[number].send(f"join g {unique_id} 3 {number}")
            for rank in ranks:
                rank.answer("GW_OK")
            for stranger in strangers[::2]:
                until(lambda s=stranger: _is_closed(s), "the connection is closed")
            check(not any(_is_closed(stranger) for stranger in strangers[1::2]), "a node's was closed")
            prepare(ranks)
            exchange(ranks)
            for rank in ranks:
                equal(rank.ok("expect b f32 1024 6"), "0", "wrong elements of the sum")


if __name__ == "__main__":
    main(globals(), 110)
