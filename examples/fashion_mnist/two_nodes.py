"""Two daemons that average together, and trainings with two ranks on each: for `scripts/demo --nodes 2` and
`make bench-accuracy`.

Where root may make network namespaces, each daemon is in one of its own, and a veth pair joins them: all that goes from
one to the other goes over it, and its counters count it. Both namespaces end with the daemons. Elsewhere both daemons
are on the loopback, and count themselves what they send; a link cannot be limited there.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

# In the library's order, with the bytes of an element; blocks of 256 elements share a scale of 4 bytes.
BYTES = {"none": 4, "fp16": 2, "bf16": 2, "fp8": 1 + 4 / 256, "int8": 1 + 4 / 256, "int4": 0.5 + 4 / 256}
START_SECONDS = 60.0
INSIDE = "eth0"
TOOLS = ["ip", "tc", "nsenter", "unshare"]
OWN_SYS = "mount -t sysfs sysfs /sys"  # in a namespace, for UCX, which looks for interfaces there
TBF = "tbf rate {rate} burst 256k latency 50ms"


class Trouble(Exception):
    """The text says what failed, and what was printed meanwhile."""


def call(*words):
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise Trouble(f"{' '.join(words)}: {result.stderr.strip() or result.returncode}")
    return result.stdout


def why_no_namespaces():
    """None where this process may make network namespaces, else the reason."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return f"there is no {missing[0]}"
    if os.geteuid() != 0:
        return "network namespaces take root"
    try:  # all that is done later
        call("unshare", "--net", "--mount", "sh", "-c", f"{OWN_SYS} && ip link add {INSIDE} type veth peer name other && "
             f"tc qdisc add dev {INSIDE} root {TBF.format(rate=10**9)}")
    except Trouble as why:
        return str(why)
    return None


class Node:
    """A daemon with its folder; in a namespace it waits for a line before it starts, so that its link can be made."""

    def __init__(self, build, folder, number, apart):
        self.build, self.folder, self.apart = build, os.path.join(folder, str(number)), apart
        self.address = f"10.77.0.{number + 1}" if apart else f"127.0.0.{number + 2}"
        self.device = INSIDE if apart else "lo"
        self.log_path = os.path.join(self.folder, "log")
        os.mkdir(self.folder)
        # Every daemon ends with this process, however that ends.
        command = ["setpriv", "--pdeathsig", "TERM", *(["unshare", "--net", "--mount"] if apart else []), "sh", "-c",
                   "read -r _ && " + (f"{OWN_SYS} && " if apart else "") + 'exec "$@"', "node",
                   os.path.join(build, "gradwired"), "--config=/dev/null", f"--socket.dir={self.folder}", "--drain.timeout_s=2", f"--wire.listen={self.address}", "--wire.port=0",
                   f"--wire.devices={self.device}", "--wire.transports=tcp",
                   "--deadline.silence_ms=60000"]  # both share the cores of this host, with whatever else it does
        with open(self.log_path, "wb") as log:
            # The terminal's Ctrl-C is for this process, which then ends the daemons in order.
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        self.limit = time.monotonic() + START_SECONDS

    @property
    def socket(self):
        return os.path.join(self.folder, "client.sock")

    def inside(self, *words):
        return call("nsenter", "-t", str(self.process.pid), "-n", *words)

    def wait_for_namespace(self):
        while os.readlink(f"/proc/{self.process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            self.pause("unshare")

    def pause(self, what):
        if self.process.poll() is not None or time.monotonic() > self.limit:
            with open(self.log_path, encoding="utf-8", errors="replace") as log:
                raise Trouble(f"{what} did not start:\n{log.read()[-2000:]}")
        time.sleep(0.02)

    def connect(self):
        self.inside("ip", "addr", "add", f"{self.address}/24", "dev", INSIDE)
        self.inside("ip", "link", "set", INSIDE, "up")
        self.inside("ip", "link", "set", "lo", "up")

    def start(self):
        while self.apart and " state UP " not in self.inside("ip", "link", "show", INSIDE):
            self.pause("the link")  # UCX would not take it yet
        self.process.stdin.write(b"\n")
        self.process.stdin.close()
        while not self.answers():
            self.pause("gradwired")

    def gwctl(self, *words):
        return subprocess.run([os.path.join(self.build, "gwctl"), "--socket", os.path.join(self.folder, "admin.sock"),
                               *words], capture_output=True, text=True, check=False)

    def answers(self):
        return self.gwctl("version").returncode == 0

    def sent(self):
        if self.apart:
            with open(f"/proc/{self.process.pid}/net/dev", encoding="utf-8") as file:
                line = next(line for line in file if line.strip().startswith(INSIDE + ":"))
            return int(line.split(":")[1].split()[8])
        stats = json.loads(self.gwctl("--json", "stats").stdout)["stats"]
        return next(stat["value"] for stat in stats if stat["name"] == "wire_bytes_sent")

    def stop(self):
        self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Nodes:
    """`with Nodes(build, data) as nodes: nodes.train("int8", 1)`"""

    def __init__(self, build, data=None, apart=None):
        self.build, self.data = build, data
        self.why_together = why_no_namespaces() if apart is None else None if apart else "as asked for"
        self.apart = self.why_together is None
        self.nodes, self.trainer = [], None

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="gw-nodes-", dir="/tmp")  # short: the path of a socket has 107 bytes at most
        try:
            for number in range(2):
                self.nodes.append(Node(self.build, self.folder, number, self.apart))
            if self.apart:
                for node in self.nodes:
                    node.wait_for_namespace()
                first, second = (str(node.process.pid) for node in self.nodes)
                call("ip", "link", "add", INSIDE, "netns", first, "type", "veth", "peer", "name", INSIDE, "netns", second)
                for node in self.nodes:
                    node.connect()
            for node in self.nodes:
                node.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.trainer:
            self.trainer.terminate()
            self.trainer.wait()
        for node in self.nodes:
            node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def words(self):
        return ("each in a network namespace of this host, joined by veth, over TCP" if self.apart else
                "both on the loopback of this host, over TCP: not two hosts")

    def limit(self, bits_per_second):
        """What each node may send; 0: as much as it can. In namespaces only."""
        for node in self.nodes:
            if bits_per_second:
                node.inside("tc", "qdisc", "replace", "dev", INSIDE, "root", *TBF.format(rate=bits_per_second).split())
            else:
                node.inside("tc", "qdisc", "del", "dev", INSIDE, "root")

    def train(self, codec, seed, *options, on=2, waiting=None):
        """Trains on so many nodes. Returns the program's figures (figures.c) with `wire_bytes`, what both nodes have
        sent; `waiting` is called now and then."""
        path, log_path = (os.path.join(self.folder, name) for name in ("figures.json", "trainer.log"))
        command = [os.path.join(self.build, "examples", "fashion_mnist"), "--codec", codec, "--seed", str(seed), "--figures",
                   path, "--socket", ",".join(node.socket for node in self.nodes[:on]), *options]
        if self.data:
            command += ["--data", self.data]
        before = self.sent()
        with open(log_path, "wb") as log:
            self.trainer = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True,
                                            env=dict(os.environ, OPENBLAS_NUM_THREADS="1"))
        while self.trainer.poll() is None:
            if waiting:
                waiting()
            time.sleep(0.1)
        code, self.trainer = self.trainer.returncode, None
        if code != 0:
            with open(log_path, encoding="utf-8", errors="replace") as log:
                said = log.read()[-2000:]
            raise Trouble(f"{' '.join(command)} ended with {code}:\n{said}")
        with open(path, encoding="utf-8") as file:
            figures = json.load(file)
        figures["wire_bytes"] = self.sent() - before
        return figures

    def sent(self):
        return sum(node.sent() for node in self.nodes)


def end_in_order():
    """Whoever ends this process by a signal, what is in a `with` is cleaned up."""
    def leave(number, _):
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)


def replicas_are_equal(figures):
    return all(len(set(row)) == 1 for row in figures["hashes"])


def accuracy(figures):
    """In per cent."""
    return 100 * figures["correct"] / figures["test_images"]


def predicted_wire_bytes(figures, codec):
    """Of both nodes: each gets half of every bucket from the other, and gives it half of the result."""
    return 2 * sum(figures["bucket_elements"]) * BYTES[codec] * len(figures["loss"])
