"""test_links.py - gwctl links, on made trees of /sys and /proc, and on this machine"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

from ranks import PATIENCE_S, check, contains, equal, kill, main, program, spawn, wait_until

MLX = "sys/class/infiniband/mlx5_0/ports/1/"
ETH = "sys/class/net/eth0/"

INTERFACE = {"ifindex": 2, "type": 1, "mtu": 9000, "speed": 100000, "operstate": "up", "device/vendor": "0x15b3",
             "uevent": "INTERFACE=eth0\nIFINDEX=2", "statistics/rx_bytes": 1000, "statistics/tx_bytes": 2000,
             "statistics/rx_errors": 3, "statistics/tx_errors": 4, "statistics/rx_dropped": 5,
             "statistics/tx_dropped": 6}

PROC = {"proc/net/snmp": "Ip: Forwarding DefaultTTL\nIp: 2 64\n"
                         "Tcp: RtoAlgorithm MaxConn OutSegs RetransSegs InErrs\nTcp: 1 -1 5000 17 0\n",
        "proc/net/netstat": "TcpExt: SyncookiesSent TCPFastRetrans TCPLostRetransmit TCPTimeouts\nTcpExt: 0 11 2 3\n"
                            "IpExt: InNoRoutes InCEPkts\nIpExt: 0 9\n"}

RDMA = {"link_layer": "Ethernet", "state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "gid_attrs/ndevs/0": "eth0",
        "counters/port_xmit_data": 1000, "counters/port_rcv_data": 500, "counters/port_xmit_wait": 77,
        "hw_counters/np_cnp_sent": 1, "hw_counters/rp_cnp_handled": 2, "hw_counters/np_ecn_marked_roce_packets": 3,
        "hw_counters/out_of_sequence": 4, "hw_counters/packet_seq_err": 5, "hw_counters/local_ack_timeout_err": 6,
        "hw_counters/rx_prio3_pause": 8, "hw_counters/lifespan": 10}


def _under(folder, files):
    return {folder + name: content for name, content in files.items()}


class _Tree:
    """A folder with files, for GRADWIRE_HOST_ROOT."""

    def __init__(self, *parts):
        self.root = tempfile.mkdtemp(prefix="gw-links-")
        for files in parts:
            for name, content in files.items():
                self.write(name, content)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.root)

    def write(self, name, content):
        """All at once, so that nobody reads half of it."""
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + "~", "wb") as file:
            file.write(content if isinstance(content, bytes) else f"{content}\n".encode())
        os.replace(path + "~", path)

    def env(self):
        return {**os.environ, "GRADWIRE_HOST_ROOT": self.root}

    def run(self, *arguments):
        return _gwctl(*arguments, env=self.env())

    def read(self, *arguments):
        """The document without rates."""
        return _document(self.run("--json", "--no-measure", *arguments))


def _gwctl(*arguments, env=None):
    return subprocess.run([program("gwctl"), *arguments, "links"], capture_output=True, text=True, env=env,
                          timeout=PATIENCE_S, check=False)


def _document(result):
    equal((result.returncode, result.stderr), (0, ""), "gwctl links")
    return json.loads(result.stdout)


class _Watch:
    """gwctl links --json --watch, and its documents one by one."""

    def __init__(self, env=None, *arguments):
        self.process = spawn([program("gwctl"), "--json", "--watch=0.3", *arguments, "links"], stdout=subprocess.PIPE,
                             env=env, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        kill(self.process)
        self.process.stdout.close()

    def next(self):
        return json.loads(self.process.stdout.readline())


def _growth(before, after, link="interfaces", counter="rx_bytes"):
    """How much a counter grew that was changed while gwctl watches, and the document that says so."""
    name = {"interfaces": ETH + "statistics/", "rdma": MLX + "counters/"}[link] + counter
    with _Tree(PROC, _under(ETH, INTERFACE), _under(MLX, RDMA)) as tree:
        tree.write(name, before)
        with _Watch(tree.env()) as watch:
            equal(watch.next()[link][0]["changes"][counter], 0, "growth of what stands still")
            tree.write(name, after)
            while True:
                document = watch.next()
                if document[link][0]["counters"][counter] == after:
                    return document[link][0]["changes"][counter], document


# ---- made trees --------------------------------------------------------------------------------------


def an_interface_without_RDMA():
    with _Tree(PROC, _under(ETH, INTERFACE), {"sys/class/net/bonding_masters": ""}) as tree:
        document = tree.read()
        interface = document["interfaces"][0]
        equal((len(document["interfaces"]), document["rdma"], document["interval_s"]), (1, [], None), "what is there")
        equal([interface[k] for k in ("name", "kind", "state", "mtu", "speed_mbit", "in_bytes", "out_bytes")],
              ["eth0", "ethernet", "up", 9000, 100000, 1000, 2000], "the interface")
        equal((interface["in_mbit_s"], interface["out_mbit_s"]), (None, None), "rates that were not measured")
        equal(interface["counters"]["tx_dropped"], 6, "packets lost on the way out")
        text = tree.run("--no-measure").stdout
        contains(text, "eth0       ethernet  up     9000  100000   -    -        3         4        5         6",
                 "no RDMA device")


def TCP_of_the_host():
    with _Tree(PROC, _under(ETH, INTERFACE)) as tree:
        equal(tree.read()["host"]["counters"],
              {"OutSegs": 5000, "RetransSegs": 17, "TCPFastRetrans": 11, "TCPLostRetransmit": 2, "TCPTimeouts": 3,
               "InCEPkts": 9}, "counters")
        contains(tree.run("--no-measure").stdout, "host   RetransSegs           17       -  TCP segments sent again")


def RDMA_ports_with_all_their_counters():
    with _Tree(PROC, _under(ETH, INTERFACE), _under(MLX, RDMA)) as tree:
        port = tree.read()["rdma"][0]
        names = ("name", "port", "link_layer", "state", "netdev", "speed_mbit", "in_bytes", "out_bytes")
        equal([port[k] for k in names],
              ["mlx5_0", 1, "Ethernet", "ACTIVE", "eth0", 100000, 2000, 4000], "the port")
        equal([port["counters"].get(name) for name in
               ("port_xmit_wait", "np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets", "out_of_sequence",
                "packet_seq_err", "local_ack_timeout_err", "rx_prio3_pause", "lifespan")],
              [77, 1, 2, 3, 4, 5, 6, 8, None], "its counters")
        rows = {tuple(line.split()[:3]) for line in tree.run("--no-measure").stdout.splitlines()}
        for name, value in port["counters"].items():
            equal(("mlx5_0/1", name, str(value)) in rows, not name.endswith("_data"), f"{name} as a sign")


def InfiniBand_bonds_and_pauses_of_interfaces():
    with _Tree(PROC, _under("sys/class/net/ib0/", {**INTERFACE, "type": 32, "statistics/tx_prio3_pause": 12}),
               _under("sys/class/net/bond0/", {**INTERFACE, "uevent": "DEVTYPE=bond\nINTERFACE=bond0"}),
               _under("sys/class/net/veth7/", {k: v for k, v in INTERFACE.items() if k != "device/vendor"})) as tree:
        equal([(i["name"], i["kind"]) for i in tree.read()["interfaces"]],
              [("bond0", "bond"), ("ib0", "infiniband"), ("veth7", "virtual")], "kinds, by name")
        contains(tree.run("--no-measure").stdout, "ib0    tx_prio3_pause")


def the_loopback_only_when_asked_for():
    with _Tree(PROC, _under(ETH, INTERFACE), _under(MLX, RDMA),
               _under("sys/class/net/lo/", {**INTERFACE, "type": 772})) as tree:
        equal([i["name"] for i in tree.read()["interfaces"]], ["eth0"], "without a wish")
        equal([i["name"] for i in tree.read("--device=lo")["interfaces"]], ["lo"], "by a wish")
        document = tree.read("--device", "eth0")
        equal((len(document["interfaces"]), len(document["rdma"])), (1, 1), "an interface and the port on it")
        document = tree.read("--device", "mlx5_0")
        equal((len(document["interfaces"]), len(document["rdma"])), (0, 1), "a device")
        result = tree.run("--no-measure", "--device=eth1")
        equal((result.returncode, result.stdout), (1, ""), "exit code and output")
        contains(result.stderr, "eth1: no such interface")


def what_is_missing_is_not_known():
    with _Tree({ETH + "ifindex": 2}, {"sys/class/infiniband/rxe0/ports/1/state": "1: DOWN",
                                      "sys/class/infiniband/none0/node_guid": "0"}) as tree:
        document = tree.read()
        equal(document["host"], {"counters": {}, "changes": {}}, "without /proc")
        interface, port = document["interfaces"][0], document["rdma"][0]
        equal([interface[k] for k in ("state", "mtu", "speed_mbit", "in_bytes", "counters")], [None] * 4 + [{}],
              "the interface")
        equal([port[k] for k in ("name", "state", "link_layer", "netdev", "speed_mbit", "out_bytes")],
              ["rxe0", "DOWN", None, None, None, None], "the port")
        equal(len(document["rdma"]), 1, "a device without ports has none")
        text = tree.run("--no-measure").stdout
        contains(text, "eth0       virtual  -        -       -   -    -        -         -        -         -",
                 "no counter of TCP or RDMA")


def odd_content_is_not_known():
    odd = ["-1", "", "12x", "0x10", "18446744073709551616", "nan", b"\xff\xfe\x00", "9" * 300]
    for content in odd:
        with _Tree(PROC, _under(ETH, INTERFACE), _under(MLX, RDMA)) as tree:
            for name in (ETH + "speed", ETH + "mtu", ETH + "statistics/rx_bytes", MLX + "counters/port_rcv_data",
                         MLX + "rate", MLX + "hw_counters/np_cnp_sent"):
                tree.write(name, content)
            document = tree.read()
            interface, port = document["interfaces"][0], document["rdma"][0]
            equal([interface[k] for k in ("speed_mbit", "mtu", "in_bytes", "out_bytes")], [None, None, None, 2000],
                  f"the interface with {content[:20]!r}")
            equal((port["in_bytes"], port["out_bytes"]), (None, 4000), f"the port with {content[:20]!r}")
            equal(port["counters"]["np_cnp_sent"], None, f"a counter with {content[:20]!r}")
            equal(tree.run("--no-measure").returncode, 0, "the table")


def speeds_that_say_unknown():
    for speed in ("-1", "4294967295", "0"):
        with _Tree(_under(ETH, {**INTERFACE, "speed": speed})) as tree:
            equal(tree.read()["interfaces"][0]["speed_mbit"], None, f"speed {speed}")


def text_of_others_is_made_harmless():
    with _Tree(_under("sys/class/net/eth\x1b[31m/", {**INTERFACE, "operstate": b"\x1b[2J\xff"})) as tree:
        result = tree.run("--no-measure")
        check("\x1b" not in result.stdout, f"an escape sequence in {result.stdout!r}")
        contains(result.stdout, r"eth\x1b[31m", r"\x1b[2J\xff")
        equal(tree.read()["interfaces"][0]["state"], r"\x1b[2J\xff", "in JSON")


def tables_of_proc_that_are_cut_short():
    for text in ("", "Tcp: OutSegs", "Tcp: OutSegs RetransSegs\nTcp: 7\n", "Tcp:\nTcp:\n\n\n", b"\x00\xff\n\n"):
        with _Tree({"proc/net/snmp": text, "proc/net/netstat": text}, _under(ETH, INTERFACE)) as tree:
            counters = tree.read()["host"]["counters"]
            check(set(counters) <= {"OutSegs"}, f"{counters} from {text!r}")


def without_sys_it_says_so():
    with _Tree({"proc/nothing": ""}) as tree:
        result = tree.run("--no-measure")
        equal((result.returncode, result.stdout), (1, ""), "exit code and output")
        contains(result.stderr, "/sys/class/net", "No such file", "sysfs")


# ---- rates -------------------------------------------------------------------------------------------


def rates_are_growth_by_time():
    growth, document = _growth(1000, 26001000)
    interface = document["interfaces"][0]
    equal(growth, 26000000, "growth")
    wanted = 26 * 8 / document["interval_s"]
    check(abs(interface["in_mbit_s"] - wanted) < 1e-6 * wanted, f"{interface['in_mbit_s']} instead of {wanted}")
    equal(interface["out_mbit_s"], 0, "the other direction")


def RDMA_ports_count_words_of_four_bytes():
    growth, document = _growth(1000, 2001000, "rdma", "port_xmit_data")
    wanted = 4 * 2 * 8 / document["interval_s"]
    equal(growth, 2000000, "growth")
    check(abs(document["rdma"][0]["out_mbit_s"] - wanted) < 1e-6 * wanted, f"{document['rdma'][0]} instead of {wanted}")


def huge_counters_are_exact_and_wrap():
    equal(_growth(2**64 - 10, 90)[0], 100, "64 bits")
    equal(_growth(2**32 - 10, 90)[0], 100, "32 bits")
    equal(_growth(2**63 - 1, 2**63 + 1)[0], 2, "over the sign")
    growth, document = _growth(2**62, 2**62 + 5, "rdma", "port_xmit_data")
    equal((growth, document["rdma"][0]["out_bytes"]), (5, None), "bytes that 64 bits cannot hold")


def a_counter_that_began_anew_has_no_rate():
    for before, after in ((1000, 90), (2**40, 90), (2**62, 2)):
        growth, document = _growth(before, after)
        equal((growth, document["interfaces"][0]["in_mbit_s"]), (None, None), f"from {before} to {after}")


def an_interface_made_anew_has_no_rate():
    with _Tree(_under(ETH, INTERFACE)) as tree, _Watch(tree.env()) as watch:
        equal(watch.next()["interfaces"][0]["in_mbit_s"], 0, "before")
        tree.write(ETH + "ifindex", 7)
        documents = [watch.next() for _ in range(3)]
        equal([d["interfaces"][0]["in_mbit_s"] for d in documents if d["interfaces"][0]["in_mbit_s"] != 0], [None],
              "the one interval in between")


def an_interface_that_goes_away_is_gone():
    with _Tree(_under(ETH, INTERFACE), _under("sys/class/net/eth1/", INTERFACE)) as tree, _Watch(tree.env()) as watch:
        equal(len(watch.next()["interfaces"]), 2, "before")
        shutil.rmtree(os.path.join(tree.root, "sys/class/net/eth1"))
        wait_until(lambda: [i["name"] for i in watch.next()["interfaces"]] == ["eth0"], 5, "the end of eth1")


def wrong_usage_is_refused():
    for words in (("--no-measure", "--watch"), ("--prometheus",), ("--watch=0",)):
        equal(_gwctl(*words).returncode, 2, f"exit code of {words}")


# ---- this machine ------------------------------------------------------------------------------------


def _read_file(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def _retransmits():
    lines = [line.split() for line in _read_file("/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
    return int(dict(zip(*lines))["RetransSegs"])


def _interfaces():
    return {name: tuple(_read_file(f"/sys/class/net/{name}/{file}").strip() for file in ("mtu", "operstate"))
            for name in os.listdir("/sys/class/net") if name != "lo" and os.path.isdir(f"/sys/class/net/{name}")}


def _quiet_moment():
    """What the kernel says, and gwctl's document from between two equal looks: interfaces come and go."""
    for _ in range(20):
        try:
            before, first = _retransmits(), _interfaces()
            document = _document(_gwctl("--json", "--no-measure"))
            if _interfaces() == first:
                return first, document, (before, _retransmits())
        except FileNotFoundError:
            pass
    raise AssertionError("the interfaces of this machine never stood still")


def this_machine_is_shown_as_the_kernel_does():
    interfaces, document, (before, after) = _quiet_moment()
    equal({i["name"]: (str(i["mtu"]), i["state"]) for i in document["interfaces"]}, interfaces, "interfaces")
    check(before <= document["host"]["counters"]["RetransSegs"] <= after, f"{before}, {document['host']}, {after}")
    rdma = os.listdir("/sys/class/infiniband") if os.path.isdir("/sys/class/infiniband") else []
    equal(sorted({p["name"] for p in document["rdma"]}), sorted(rdma), "RDMA devices")


def _send(count):
    """Bytes over TCP through the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as sender, server.accept()[0] as receiver:
            thread = threading.Thread(target=sender.sendall, args=(bytes(count),))
            thread.start()
            left = count
            while left > 0:
                left -= len(receiver.recv(1 << 20))
            thread.join()


def bytes_through_the_loopback_are_seen():
    def now():
        return int(_read_file("/sys/class/net/lo/statistics/rx_bytes"))

    count, before = 20 << 20, now()
    with _Watch(None, "--device=lo") as watch:
        quiet = watch.next()
        _send(count)
        seen = [watch.next() for _ in range(2)]
    at_most = now() - before  # others send, too
    grown = sum(d["interfaces"][0]["changes"]["rx_bytes"] for d in seen)
    moved = sum(d["interfaces"][0]["in_mbit_s"] * d["interval_s"] for d in seen) * 1e6 / 8
    check(count <= grown <= at_most, f"{grown} bytes seen, {count} to {at_most} expected; before: {quiet['interfaces'][0]}")
    check(abs(moved - grown) < 1, f"the rates make {moved} bytes, the counter {grown}")


if __name__ == "__main__":
    check(sys.platform == "linux", "sysfs is Linux's")
    main(globals())
