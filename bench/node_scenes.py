"""Two scenes of `make bench-nodes`: two nodes that two equal routes join, and many groups of two ranks at once."""
import subprocess
import tempfile

import node_peers
from node_peers import Daemons, Network, device_bytes, ip, limit_rate
from report import median, size_text

MIB = 1 << 20
ROUTE_RATE = 10**9
ROUTE_BYTES = 25 * MIB
ROUTE_PATHS = 16  # the more, the more evenly they fall on the routes

PAIR_NODES, PAIR_RANKS = 8, 4  # ranks of each node
PAIR_RATE = 2 * 10**8  # what the cores of a small machine can carry for 8 nodes at once
PAIR_BYTES = 4 * MIB


class Routes(Network):
    """Two namespaces joined by one or two veth pairs, each way over each limited; connections are spread by their ports.
    The addresses are of no pair's own network, so both pairs lead there."""

    def __init__(self, n_routes, rate):
        super().__init__(2, rate)
        self.devices = [f"eth{i}" for i in range(n_routes)]

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for device in self.devices:
            ip("-n", self.names[0], "link", "add", device, "type", "veth", "peer", "name", device, "netns", self.names[1])
        for i, name in enumerate(self.names):
            ip("-n", name, "addr", "add", f"{node_peers.SUBNET}.{i + 1}/32", "dev", "eth0")
            for device in self.devices:
                ip("-n", name, "link", "set", device, "up")
                limit_rate(self.inside(i), device, self.rate)
            self.set_up(i, "net.ipv4.fib_multipath_hash_policy", 1)
            for device in ["all", *self.devices]:  # an answer may come by the other pair
                self.set_up(i, f"net.ipv4.conf.{device}.rp_filter", 0)
            hops = [word for device in self.devices for word in ("nexthop", "dev", device)]
            ip("-n", name, "route", "add", f"{node_peers.SUBNET}.{2 - i}/32", *hops)

    def set_up(self, i, key, value):
        path = "/proc/sys/" + key.replace(".", "/")
        subprocess.run([*self.inside(i), "sh", "-c", f"echo {value} > {path}"], check=True)

    def sent_by_device(self):
        return [device_bytes(self.inside(0), device, "tx") for device in self.devices]


def measure_routes(build, n_routes, timed):
    """Times in us, and how many percent of the bytes each route carried."""
    with tempfile.TemporaryDirectory(prefix="gwbench-") as folder, Routes(n_routes, ROUTE_RATE) as network, \
            Daemons(build, folder, network, f"--wire.paths={ROUTE_PATHS}") as daemons:
        peer = node_peers.start_gradwire(build, folder, network, daemons, [0, 1])
        try:
            before = network.sent_by_device()
            times, _ = peer.blocks("none", ROUTE_BYTES, 1, timed)
            sent = [b - a for a, b in zip(before, network.sent_by_device())]
        finally:
            peer.stop()
    return [t / 1e3 for t in times], [100 * part / sum(sent) for part in sent]


def routes(build, say, targets, rounds, timed):
    """Made anew in each round: chance has the connections' ports fall on the routes."""
    one, two, shares = [], [], []
    for turn in range(rounds):
        say(f"one route, round {turn + 1}")
        one += measure_routes(build, 1, timed)[0]
        say(f"two routes, round {turn + 1}")
        times, share = measure_routes(build, 2, timed)
        two += times
        shares.append(f"{share[0]:.0f} and {share[1]:.0f} %")
    print(f"# {size_text(ROUTE_BYTES)}, none, {ROUTE_PATHS} paths, routes of {ROUTE_RATE / 1e9:g} Gbit/s: one {median(one):.0f} "
          f"us, two {median(two):.0f} us, which carried {', '.join(shares)} of the bytes", flush=True)
    targets.add(f"{size_text(ROUTE_BYTES)}, 2 routes of 1 Gbit/s", median(one) / median(two), 1.7, "times as fast as one")


def pairs_of_nodes():
    """As data-parallel replicas are: each rank of the first half of the nodes has its partner in the second half."""
    half = PAIR_NODES // 2
    return [(node, node + half) for node in range(half) for _ in range(PAIR_RANKS)]


def measure_pairs(build, timed):
    """What each node's pairs moved together, in bytes of data a second, for the node that moved least."""
    with tempfile.TemporaryDirectory(prefix="gwbench-") as folder, Network(PAIR_NODES, PAIR_RATE) as network, \
            Daemons(build, folder, network) as daemons:
        running = []
        try:
            for number, nodes in enumerate(pairs_of_nodes()):
                running.append(node_peers.start_gradwire(build, folder, network, daemons, nodes, f"pair{number}"))
            for peer in running:
                peer.begin("none", PAIR_BYTES, timed)
            speed = [0.0] * PAIR_NODES
            for nodes, peer in zip(pairs_of_nodes(), running):
                times, _ = peer.end()  # a wrong element is an error
                for node in nodes:
                    speed[node] += PAIR_BYTES / median(times) * 1e9
        finally:
            for peer in running:
                peer.stop()
    return min(speed)


def pairs(build, say, targets, timed):
    count = len(pairs_of_nodes())
    say(f"{count} pairs at once")
    share = measure_pairs(build, timed) * 8 / PAIR_RATE
    print(f"# {count} groups of 2 ranks at once on {PAIR_NODES} nodes of {PAIR_RANKS} ranks, {size_text(PAIR_BYTES)}, none, "
          f"{PAIR_RATE / 1e6:g} Mbit/s a node: all results exact, {share:.3f} of the links' rate", flush=True)
    targets.add(f"{count} pairs on {PAIR_NODES} nodes", share, 0.9, "of the links' rate; all exact")
