"""The ranks of bench/run-ddp and bench/run-ddp-codecs: processes that train as they are told. See ddp_rank.py."""
import json
import os

import peers


class Trainings(peers.Peer):
    """One process a rank; sockets: of the daemon of each; threads: of a rank."""

    def __init__(self, build, folder, sockets, data=None, threads=1):
        python = peers.gloo_python()
        if python is None:
            raise peers.PeerError("no Python here has torch with Gloo (Debian: python3-torch)")
        super().__init__("DDP", len(sockets), folder)
        environment = peers.library_environment(
            build, GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", "lo"), PYTHONDONTWRITEBYTECODE="1",
            OMP_NUM_THREADS=str(threads), GRADWIRE_LIBRARY=os.path.join(os.path.abspath(build), "libgradwire.so.0"), **({"FASHION_MNIST": data} if data else {}))
        script = os.path.join(peers.HERE, "ddp_rank.py")
        # env(1) names the daemon of each.
        self.start([["env", f"GRADWIRE_SOCKET={socket}", python, script, self.control, self.init_file, str(len(sockets)), str(rank)]
                    for rank, socket in enumerate(sockets)], len(sockets), environment)

    def ask(self, *words):
        """What each rank answers."""
        self.send(" ".join(map(str, words)) + "\n")
        return [json.loads(self.read(stream).split(" ", 1)[1]) for stream in self.streams]

    def steps(self, name, n, total):
        """The mean loss over ranks and rank 0's time in ns, of each step."""
        answers = self.ask("steps", name, n, total)
        return [sum(losses) / len(losses) for losses in zip(*(a[0] for a in answers))], answers[0][1]

    def processor_ms(self, *others):
        """What the ranks, and other processes, have used so far; in clock ticks of some ms."""
        ticks = 0
        for pid in [process.pid for process in (*self.processes, *others)]:  # env(1) has become the rank
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                ticks += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
        return ticks * 1000 / os.sysconf("SC_CLK_TCK")

    def are_replicas_equal(self, name):
        return len(set(self.ask("hash", name))) == 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
