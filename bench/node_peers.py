"""What `make bench-nodes` measures between network namespaces: gradwire, Gloo, Open MPI over TCP, and ucx_perftest.

All processes of this are on one machine, so every peer could leave the network out; TCP is forced, and the counters of
the interfaces are held against what must have crossed.
"""
import os
import shutil
import subprocess
import tempfile
import time

import peers

SUBNET = "10.77.0"
PERFTEST_BYTES = 1 << 20
PERFTEST_SECONDS = 1.0

# Settings of Open MPI. Over a slow link two ranks take twice as long with its puts as with sends only; without a limit
# puts are often faster.
SENDS = ["btl_tcp_flags", "1"]
MPI_SETTINGS = {"tuned default": [], "tuned default, sends": SENDS, "ring, sends": [*peers.ALGORITHMS["ring"], *SENDS]}


def ip(*words):
    result = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise peers.PeerError(f"ip {' '.join(words)}: {result.stderr.strip()}")


def limit_rate(inside, device, rate, burst="80k"):
    """What `device` sends, in bit/s. `inside`: the command that enters its namespace. The burst is what a large packet of
    TCP takes: more of it would let small buckets pass faster than the rate."""
    words = [*inside, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", str(rate), "burst", burst, "latency",
             "50ms"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise peers.PeerError(f"{' '.join(words)}: {result.stderr.strip()}")


def device_bytes(inside, device, direction):
    path = f"/sys/class/net/{device}/statistics/{direction}_bytes"
    return int(subprocess.run([*inside, "cat", path], capture_output=True, text=True, check=True).stdout)


class Network:
    """n namespaces on a bridge. `with Network(2, 10**9) as network:`"""
    made = 0

    def __init__(self, n, rate):
        Network.made += 1  # the kernel may still be taking the last one away
        self.mark = f"gw{os.getpid() % 10000}{'abcdefghijklmnop'[Network.made % 16]}"
        self.names = [f"{self.mark}n{i}" for i in range(n)]
        self.rate = rate

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        ip("link", "add", self.mark, "type", "bridge")
        ip("link", "set", self.mark, "up")
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("link", "add", f"{self.mark}v{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{self.mark}v{i}", "master", self.mark, "up")
            ip("-n", name, "addr", "add", f"{SUBNET}.{i + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            if self.rate:
                limit_rate(self.inside(i), "eth0", self.rate)

    def inside(self, i):
        return ["ip", "netns", "exec", self.names[i]]

    def sent(self, i=0):
        return device_bytes(self.inside(i), "eth0", "tx")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["ip", "link", "del", self.mark], stderr=subprocess.DEVNULL, check=False)


class Daemons(list):
    """One in each namespace. `with Daemons(build, folder, network) as daemons:`"""

    def __init__(self, build, folder, network, *more):
        super().__init__()
        self.build, self.folder, self.network, self.more = build, folder, network, more

    def __enter__(self):
        try:
            for i in range(len(self.network.names)):
                folder = os.path.join(self.folder, str(i))
                os.mkdir(folder)
                arguments = ["--config=/dev/null", "--wire.listen=eth0", "--wire.devices=eth0", "--wire.transports=tcp"]
                self.append(peers.Daemon(self.build, folder, [*arguments, *self.more], self.network.inside(i)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in self:
            daemon.stop()


class Ranks(peers.Peer):
    """gradwire. What a run gives as wrong elements is the largest error, in 1e-9."""

    def begin(self, kind, size, timed):
        self.send(f"run {kind} {size} {self.ranks} 1 {timed}\n")

    def end(self):
        answers = [self.read(stream).split() for stream in self.streams]
        return [int(t) for t in answers[0][2:]], max(int(a[1]) for a in answers)

    def blocks(self, kind, size, blocks, timed):
        self.begin(kind, size, blocks * timed)
        return self.end()


def start_gradwire(build, folder, network, daemons, nodes, name="gradwire"):
    """A rank on each of `nodes`, in that order."""
    peer = Ranks(name, len(nodes), folder)
    program = os.path.join(build, "bench", "node_rank")
    commands = [[*network.inside(node), "env", f"GRADWIRE_SOCKET={daemons[node].socket}", program, peer.control,
                 str(len(nodes)), str(rank)] for rank, node in enumerate(nodes)]
    peer.start(commands, len(nodes), peers.library_environment(build))
    peer.send(f"id {peer.hello[0]}\n")
    return peer


def start_gloo(python, folder, network, n):
    peer = peers.Peer("Gloo", n, folder)
    script = os.path.join(peers.HERE, "gloo_allreduce.py")
    peer.start([[*network.inside(rank), python, script, peer.control, peer.init_file, str(n), str(rank)]
                for rank in range(n)], n, dict(os.environ, GLOO_SOCKET_IFNAME="eth0"))
    return peer


def start_mpi(build, folder, network, n, setting):
    """mpirun in the first namespace; it enters the others by bench/netns-agent, and takes each for a host of its own.
    Ranks are not bound, since all of them would be bound to the first core, and yield where they outnumber the cores."""
    hosts = [f"{SUBNET}.{i + 1}:1" for i in range(n)]
    temporary = tempfile.mkdtemp(prefix="mpi-", dir=folder)
    settings = {"plm": "rsh", "plm_rsh_agent": f"/bin/sh {os.path.join(peers.HERE, 'netns-agent')} {network.mark}n {temporary}",
                "oob_tcp_if_include": "eth0", "pml": "ob1", "btl": "self,tcp", "btl_tcp_if_include": "eth0",
                "mpi_yield_when_idle": str(int(n > len(os.sched_getaffinity(0))))}
    more = MPI_SETTINGS[setting]
    settings.update(zip(more[::2], more[1::2]))
    command = [*network.inside(0), "mpirun", "--allow-run-as-root", "--bind-to", "none", "--host", ",".join(hosts), "-np",
               str(n)]
    for name, value in settings.items():
        command += ["--mca", name, value]
    peer = peers.Peer("Open MPI", n, folder, setting)
    peer.start([command + [os.path.join(build, "bench", "mpi_allreduce"), peer.control]], n,
               dict(os.environ, TMPDIR=temporary))
    return peer


class Mpi:
    """Open MPI with each of some settings. The first turn at a size shows which is the fastest."""

    def __init__(self, build, folder, network, n):
        self.started, self.best, self.ranks = [], {}, n
        try:
            for setting in MPI_SETTINGS:
                self.started.append(start_mpi(build, folder, network, n, setting))
        except BaseException:
            self.stop()
            raise

    def blocks(self, kind, size, blocks, timed):
        if size not in self.best:
            trials = [(min(peer.blocks(kind, size, 1, 2)[0]), i) for i, peer in enumerate(self.started)]
            self.best[size] = self.started[min(trials)[1]]
        return self.best[size].blocks(kind, size, blocks, timed)

    def stop(self):
        for peer in self.started:
            peer.stop()


def perftest_rate(network):
    """Bytes a second that two ucx_perftests over TCP in opposite directions, at once, move each way between the first two
    namespaces, by the interface's counters; None: there is no ucx_perftest."""
    if shutil.which("ucx_perftest") is None:
        return None
    environment = dict(os.environ, UCX_TLS="tcp", UCX_NET_DEVICES="eth0")
    words = ["ucx_perftest", "-t", "tag_bw", "-s", str(PERFTEST_BYTES), "-n", "1000000", "-w", "20", "-p"]
    running = []

    def start(i, *more):
        running.append(subprocess.Popen([*network.inside(i), *words, *more], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment))

    def moved():
        return [device_bytes(network.inside(0), "eth0", direction) for direction in ("tx", "rx")]

    try:
        start(0, "13370")
        start(1, "13371")
        time.sleep(0.3)
        start(0, "13371", f"{SUBNET}.2")
        start(1, "13370", f"{SUBNET}.1")
        time.sleep(0.7)
        before, since = moved(), time.monotonic()
        time.sleep(PERFTEST_SECONDS)
        after, took = moved(), time.monotonic() - since
        if any(process.poll() is not None for process in running):
            raise peers.PeerError("ucx_perftest ended early")
    finally:
        for process in running:
            process.kill()
            process.wait()
    each = [(b - a) / took for a, b in zip(before, after)]
    if min(each) < PERFTEST_BYTES:
        raise peers.PeerError("ucx_perftest moved nothing one way")
    return sum(each) / 2
