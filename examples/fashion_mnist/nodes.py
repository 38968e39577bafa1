#!/usr/bin/env python3
"""Trains on Fashion-MNIST with two ranks on each of two nodes, with and without a codec, and proves what that does.

`scripts/demo --nodes 2` calls it. The trainer is the program that `scripts/demo` runs on one node; only the socket of
each rank's daemon differs.
"""
import argparse
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True  # the source tree stays clean

import nodes_chart  # noqa: E402
import two_nodes  # noqa: E402

LIMIT, LIMIT_NAME = 10**9, "1 Gbit/s"
ONE_NODE_BOUND = 1e-5  # of the loss, as from double precision on one node: sums are rounded in another order
ONE_NODE_STEPS = 200  # later, differences grow
ACCURACY_BOUND = 0.5  # points, codec to none
ACCURACY_LEAST = 80.0  # per cent: 10 when nothing is learned
WIRE_BOUND = 0.05  # of the bytes predicted
ENOUGH_STEPS = 200  # to judge what was learned
COARSE = ["fp8", "int8", "int4"]  # so much that a loss curve shows it


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/demo --nodes 2", description="Train on two nodes, with a codec.")
    codecs = list(two_nodes.BYTES)
    parser.add_argument("--build", default="build", help="folder with the programs (default: build)")
    parser.add_argument("--nodes", type=int, choices=[2], default=2, help="2")
    parser.add_argument("--codec", choices=["all", *codecs], default="int8", help="beside none (default: int8)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the images (default: 1)")
    parser.add_argument("--epoch-steps", type=int, help="end each epoch after so many steps (default: all images)")
    parser.add_argument("--limited-steps", type=int, default=40, help="steps over the limited link, 0: none (default: 40)")
    parser.add_argument("--loopback", action="store_true", help="no network namespaces, though this is root")
    parser.add_argument("--data", help="the images (default: the package's)")
    options = parser.parse_args()
    options.codecs = codecs if options.codec == "all" else list(dict.fromkeys(["none", options.codec]))
    return options


class Progress:
    """Says which training runs: on a terminal one line that counts seconds, elsewhere a line each."""

    def __init__(self):
        self.tty, self.begin, self.what = sys.stdout.isatty(), time.monotonic(), ""

    def say(self, what):
        self.what = what
        if not self.tty:
            print(f"{time.monotonic() - self.begin:4.0f} s  {what}", flush=True)

    def tick(self):
        if self.tty:
            print(f"\r\033[K{time.monotonic() - self.begin:4.0f} s  {self.what}", end="", flush=True)

    def clear(self):
        if self.tty:
            print("\r\033[K", end="", flush=True)


class Judge:
    def __init__(self):
        self.failures, self.coloured = 0, sys.stdout.isatty()

    def __call__(self, good, words):
        name = "PASS" if good else "FAIL"
        if self.coloured:
            name = f"\033[{'32' if good else '1;31'}m{name}\033[0m"
        print(f"{name}  {words}")
        self.failures += not good


def step_ms(figures):
    return statistics.median(figures["step_us"]) / 1e3


def train_all(options, nodes, progress):
    """The figures on one node, and by codec on two; those have `limited_ms`, None where no link can be limited."""
    length = ["--epochs", str(options.epochs)]
    if options.epoch_steps:
        length += ["--epoch-steps", str(options.epoch_steps)]
    progress.say("for comparison: all 4 ranks on one node")
    alone = nodes.train("none", 1, *length, on=1, waiting=progress.tick)
    runs = {}
    for codec in options.codecs:
        progress.say(f"2 ranks on each node, codec {codec}")
        runs[codec] = nodes.train(codec, 1, *length, waiting=progress.tick)
        runs[codec]["limited_ms"] = None
    if nodes.apart and options.limited_steps:
        nodes.limit(LIMIT)
        for codec in options.codecs:
            progress.say(f"{options.limited_steps} steps over a link of {LIMIT_NAME}, codec {codec}")
            short = ["--epochs", "1", "--epoch-steps", str(options.limited_steps)]
            runs[codec]["limited_ms"] = step_ms(nodes.train(codec, 1, *short, waiting=progress.tick))
    progress.clear()
    return alone, runs


def distance(one, other, steps=None):
    """The largest difference of two loss curves, in the first steps or in all."""
    return max(abs(a - b) for a, b in zip(one["loss"][:steps], other["loss"]))


def judge_training(judge, alone, runs):
    none, count = runs["none"], sum(alone["bucket_elements"])
    steps = min(len(alone["loss"]), ONE_NODE_STEPS)
    apart = distance(none, alone, steps)
    judge(apart <= ONE_NODE_BOUND, f"loss curves on two nodes and on one: at most {apart:.1e} apart in {steps} steps "
          f"(bound {ONE_NODE_BOUND:.0e}: sums are rounded in another order)")
    for codec, figures in runs.items():
        last = figures["hashes"][-1]
        judge(two_nodes.replicas_are_equal(figures), f"{codec}: all {count} parameters of all {figures['ranks']} ranks on "
              f"{figures['nodes']} nodes equal bit for bit ({' '.join(dict.fromkeys(last))})")
        judge(figures["flipped_hash"] != last[0], f"control: one flipped bit in one parameter is seen ({figures['flipped_hash']})")
    for codec, figures in runs.items():
        if codec == "none":
            continue
        off, caught = distance(figures, none), codec in COARSE and len(figures["loss"]) >= ENOUGH_STEPS
        judge(off > (ONE_NODE_BOUND if caught else 0) and figures["hashes"][-1] != none["hashes"][-1],
              f"control: with {codec} the curve is {off:.1e} from that without" +
              (", and the bound catches it" if caught else "") + "; parameters end with other bits")


def judge_accuracy(judge, runs):
    none = two_nodes.accuracy(runs["none"])
    if len(runs["none"]["loss"]) < ENOUGH_STEPS:
        print(f"NOTE  accuracy: not judged after less than {ENOUGH_STEPS} steps")
        return
    judge(none >= ACCURACY_LEAST, f"it learns: test accuracy {none:.2f} % without a codec (at least {ACCURACY_LEAST:.0f})")
    for codec, figures in runs.items():
        mine = two_nodes.accuracy(figures)
        if codec != "none":
            judge(abs(mine - none) <= ACCURACY_BOUND,
                  f"test accuracy with {codec} {mine:.2f} %, without {none:.2f} % (at most {ACCURACY_BOUND} points apart)")


def judge_wire(judge, nodes, runs):
    where = "at the interfaces" if nodes.apart else "by the daemons"

    def is_near(figures, codec):
        return abs(figures["wire_bytes"] / two_nodes.predicted_wire_bytes(figures, codec) - 1) <= WIRE_BOUND
    for codec, figures in runs.items():
        predicted = two_nodes.predicted_wire_bytes(figures, codec)
        judge(is_near(figures, codec), f"{codec}: {figures['wire_bytes'] / 1e6:.1f} MB counted {where}, "
              f"{predicted / 1e6:.1f} MB predicted: {figures['wire_bytes'] / predicted:.3f} (at most {WIRE_BOUND * 100:.0f} % off)")
    for codec in [codec for codec in runs if codec != "none"]:
        judge(not is_near(runs["none"], codec), f"control: what goes over the wire without a codec is not what {codec} predicts")


def print_table(runs):
    none = runs["none"]
    print(f"\n{'codec':6} {'accuracy':>8} {'to none':>8} {'wire a step':>12} {'saved':>8} {'step, no limit':>15} "
          f"{'step, ' + LIMIT_NAME:>15} {'speed there':>12}")
    print(f"{'':6} {'(%)':>8} {'(points)':>8} {'(MB)':>12} {'(%)':>8} {'(ms)':>15} {'(ms)':>15} {'(to none)':>12}")
    for codec, figures in runs.items():
        limited, steps = figures["limited_ms"], len(figures["loss"])
        print(f"{codec:6} {two_nodes.accuracy(figures):8.2f} {two_nodes.accuracy(figures) - two_nodes.accuracy(none):+8.2f} "
              f"{figures['wire_bytes'] / steps / 1e6:12.2f} {100 * (1 - figures['wire_bytes'] / none['wire_bytes']):8.1f} "
              f"{step_ms(figures):15.1f} " +
              (f"{limited:15.1f} {none['limited_ms'] / limited:12.2f}" if limited else f"{'-':>15} {'-':>12}"))


def draw(options, nodes, runs):
    wire = [figures["wire_bytes"] / len(figures["loss"]) / 1e6 for figures in runs.values()]
    times = [("no limit", [step_ms(figures) for figures in runs.values()])]
    if runs["none"]["limited_ms"]:
        times.append((LIMIT_NAME, [figures["limited_ms"] for figures in runs.values()]))
    print("\n" + nodes_chart.bars_text("On the wire a step, both nodes, MB", list(zip(runs, wire))))
    for link, values in times:
        print(nodes_chart.bars_text(f"Step, link: {link}, ms", list(zip(runs, values))))
    picture = nodes_chart.Picture("Fashion-MNIST on two nodes, by codec",
                                  f"4 ranks, {len(runs['none']['loss'])} steps; {nodes.words()}")
    picture.panel("Test accuracy", list(runs), [("", [two_nodes.accuracy(figures) for figures in runs.values()])], "%")
    picture.panel("On the wire a step", list(runs), [("", wire)], "MB")
    picture.panel("Time of a step (median)", list(runs), times, "ms")
    path = os.path.join(options.build, "demo", "nodes.svg")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    picture.write(path)
    print(f"\nThe picture: {path}")


def main():
    options = arguments()
    two_nodes.end_in_order()
    progress, judge = Progress(), Judge()
    try:
        with two_nodes.Nodes(options.build, options.data, apart=False if options.loopback else None) as nodes:
            print(f"Two daemons, {nodes.words()}")
            if not nodes.apart:
                print(f"  ({nodes.why_together}; so no link can be limited, and the daemons count what they send)")
            alone, runs = train_all(options, nodes, progress)
    except two_nodes.Trouble as why:
        progress.clear()
        print(f"demo: {why}", file=sys.stderr)
        return 1
    judge_training(judge, alone, runs)
    judge_accuracy(judge, runs)
    judge_wire(judge, nodes, runs)
    print_table(runs)
    try:
        draw(options, nodes, runs)
    except OSError as why:
        print(f"demo: the picture cannot be written: {why}", file=sys.stderr)
        return 1
    return 1 if judge.failures else 0


if __name__ == "__main__":
    sys.exit(main())
