"""test_scale.py - docs/scale.py: its tables are those of SCALE.md, its counts are right, and it sees a wrong point"""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from ranks import PATIENCE_S, check, contains, equal, gwtest, main

PROGRAM = os.path.join(gwtest.ROOT, "docs", "scale.py")


def _load():
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(PROGRAM))
    spec = importlib.util.spec_from_file_location("scale", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = module
    spec.loader.exec_module(module)
    return module


scale = _load()


def _read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def _run(*arguments):
    return subprocess.run([sys.executable, "-B", PROGRAM, *arguments], capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)


# ---- the document ------------------------------------------------------------------------------------


def the_tables_of_the_document_are_those_it_prints():
    document = _read(scale.DOCUMENT)
    printed = _run()
    equal((printed.returncode, printed.stderr), (0, ""), "docs/scale.py")
    for name, block in re.findall(r"## (\w+)\n\n(.*?)\n\n(?=## |\Z)", printed.stdout, re.S):
        contains(document, f"<!-- scale.py: {name} -->\n{block}\n<!-- end of {name} -->\n")
    equal(printed.stdout.count("## "), len(scale.BLOCKS), "blocks")
    check(scale.with_blocks(document) == document, "SCALE.md is not up to date: docs/scale.py --update")
    check(scale.picture() == _read(scale.PICTURE), "scale.svg is not up to date: docs/scale.py --update")


def a_changed_table_is_seen():
    document = _read(scale.DOCUMENT)
    changed = document.replace("4.62 ms", "4.61 ms", 1)
    check(changed != document, "the figure to change is not there")
    check(scale.with_blocks(changed) == document != changed, "it is not put right")


def figures_in_the_text_are_those_of_the_model():
    def times(n, size, way="shards"):
        return scale.time_us(way, n, size, scale.Network()) / scale.time_us("halving", n, size, scale.Network())

    text = " ".join(_read(scale.DOCUMENT).split())
    small = [times(n, 65536) for n in (64, 512)]
    contains(text, f"{small[0]:.1f} times as long with shards at 64 nodes, and {small[1]:.1f} times at 512")
    large = [times(n, 25 << 20, "shards, large chunks") for n in (128, 256, 4096)]
    contains(text, f"{large[0]:.1f} times at 128 nodes, {large[1]:.1f} times at 256, and {large[2]:.1f} times at 4096")
    for n in range(2, 25):
        equal([scale.crossing(n, "shards", other) for other in ("ring", "halving")], [1024, 1024], f"crossings at {n}")
    check(scale.crossing(32, "shards", "halving") != 1024, "32 nodes cross")


# ---- the counts --------------------------------------------------------------------------------------


class _Nodes:
    """Nodes that do what the words say, and count."""

    def __init__(self, n, words):
        self.n, self.words = n, words
        self.data = [[random.randrange(1000) for _ in range(words)] for _ in range(n)]
        self.wanted = [sum(column) for column in zip(*self.data)]
        self.sent, self.messages, self.added = [0] * n, [0] * n, [0] * n

    def exchange(self, transfers):
        """(from, to, first, end, add): all at once."""
        taken = [(to, first, self.data[source][first:end], add) for source, to, first, end, add in transfers]
        for source, to, first, end, add in transfers:
            self.sent[source] += end - first
            self.messages[source] += 1
            self.added[to] += (end - first) * add
        for to, first, values, add in taken:
            for i, value in enumerate(values):
                self.data[to][first + i] = self.data[to][first + i] + value if add else value

    def agree(self, name, steps):
        n, net = self.n, scale.Network()
        equal(self.data, [self.wanted] * n, f"results of {name}")
        load = scale.WAYS[name](n, self.words, net)
        equal((load.steps, load.messages, load.sent, load.reduced),
              (steps, max(self.messages), max(self.sent), max(self.added)), f"counts of {name}, {n} nodes")


def server_does_what_is_counted():
    nodes = _Nodes(5, 40)
    nodes.exchange([(i, 0, 0, 40, True) for i in range(1, 5)])
    nodes.exchange([(0, i, 0, 40, False) for i in range(1, 5)])
    nodes.agree("server", 2)


def ring_does_what_is_counted():
    n, part = 6, 10
    nodes = _Nodes(n, n * part)
    for phase, add in ((0, True), (1, False)):
        for step in range(n - 1):
            blocks = [(i, (i + 1) % n, (i - step + phase) % n * part, add) for i in range(n)]
            nodes.exchange([(i, to, first, first + part, add) for i, to, first, add in blocks])
    nodes.agree("ring", 2 * (n - 1))


def _halve(nodes, n):
    """Halves with the nearest first, then doubles the way back."""
    spans, steps = [[(0, nodes.words)] for _ in range(n)], 0
    for k in range(n.bit_length() - 1):
        transfers = []
        for i in range(n):
            first, end = spans[i][-1]
            middle = (first + end) // 2
            keep, give = ((first, middle), (middle, end)) if not i >> k & 1 else ((middle, end), (first, middle))
            transfers.append((i, i ^ 1 << k, *give, True))
            spans[i].append(keep)
        nodes.exchange(transfers)
        steps += 1
    for k in reversed(range(n.bit_length() - 1)):
        nodes.exchange([(i, i ^ 1 << k, *spans[i][k + 1], False) for i in range(n)])
        steps += 1
    return steps


def halving_does_what_is_counted():
    nodes = _Nodes(8, 64)
    nodes.agree("halving", _halve(nodes, 8))
    nodes = _Nodes(6, 64)  # two over a power of two
    nodes.exchange([(4, 0, 0, 64, True), (5, 1, 0, 64, True)])
    steps = _halve(nodes, 4)
    nodes.exchange([(0, 4, 0, 64, False), (1, 5, 0, 64, False)])
    nodes.agree("halving", steps + 2)


def shards_do_what_is_counted():
    n, part = 7, 6
    nodes = _Nodes(n, n * part)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    nodes.exchange([(i, j, j * part, (j + 1) * part, True) for i, j in pairs])
    nodes.exchange([(i, j, i * part, (i + 1) * part, False) for i, j in pairs])
    nodes.agree("shards", 2)


def more_of_everything_takes_longer():
    net = scale.Network()
    for way in scale.WAYS:
        for n in (3, 64, 1000):
            base = scale.time_us(way, n, 1 << 22, net)
            for more in (dict(alpha_us=50), dict(message_us=5), dict(reduce_ns=5), dict(byte_ns=5), dict(rate_gbit=1)):
                worse = scale.dataclasses.replace(net, **more)
                check(scale.time_us(way, n, 1 << 22, worse) > base, f"{way} {n} {more}")
            check(base >= net.wire_us(2 * (1 << 22) * (n - 1) / n) * (way != "server"), f"{way} beats the least bytes")


# ---- points ------------------------------------------------------------------------------------------


def _points(change=None, noise=0.03, lanes=1, alone=True):
    """As bench-nodes would measure them, if nodes were as the model has them, but for noise; `alone`: each node has a
    machine, else all are on one."""
    shape = random.Random(7)
    net = scale.Network(alpha_us=40, message_us=6, byte_ns=0.35, reduce_ns=0, framing=1.06, lane_gain=0.6)
    items = []
    for rate in (0, 1e9):
        for nodes in (2, 4):
            for size in (4096, 65536, 1 << 20, 25 << 20, 100 << 20):
                us = scale.predict_us(scale.Point(nodes, size, rate / 1e9, 1, 0, nodes if alone else 1, lanes), net)
                items.append({"op": "all_reduce", "codec": "none", "nodes": nodes, "bytes": size, "rate_bps": rate,
                              "gradwire_us": us * shape.uniform(1 - noise, 1 + noise),
                              "wire_bytes": 1.06 * 2 * size * (nodes - 1) / nodes,
                              **({"machines": nodes, "lanes": lanes} if alone else {})})
    items.append({**items[0], "codec": "int8", "gradwire_us": 1})  # passed over
    if change is not None:
        items[change]["gradwire_us"] *= 1.5
    return items


def _check(items):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(items if isinstance(items, str) else json.dumps(items))
        file.flush()
        return _run("--points", file.name)


def points_of_the_model_are_found_again():
    for alone in (True, False):
        result = _check(_points(noise=0, alone=alone))
        equal((result.returncode, result.stderr), (0, ""), "without noise")
        figures = re.search(r"latency (\S+) us, (\S+) us .* and (\S+) ns .*end, (\S+) ", result.stdout).groups()
        for figure, wanted in zip(figures, (40, 6, 0.35, 1.06)):
            check(abs(float(figure) / wanted - 1) < 0.05, f"{figures}")
    result = _check(_points())
    equal((result.returncode, result.stderr), (0, ""), "with 3% noise")
    contains(result.stdout, "10 points calibrate, 10 are checked; 0 of all")


def what_a_lane_adds_is_found_again():
    result = _check(_points(noise=0, lanes=4))
    equal((result.returncode, result.stderr), (0, ""), "with four lanes")
    gain = float(re.search(r"each further lane adds (\S+) of the first", result.stdout)[1])
    check(abs(gain - 0.6) < 0.03, f"each adds {gain}")
    one, four, small = (scale.time_us("shards", 2, size, scale.Network(0, byte_ns=1, lanes=lanes))
                        for size, lanes in ((100 << 20, 1), (100 << 20, 4), (4096, 4)))
    check(3.8 < one / four < 4, f"{one} and {four} us")
    equal(small, scale.time_us("shards", 2, 4096, scale.Network(0, byte_ns=1)), "a small bucket, which one lane carries")


def a_wrong_point_is_seen():
    for place in (5, 8):  # one is checked, one calibrates
        result = _check(_points(change=place))
        rows = [line for line in result.stdout.splitlines() if line.startswith("| ")][1:]
        equal([i for i, row in enumerate(rows) if "**off**" in row], [place], "points that are off")
        contains(rows[place], "checked" if place % 2 else "calibrates")
        equal(result.returncode, 1, "exit code")


def points_that_cannot_be_are_refused():
    good = _points()
    for bad, words in (("[", "Expecting"), ("{}", "no list"), ("[1]", "no list"), ([], "6 are needed"),
                       (good[:5], "6 are needed"), (good + [{"nodes": 2}], "point 22"),
                       ([{**item, "nodes": 1} for item in good], "cannot be"),
                       ([{**item, "gradwire_us": 0} for item in good], "cannot be"),
                       ([{**item, "machines": 0} for item in good], "cannot be"),
                       ([{**item, "lanes": 0} for item in good], "cannot be"),
                       ([{**item, "wire_bytes": 9 * item["wire_bytes"]} for item in good], "are 9.54 times")):
        result = _check(bad)
        equal((result.returncode, result.stdout), (2, ""), f"exit code and output of {str(bad)[:50]}")
        contains(result.stderr, "scale.py: ", words)
    equal(_run("--points", "/no/such/file").returncode, 2, "exit code without a file")


def one_case_and_wrong_usage():
    result = _run("--nodes=64", "--bytes=25M", "--rate=100")
    equal(result.returncode, 0, "exit code")
    contains(result.stdout, "halving               4.45 ms", "agreement before it   68 us")
    for words in (("--nodes=1",), ("--bytes=0",), ("--bytes=x",), ("--rate=0",), ("--rack=nan",)):
        equal(_run(*words).returncode, 2, f"exit code of {words}")


if __name__ == "__main__":
    main(globals())
