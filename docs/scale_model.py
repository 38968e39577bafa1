"""scale_model.py - the model of SCALE.md: what an all-reduce asks of nodes and links, and how long it takes"""
import dataclasses
import math

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SHARD = 64 * KIB  # of a chunk, one node's, unless wire.chunk_bytes is less: daemon/plan.c
LANE_CHUNKS = 4  # at least, for each lane that carries a bucket: daemon/lane_flight.c


@dataclasses.dataclass(frozen=True)
class Network:
    """What the model knows of nodes and network. The defaults are assumed round figures, not measurements."""
    rate_gbit: float = 100  # of a node's link, each way; 0: the link takes no time
    alpha_us: float = 5  # from the send of a short message until it is there
    message_us: float = 0.5  # processor time of a message, for the sender and for the receiver each
    reduce_ns: float = 0.05  # processor time to add a byte
    byte_ns: float = 0  # processor time of a byte sent or received: copies, checksums; 0 where the network card does it
    framing: float = 1.05  # bytes on the wire for a byte of data
    oversubscription: float = 1  # how many times what the links of a rack can send is what its uplink can
    rack: int = 32  # nodes
    chunk: int = MIB  # wire.chunk_bytes
    lanes: int = 1  # threads of a daemon that share a large bucket; only shards can say which part is whose
    lane_gain: float = 1  # what each after the first adds to its speed

    def wire_us(self, count):
        return count * self.framing * 8e-3 / self.rate_gbit if self.rate_gbit else 0


@dataclasses.dataclass(frozen=True)
class Load:
    """What a way asks of the node that has most to do."""
    steps: float  # messages that wait for each other
    messages: float  # sent by this node; it receives as many
    sent: float  # bytes, and as many received
    reduced: float  # bytes added
    far: float  # bytes of its own through the uplink of its rack, if each node of the rack sends as many
    apart: bool = False  # near and far ones are not sent at the same time


def pieces(count, chunk):
    return max(1, math.ceil(count / chunk))


def shard_chunk(n, net):
    return min(net.chunk, n * SHARD)


def server(n, size, net):
    """One node takes all buckets, adds them, and sends the result back."""
    far = max(0, n - net.rack) * size / net.rack
    return Load(2, (n - 1) * pieces(size, net.chunk), (n - 1) * size, (n - 1) * size, far)


def ring(n, size, net):
    """Each node passes a shard to the next, n - 1 times to add and n - 1 times to spread."""
    sent = 2 * size * (n - 1) / n
    far = sent / net.rack if n > net.rack else 0
    return Load(2 * (n - 1), 2 * (n - 1) * pieces(size / n, net.chunk), sent, sent / 2, far)


def halving(n, size, net):
    """Pairs exchange halves, then quarters, near ones first, and back. Nodes over a power of two join a neighbour."""
    power = 1 << (n.bit_length() - 1)
    sent = far = messages = 0
    for k in range(power.bit_length() - 1):
        part = size / 2 ** (k + 1)
        sent += 2 * part
        far += 2 * part if 2 ** k >= net.rack else 0
        messages += 2 * pieces(part, net.chunk)
    reduced = sent / 2
    steps = 2 * (power.bit_length() - 1)
    if n > power:
        steps, messages, sent, reduced = steps + 2, messages + pieces(size, net.chunk), sent + size, reduced + size
    return Load(steps, messages, sent, reduced, far, True)


def shards(n, size, net):
    """Each node sends every other one its shard of each chunk, adds what it gets, and sends all the result."""
    sent = 2 * size * (n - 1) / n
    far = sent * (n - net.rack) / (n - 1) if n > net.rack else 0
    return Load(2, 2 * (n - 1) * pieces(size, shard_chunk(n, net)), sent, sent / 2, far)


def large_net(n, net):
    return dataclasses.replace(net, chunk=max(net.chunk, n * 64 * KIB))


def large_shards(n, size, net):
    """The same with chunks that grow with the number of nodes, so that a shard has 64 KiB or the bucket's n-th part."""
    return shards(n, size, large_net(n, net))


WAYS = {"server": server, "ring": ring, "halving": halving, "shards": shards, "shards, large chunks": large_shards}


def link_us(load, net):
    core = net.wire_us(load.far * net.oversubscription)
    if load.apart:
        return net.wire_us(load.sent - load.far) + core
    return max(net.wire_us(load.sent), core)


def processor_us(load, net):
    return (2 * load.messages * net.message_us + load.reduced * net.reduce_ns * 1e-3 +
            2 * load.sent * net.byte_ns * 1e-3)


def lanes_of(n, size, net):
    return min(net.lanes, max(1, pieces(size, shard_chunk(n, net)) // LANE_CHUNKS))


def time_us(way, n, size, net, share=1):
    """`share`: how many nodes share a machine, and so its processor."""
    if n < 2:
        return 0.0
    load = WAYS[way](n, size, net)
    link = link_us(load, net)
    processor = processor_us(load, net) * share
    if way == "shards":
        processor /= 1 + net.lane_gain * (lanes_of(n, size, net) - 1)
    chunk = {"shards": shard_chunk(n, net), "shards, large chunks": shard_chunk(n, large_net(n, net))}.get(way, net.chunk)
    return load.steps * net.alpha_us + max(link, processor) + min(link, processor) / pieces(size, chunk)


def agreement_us(n, net, share=1):
    """All nodes tell all others that they have the bucket, before its data moves."""
    return net.alpha_us + 2 * (n - 1) * net.message_us * share
