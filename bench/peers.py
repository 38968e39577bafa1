"""The processes that `make bench-host` measures: gradwire, Open MPI, Gloo and the limit.

A Peer is a set of processes that sleep until run() has them measure one size; bench/rank.h describes what they
do and how they are told. Everything a peer writes to its standard output and error goes to a log in the
bench's temporary folder, and is shown when the peer fails.
"""
import os
import shutil
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
START_SECONDS = 60.0
RUN_SECONDS = 300.0
TIMED_MAX = 50  # operations in a block: sums of 4 ranks grow by 4^52 at most and stay finite in fp32


class PeerError(Exception):
    """A peer did not start, ended, or gave an error. The text says which and what it wrote."""


class Peer:
    """Processes of one implementation for one number of ranks, with one setting."""

    start_seconds = START_SECONDS  # until all ranks have said hello
    run_seconds = RUN_SECONDS  # after which a run has failed

    def __init__(self, name, ranks, folder, setting=""):
        self.name, self.ranks, self.setting = name, ranks, setting
        stem = f"{name}-{ranks}-{id(self):x}"
        self.control = os.path.join(folder, stem + ".sock")
        self.log_path = os.path.join(folder, stem + ".log")
        self.init_file = os.path.join(folder, stem + ".init")
        self.processes, self.streams, self.hello = [], [], {}
        self.estimates_ns = {}
        self.log = open(self.log_path, "wb")

    def start(self, commands, connections, environment=None):
        """Starts `commands` and waits until `connections` ranks have said hello; if they do not, stops them."""
        try:
            self.start_all(commands, connections, environment)
        except BaseException:
            self.stop()
            raise

    def start_all(self, commands, connections, environment):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.control)
        listener.listen(64)
        listener.settimeout(0.2)
        for command in commands:
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                                   env=environment))
        limit = time.monotonic() + self.start_seconds
        while len(self.streams) < connections:
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                if time.monotonic() > limit or any(p.poll() is not None for p in self.processes):
                    raise self.failure("did not start") from None
                continue
            connection.settimeout(self.run_seconds)
            stream = connection.makefile("rw")
            self.streams.append(stream)
            words = self.read(stream).split(None, 2)
            self.hello[int(words[1])] = words[2].strip()
            if words[1] == "0":  # rank 0 is the one whose times count
                self.streams.insert(0, self.streams.pop())
        listener.close()
        os.unlink(self.control)

    def read(self, stream):
        try:
            line = stream.readline()
        except OSError as why:
            raise self.failure(f"did not answer ({why})") from None
        if not line:
            raise self.failure("ended")
        if line.startswith("error"):
            raise self.failure(line.strip())
        return line

    def send(self, line):
        try:
            for stream in self.streams:
                stream.write(line)
                stream.flush()
        except OSError as why:
            raise self.failure(f"ended ({why})") from None

    def failure(self, what):
        self.log.flush()
        with open(self.log_path, errors="replace") as log:
            tail = log.read()[-2000:].strip()
        label = f"{self.name} ({self.setting})" if self.setting else self.name
        return PeerError(f"{label}, {self.ranks} ranks: {what}" + (f"\n{tail}" if tail else ""))

    def blocks(self, kind, size, blocks, timed):
        """One run. Returns rank 0's times in ns and the number of wrong elements of all ranks."""
        self.send(f"run {kind} {size} {self.ranks} {blocks} {timed}\n")
        answers = [self.read(stream).split() for stream in self.streams]
        return [int(t) for t in answers[0][2:]], sum(int(a[1]) for a in answers)

    def run(self, kind, size, seconds, least):
        """Runs for about `seconds`, at least `least` operations. Returns times in ns, wrong elements."""
        key = (kind, size)
        if key not in self.estimates_ns:
            times, _ = self.blocks(kind, size, 1, 3)
            self.estimates_ns[key] = max(1, sorted(times)[len(times) // 2])
        wanted = min(max(least, int(seconds * 1e9 / self.estimates_ns[key])), 2000)
        blocks = -(-wanted // TIMED_MAX)
        return self.blocks(kind, size, blocks, -(-wanted // blocks))

    def stop(self):
        """Lets the ranks end, and kills what does not."""
        for stream in self.streams:
            try:
                stream.close()
            except OSError:
                pass
        self.streams = []
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []
        self.log.close()


def start_limit(build, folder, ranks, threads):
    peer = Peer("limit", ranks, folder)
    peer.start([[os.path.join(build, "bench", "limit"), peer.control, str(threads)]], 1)
    return peer


# Open MPI's settings that bear on an all-reduce inside a host: which algorithm, and how one rank reads another's
# memory. They are fixed when mpirun starts.
def forced(algorithm, segment_bytes=0):
    return ["coll_tuned_use_dynamic_rules", "1", "coll_tuned_allreduce_algorithm", str(algorithm),
            "coll_tuned_allreduce_algorithm_segmentsize", str(segment_bytes)]


ALGORITHMS = {
    "tuned default": [],
    "segmented ring 1M": forced(5, 1 << 20),
    "segmented ring 4M": forced(5, 4 << 20),
    "ring": forced(4),
    "rabenseifner": forced(6),
    "recursive doubling": forced(3),
}
SINGLE_COPY = ["cma", "emulated", "none"]
SHARED_MEMORY = "coll sm, cma"  # this component hardly uses the byte transfer layer: one setting is enough


def mpi_settings():
    return [f"{algorithm}, {copy}" for algorithm in ALGORITHMS for copy in SINGLE_COPY] + [SHARED_MEMORY]


def mpi_found(build):
    return shutil.which("mpirun") is not None and os.path.exists(os.path.join(build, "bench", "mpi_allreduce"))


def start_mpi(build, folder, ranks, setting):
    algorithm, _, copy = setting.rpartition(", ")
    options = ["coll_sm_priority", "100"] if setting == SHARED_MEMORY else ALGORITHMS[algorithm]
    options = options + ["pml", "ob1", "btl", "vader,self", "btl_vader_single_copy_mechanism", copy]
    # This only allows oversubscribing: where there are cores enough, ranks are bound to them and never yield.
    command = ["mpirun", "--oversubscribe", "-np", str(ranks)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    for name, value in zip(options[::2], options[1::2]):
        command += ["--mca", name, value]
    peer = Peer("Open MPI", ranks, folder, setting)
    peer.start([command + [os.path.join(build, "bench", "mpi_allreduce"), peer.control]], ranks)
    return peer


def gloo_python():
    """The Python that has torch with Gloo, or None."""
    probe = "import torch, sys; sys.exit(not torch.distributed.is_gloo_available())"
    for python in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        try:
            if subprocess.run([python, "-c", probe], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              timeout=START_SECONDS).returncode == 0:
                return python
        except (OSError, subprocess.TimeoutExpired):
            pass
    return None


def start_gloo(python, folder, ranks):
    peer = Peer("Gloo", ranks, folder)
    script = os.path.join(HERE, "gloo_allreduce.py")
    environment = dict(os.environ, GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    peer.start([[python, script, peer.control, peer.init_file, str(ranks), str(rank)] for rank in range(ranks)], ranks,
               environment)
    return peer


def library_environment(build, **more):
    """For programs of `build`: where a folder of libraries was carried along with them (`make bundle`), they use it."""
    environment = dict(os.environ, **more)
    folder = os.path.join(os.path.abspath(build), "lib")
    if os.path.isdir(folder):
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [folder, os.environ.get("LD_LIBRARY_PATH")]))
    return environment


class Daemon:
    """A gradwired of our own on sockets in `folder`; `prefix`: a command that runs it."""

    def __init__(self, build, folder, arguments, prefix=()):
        self.socket = os.path.join(folder, "client.sock")
        self.log_path = os.path.join(folder, "gradwired.log")
        with open(self.log_path, "wb") as log:
            command = [*prefix, os.path.join(build, "gradwired"), "--socket-dir", folder, *arguments]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=library_environment(build))
        limit = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                self.stop()
                with open(self.log_path, errors="replace") as log:
                    raise PeerError("gradwired did not start:\n" + log.read()[-2000:])
            time.sleep(0.01)

    def answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(self.socket)
                return True
            except OSError:
                return False

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def start_gradwire(build, folder, ranks, daemon):
    peer = Peer("gradwire", ranks, folder)
    program = os.path.join(build, "bench", "host_rank")
    environment = library_environment(build, GRADWIRE_SOCKET=daemon.socket)
    peer.start([[program, peer.control, str(ranks), str(rank)] for rank in range(ranks)], ranks, environment)
    peer.send(f"id {peer.hello[0]}\n")
    return peer
