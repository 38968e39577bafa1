"""What bench/vit.py starts: the network of a scene, its daemons, and its ranks."""
import json
import os
import subprocess
import sys

import gpu_peers
import node_peers
import peers

PROBE_SECONDS = 120
RANK = os.path.join(peers.HERE, "vit_rank.py")
PROBE = ("import json, torch, torch.distributed as d; assert d.is_available(); "
         "print(json.dumps({'torch': torch.__version__, 'gpus': torch.cuda.device_count()}))")
# NCCL between two processes of one host, as between two hosts.
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
           "NCCL_NET": "Socket"}
PATHS = {"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_NET"}  # scenes set these, not the caller
DEADLINES = ["--config=/dev/null", "--deadline.bootstrap_s=30", "--deadline.bucket_s=60"]


def find_torch():
    """The Python that has torch, and what that torch finds here: (path, {"torch", "gpus"})."""
    for python in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        try:
            said = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS,
                                  check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0:
            return python, json.loads(said.stdout.splitlines()[-1])
    raise peers.PeerError("no Python here has torch (Debian: python3-torch)")


class Loopback:
    """Where two daemons on this machine meet: the loopback of a network namespace, so that its rate can be limited and
    its bytes be counted without others; or this machine's own, without a limit. `with Loopback(10**10) as loopback:`"""

    def __init__(self, rate):
        self.name, self.wanted = f"gwvit{os.getpid()}", rate
        self.made, self.inside, self.rate = False, [], 0
        self.words = f"limited by tbf to {rate / 1e9:g} Gbit/s, both directions together"

    def __enter__(self):
        try:
            self.make()
        except (OSError, peers.PeerError, subprocess.CalledProcessError) as why:
            self.words = f"without a limit ({str(why).splitlines()[0]})"
        return self

    def make(self):
        inside = ["ip", "netns", "exec", self.name]
        node_peers.ip("netns", "add", self.name)
        self.made = True
        node_peers.ip("-n", self.name, "link", "set", "lo", "up")
        subprocess.run([*inside, "true"], check=True, capture_output=True)
        self.inside = inside
        node_peers.limit_rate(inside, "lo", self.wanted, "256k")  # with less of it 10 Gbit/s are not reached
        self.rate = self.wanted

    def sent(self):
        """Bytes, of both nodes."""
        return node_peers.device_bytes(self.inside, "lo", "tx")

    def __exit__(self, *_):
        if self.made:
            subprocess.run(["ip", "netns", "del", self.name], stderr=subprocess.DEVNULL, check=False)


class World(gpu_peers.Processes):
    """A scene's daemons and ranks."""

    start_seconds = 120.0  # torch, NCCL and the model take long
    run_seconds = 60.0  # after which a rank that does not answer has failed

    def __init__(self, options, scene, folder, loopback=None):
        super().__init__(scene.name, scene.ranks, folder)
        self.options, self.scene, self.loopback, self.daemons = options, scene, loopback, []
        try:
            self.start_daemons(folder)
            self.start(self.commands(folder), scene.ranks, self.environment())
        except BaseException:
            self.close()
            raise
        self.about = json.loads(self.hello[0])

    def inside(self):
        return self.loopback.inside if self.loopback else []

    def start_daemons(self, folder):
        for number in range(self.scene.nodes):
            own = os.path.join(folder, f"daemon{number}")
            os.mkdir(own)
            arguments = [*DEADLINES, *self.options.gradwired]
            if self.loopback:
                arguments += [f"--wire.listen=127.0.0.{2 + number}", "--wire.port=0", "--wire.transports=tcp",
                              "--wire.devices=lo"]
            self.daemons.append(peers.Daemon(self.options.build, own, arguments, self.inside()))

    def environment(self):
        build = os.path.abspath(self.options.build)
        everything = peers.library_environment(
            build, GRADWIRE_LIBRARY=os.path.join(build, "libgradwire.so.0"),
            GRADWIRE_PLUGIN_DIR=os.path.join(build, "gradwire"),
            GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"), **self.scene.environment)
        return {key: value for key, value in everything.items() if key in self.scene.environment or key not in PATHS}

    def commands(self, folder):
        scene, options = self.scene, self.options
        told = {"ranks": scene.ranks, "backend": scene.backend, "meeting": os.path.join(folder, "meeting"),
                "control": self.control, "model": options.model, "batch": options.batch, "autocast": options.autocast,
                "accumulate": options.accumulate, "threads": max(1, len(os.sched_getaffinity(0)) // scene.ranks)}
        commands = []
        for rank in range(scene.ranks):
            daemon = self.daemons[rank * scene.nodes // scene.ranks]
            told = {**told, "rank": rank, "device": scene.devices[rank]}
            commands.append([*self.inside(), "env", f"VIT_RANK={json.dumps(told)}", f"GRADWIRE_SOCKET={daemon.socket}",
                             options.python, RANK])
        return commands

    def tell(self, command, **what):
        """Has all ranks do it; their answers, rank 0's first."""
        return self.ask(f"{command} {json.dumps(what)}")

    def cpu_seconds(self):
        """Of all daemons together."""
        return sum(gpu_peers.cpu_seconds(daemon.process.pid) for daemon in self.daemons)

    def engine(self):
        """The one that the daemons name for the group there is; None: there is none."""
        admin = os.path.join(os.path.dirname(self.daemons[0].socket), "admin.sock")
        said = subprocess.run([os.path.join(self.options.build, "gwctl"), "--socket", admin, "--json", "groups"],
                              capture_output=True, text=True, timeout=10, check=False,
                              env=peers.library_environment(self.options.build))
        groups = json.loads(said.stdout) if said.returncode == 0 else []
        return next((group["engine"] for group in groups if "engine" in group), None)

    def device_mib(self):
        """What the daemons hold of GPUs, as the driver counts it; None: it does not say."""
        try:
            question = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
            said = subprocess.run(question, capture_output=True, text=True, timeout=20, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return None
        ours = {daemon.process.pid for daemon in self.daemons}
        rows = [[word.strip() for word in line.split(",")] for line in said.splitlines()]
        held = [int(row[1]) for row in rows if len(row) == 2 and all(map(str.isdigit, row)) and int(row[0]) in ours]
        return sum(held) if held else None

    def explain(self):
        """What the daemons know and wrote."""
        return "\n".join(f"gradwired {i}:\n{gpu_peers.daemon_text(self.options.build, daemon)}"
                         for i, daemon in enumerate(self.daemons))

    def close(self):
        self.kill()
        for daemon in self.daemons:
            daemon.process.kill()
            daemon.process.wait()
