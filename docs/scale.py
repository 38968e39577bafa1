#!/usr/bin/env python3
"""scale.py - how long an all-reduce between nodes takes, on paper, and how far the paper is from measurements

    docs/scale.py                                   the tables of SCALE.md
    docs/scale.py --update                          writes them into SCALE.md, and the picture scale.svg
    docs/scale.py --nodes 64 --bytes 25M --rate 100 one case, all ways
    docs/scale.py --points build/bench/nodes.json   calibrates on some measured points and checks the others

The model is explained in SCALE.md. Only Python's standard library is needed.
"""
import argparse
import dataclasses
import itertools
import json
import math
import os
import sys

from scale_model import GIB, KIB, MIB, WAYS, Network, agreement_us, time_us

FOLDER = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = os.path.join(FOLDER, "SCALE.md")
PICTURE = os.path.join(FOLDER, "scale.svg")
KEPT_POINTS = os.path.join(FOLDER, "scale_points.json")  # those that SCALE.md shows, where there are any

NODES = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
RATES_GBIT = [1, 10, 25, 100, 200, 400, 800]
ODD_NODES = [3, 6, 12, 24, 48, 96, 192, 384]  # no power of two
AS_FAST = 1.02  # times the fastest's time
MAX_ERROR = 0.15
# us of latency, us a message, ns a byte, gain of a lane: what is found to be less is not told by the points
LEAST = (1, 0.1, 0.001, 0.01)
MOST = (math.inf, math.inf, math.inf, 1)


# ---- text --------------------------------------------------------------------------------------------


def size_text(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size:.0f} B"


def time_text(us):
    if us >= 999.5e3:
        return f"{us / 1e6:.3g} s"
    return f"{us / 1e3:.3g} ms" if us >= 999.5 else f"{us:.3g} us"


def markdown(headers, rows):
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def _compare(first, values, case):
    """A row for each value: the time of every way; bold what is within 2% of the fastest of the first four."""
    rows = []
    for value in values:
        times = [time_us(way, *case(value)) for way in WAYS]
        least = min(times[:4])
        rows.append([value] + [f"**{time_text(t)}**" if t <= AS_FAST * least else time_text(t) for t in times])
    return markdown([first, *WAYS], rows)


def assumptions_table():
    net = Network()
    return markdown(["what", "assumed"], [
        ["rate of a node's link, each way", f"{net.rate_gbit} Gbit/s"],
        ["latency of a short message (alpha)", f"{net.alpha_us} us"],
        ["processor time of a message, at each end", f"{net.message_us} us"],
        ["processor time to add (gamma)", f"{net.reduce_ns} ns a byte, that is {1 / net.reduce_ns:.0f} GB/s"],
        ["processor time to send or receive a byte", f"{net.byte_ns} ns: the network card moves the data"],
        ["bytes on the wire for a byte of data", net.framing],
        ["oversubscription of the core", f"{net.oversubscription}, racks of {net.rack} nodes"],
        ["chunk (`wire.chunk_bytes`)", size_text(net.chunk)]])


def loads_table():
    net, n, size = Network(), 64, 25 * MIB
    rows = []
    for name, way in WAYS.items():
        load = way(n, size, net)
        rows.append([name, f"{load.steps:.0f}", f"{load.messages:.0f}", size_text(load.sent), size_text(load.reduced)])
    return markdown([f"{n} nodes, {size_text(size)}", "messages one after the other", "messages sent", "bytes sent",
                     "bytes added"], rows)


def nodes_table(size, nodes=NODES):
    return _compare(f"nodes, {size_text(size)}", nodes, lambda n: (n, size, Network()))


def rates_table():
    return _compare("Gbit/s, 64 nodes, 25 MiB", RATES_GBIT, lambda rate: (64, 25 * MIB, Network(rate_gbit=rate)))


def latency_table():
    return _compare("latency, us; 64 nodes, 1 MiB", [1, 5, 20, 100, 500],
                    lambda us: (64, MIB, Network(alpha_us=us, message_us=us / 10)))


def core_table():
    return _compare("oversubscription, 256 nodes, 100 MiB", [1, 2, 4, 8, 16],
                    lambda s: (256, 100 * MIB, Network(oversubscription=s)))


def crossing(n, way, other, net=Network()):
    """The smallest bucket of 1 KiB to 4 GiB from which on `way` is as fast as `other`; None: there is none."""
    found = None
    for size in reversed([KIB << k for k in range(23)]):
        if time_us(way, n, size, net) > AS_FAST * time_us(other, n, size, net):
            break
        found = size
    return found


def _crossing_text(n, way, other):
    size = crossing(n, way, other)
    if size is None:
        return "never"
    return "always" if size == KIB else f"from {size_text(size)}"


def crossings_table():
    pairs = [(way, other) for other in ("ring", "halving") for way in ("shards", "shards, large chunks")]
    return markdown(["nodes"] + [f"{way}, against {other}" for way, other in pairs],
                    [[n] + [_crossing_text(n, *pair) for pair in pairs] for n in sorted(NODES + ODD_NODES)])


# ---- measured points ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Point:
    nodes: int
    bytes: int
    rate_gbit: float
    us: float
    wire_bytes: float  # that one node sends; 0: not known
    machines: int
    lanes: int

    def share(self):
        return self.nodes / self.machines


class BadPoints(Exception):
    pass


def _read_point(item, number):
    try:
        us = item["us"] if "us" in item else item["gradwire_us"]
        point = Point(int(item["nodes"]), int(item["bytes"]), float(item["rate_bps"] or 0) / 1e9, float(us),
                      float(item.get("wire_bytes") or 0), int(item.get("machines", 1)), int(item.get("lanes", 1)))
    except (KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__} {error}"
        raise BadPoints(f"point {number}: {why}: it takes nodes, bytes, rate_bps, us") from None
    if point.nodes < 2 or point.bytes < 1 or point.us <= 0 or point.rate_gbit < 0 or min(point.machines, point.lanes) < 1:
        raise BadPoints(f"point {number}: {item} cannot be")
    return point


def read_points(path):
    """All-reduces that were sent as they are; others (codecs) are passed over."""
    try:
        with open(path, encoding="utf-8") as file:
            items = json.load(file)
    except (OSError, ValueError) as error:
        raise BadPoints(f"{path}: {error}") from None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadPoints(f"{path}: no list of points")
    points = [_read_point(item, number) for number, item in enumerate(items, 1)
              if item.get("codec", "none") == "none" and item.get("op", "all_reduce") == "all_reduce"]
    if len(points) < 6:
        raise BadPoints(f"{path}: {len(points)} points of all_reduce without codec: 6 are needed, 3 to calibrate on")
    return sorted(points, key=lambda p: (p.rate_gbit, p.nodes, p.bytes))


def predict_us(point, net):
    net = dataclasses.replace(net, rate_gbit=point.rate_gbit, lanes=point.lanes)
    return (agreement_us(point.nodes, net, point.share()) +
            time_us("shards", point.nodes, point.bytes, net, point.share()))


def _framing(points):
    """Bytes on the wire for a byte of data: the middle of what was counted."""
    ratios = sorted(p.wire_bytes / (2 * p.bytes * (p.nodes - 1) / p.nodes) for p in points if p.wire_bytes > 0)
    if not ratios:
        return Network.framing
    middle = ratios[len(ratios) // 2]
    if not 0.98 <= middle <= 1.5:
        raise BadPoints(f"wire_bytes are {middle:.2f} times the data: wanted is what one node sends in one operation")
    return middle


MOVES = [move for move in itertools.product((-1, 0, 1), repeat=len(LEAST)) if 1 <= sum(map(abs, move)) <= 2]
STARTS = ((50, 5, 1, 1), (5, 0.5, 0.1, 1), (500, 1, 0.3, 0.3), (20, 20, 2, 0.5), (5, 5, 0.2, 0.5))


def _search(loss, values):
    """From these values, in ever smaller steps, to those with the least loss near them. Also gives that loss."""
    least, step = loss(values), 4.0
    while step > 1.001:
        moved = False
        for move in MOVES:
            tried = [min(max(value * step ** power, bottom), top) for value, power, bottom, top in
                     zip(values, move, LEAST, MOST)]
            if loss(tried) < least:
                values, least, moved = tried, loss(tried), True
        step = step if moved else step ** 0.7
    return least, values


def calibrate(points, chunk):
    """The latency, the processor time of a message and that of a byte, and the gain of a lane, which fit best, where a
    point counts the less the further off it is, so that one wrong point does not draw them away. What has the least sum
    of errors is one of the places where that search begins. Adding counts to the byte."""
    fixed = Network(reduce_ns=0, framing=_framing(points), chunk=chunk)
    names = ("alpha_us", "message_us", "byte_ns", "lane_gain")

    def network(values):
        return dataclasses.replace(fixed, **dict(zip(names, values)))

    def errors(values):
        return (abs(math.log(predict_us(p, network(values)) / p.us)) for p in points)

    def bounded(values):
        return sum(error / (error + MAX_ERROR) for error in errors(values))

    starts = [list(start) for start in STARTS]
    starts.append(min(_search(lambda values: sum(errors(values)), start) for start in starts)[1])
    return network(min(_search(bounded, start) for start in starts)[1])


def check_points(points, chunk):
    """Returns the text and the number of points that are off. Every other point calibrates."""
    net = calibrate(points[::2], chunk)
    rows = []
    n_off = 0
    for number, point in enumerate(points):
        predicted = predict_us(point, net)
        error = predicted / point.us - 1
        off = abs(error) > MAX_ERROR
        n_off += off
        rate = f"{point.rate_gbit:g} Gbit/s" if point.rate_gbit else "unlimited"
        rows.append([point.nodes, size_text(point.bytes), rate, "checked" if number % 2 else "calibrates",
                     time_text(predicted), time_text(point.us),
                     f"{100 * error:+.1f}%" + (" **off**" if off else "")])
    checked = len(points) // 2
    found = [("less than " if value <= least else "") + f"{value:.3g}"
             for value, least in zip((net.alpha_us, net.message_us, net.byte_ns, net.lane_gain), LEAST)]
    lanes = f"each further lane adds {found[3]} of the first, " if any(point.lanes > 1 for point in points) else ""
    text = (f"Calibrated: latency {found[0]} us, {found[1]} us a message and {found[2]} ns a byte at each end, {lanes}"
            f"{net.framing:.3f} bytes on the wire for a byte of data.\n"
            f"{len(points) - checked} points calibrate, {checked} are checked; {n_off} of all are more than "
            f"{100 * MAX_ERROR:.0f}% off.\n\n")
    return text + markdown(["nodes", "bucket", "rate", "use", "predicted", "measured", "error"], rows), n_off


def calibration_block():
    if not os.path.exists(KEPT_POINTS):
        return ("No measured points are kept beside this document. All times in it follow from the assumptions above "
                "alone.")
    return check_points(read_points(KEPT_POINTS), Network.chunk)[0]


# ---- the document and its picture --------------------------------------------------------------------

BLOCKS = {
    "assumptions": assumptions_table, "loads": loads_table,
    "nodes": lambda: nodes_table(25 * MIB), "odd": lambda: nodes_table(25 * MIB, ODD_NODES),
    "small": lambda: nodes_table(64 * KIB), "rates": rates_table, "latency": latency_table, "core": core_table,
    "crossings": crossings_table, "calibration": calibration_block,
}


def with_blocks(text):
    """The document with every block between its two marks made anew."""
    for name, make in BLOCKS.items():
        begin, end = f"<!-- scale.py: {name} -->\n", f"<!-- end of {name} -->\n"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            raise BadPoints(f"{DOCUMENT}: the marks of '{name}' are missing")
        text = before + begin + make() + "\n" + end + after
    return text


COLOURS = {"server": "#888888", "ring": "#d55e00", "halving": "#009e73", "shards": "#0072b2",
           "shards, large chunks": "#56b4e9"}


def _panel(left, title, size):
    """A chart of time against nodes, both in powers: 10 us to 10 s."""
    width, height, top, low, high = 330, 300, 40, 1, 7

    def x(n):
        return left + width * (math.log2(n) - 1) / 11

    def y(us):
        return top + height * (high - math.log10(us)) / (high - low)

    parts = [f'<text x="{left}" y="{top - 12}" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        us = 10 ** power
        parts.append(f'<path d="M{left} {y(us):.1f}h{width}" stroke="#dddddd"/>'
                     f'<text x="{left - 6}" y="{y(us) + 4:.1f}" text-anchor="end">{time_text(us)}</text>')
    for n in [2] + NODES[1::2]:
        parts.append(f'<path d="M{x(n):.1f} {top}v{height}" stroke="#dddddd"/>'
                     f'<text x="{x(n):.1f}" y="{top + height + 16}" text-anchor="middle">{n}</text>')
    for way, colour in COLOURS.items():
        line = " ".join(f"{x(n):.1f},{y(time_us(way, n, size, Network())):.1f}" for n in NODES)
        dash = ' stroke-dasharray="6 3"' if way == "shards, large chunks" else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
    return parts


def picture():
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 410" font-family="sans-serif" font-size="11">',
             "<title>Time of an all-reduce against the number of nodes, as the model has it</title>",
             '<rect width="830" height="410" fill="white"/>']
    parts += _panel(60, "bucket of 64 KiB, time against nodes", 64 * KIB)
    parts += _panel(470, "bucket of 25 MiB, time against nodes", 25 * MIB)
    for i, (way, colour) in enumerate(COLOURS.items()):
        parts.append(f'<path d="M{90 + 140 * i} 390h20" stroke="{colour}" stroke-width="3"/>'
                     f'<text x="{115 + 140 * i}" y="394">{way}</text>')
    return "\n".join(parts + ["</svg>"]) + "\n"


def update():
    with open(DOCUMENT, encoding="utf-8") as file:
        text = with_blocks(file.read())
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(text)
    with open(PICTURE, "w", encoding="utf-8") as file:
        file.write(picture())


# ---- the command line --------------------------------------------------------------------------------


def parse_bytes(text):
    units = {"K": KIB, "M": MIB, "G": GIB}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    if not number.isdigit() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text}: wanted is a size such as 65536, 64K, 25M or 1G")
    return int(number) * unit


def _at_least(least, kind):
    def parse(text):
        try:
            number = kind(text)
        except ValueError:
            number = -1
        if not least <= number < 1e9:
            raise argparse.ArgumentTypeError(f"{text}: wanted is a number from {least}")
        return number
    return parse


def parse_line():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    net = Network()
    option = parser.add_argument
    option("--update", action="store_true", help="write the tables into SCALE.md, and scale.svg")
    option("--points", metavar="FILE", help="calibrate and check with measured points; exit code 1: one is off")
    option("--nodes", type=_at_least(2, int), help="one case: number of nodes")
    option("--bytes", type=parse_bytes, default=25 * MIB, help="one case: size of the bucket (25M)")
    option("--rate", type=_at_least(0.001, float), default=net.rate_gbit, help="Gbit/s of a link")
    option("--alpha-us", type=_at_least(0, float), default=net.alpha_us, help="latency of a message")
    option("--message-us", type=_at_least(0, float), default=net.message_us, help="processor time of a message")
    option("--reduce-ns", type=_at_least(0, float), default=net.reduce_ns, help="processor time to add a byte")
    option("--byte-ns", type=_at_least(0, float), default=net.byte_ns, help="processor time to move a byte")
    option("--oversubscription", type=_at_least(1, float), default=net.oversubscription, help="of the core")
    option("--rack", type=_at_least(1, int), default=net.rack, help="nodes in a rack")
    option("--chunk", type=parse_bytes, default=net.chunk, help="wire.chunk_bytes (1M)")
    return parser.parse_args()


def main():
    line = parse_line()
    try:
        if line.points:
            text, n_off = check_points(read_points(line.points), line.chunk)
            print(text)
            return 1 if n_off else 0
        if line.update:
            update()
            return 0
    except (BadPoints, OSError) as error:
        print(f"scale.py: {error}", file=sys.stderr)
        return 2
    if line.nodes:
        net = Network(line.rate, line.alpha_us, line.message_us, line.reduce_ns, line.byte_ns, Network.framing,
                      line.oversubscription, line.rack, line.chunk)
        for way in WAYS:
            print(f"{way:21} {time_text(time_us(way, line.nodes, line.bytes, net))}")
        print(f"{'agreement before it':21} {time_text(agreement_us(line.nodes, net))}")
        return 0
    for name, make in BLOCKS.items():
        print(f"## {name}\n\n{make()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
