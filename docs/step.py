#!/usr/bin/env python3
"""step.py - draws operations of a trace: a row a rank, then what each node did for them

    gwctl trace --out trace.json; docs/step.py trace.json >step.svg     the last three operations of the newest group
    docs/step.py trace.json --operations 5-8 >step.svg                  others
    docs/step.py --record build                                         makes step.svg, the picture in README.md

The last records a trace of its own: two daemons of the build folder on the loopback, two ranks on each, which average
three buckets a step with codec int8. Rank 2 is late with the second bucket. That needs NumPy, the rest only the standard
library.
"""
import argparse
import html
import json
import os
import re
import subprocess
import sys
import tempfile
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
PICTURE = os.path.join(FOLDER, "step.svg")
LABELS, WIDTH, LINE, GAP, TOP = 150, 850, 16, 6, 26  # pixels
COLOURS = {"wait for ranks": "#e6a04b", "wait for inputs": "#f3d9a4", "wait for nodes": "#e9c46a", "exchange": "#4c8fbd",
           "reduce": "#5aa469", "done": "#333333", "under way": "#bbbbbb", "copy_in": "#8d6fb8", "encode": "#c26a8b",
           "sent": "#3c6e91", "received": "#7fb3d5", "decode": "#d993ae", "copy_out": "#b39ddb"}
LEGEND = {"copy_in": "copy from devices", "copy_out": "copy to devices"}


# ---- reading -----------------------------------------------------------------------------------------


def chosen(trace, operations):
    """Bars of the newest group of each node, of these operations (None: the last three), by row."""
    bars = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in trace["traceEvents"]
             if e["name"] == "thread_sort_index"}
    ops = [e for e in bars if e["cat"] == "operation"]
    if not ops:
        sys.exit("step.py: there is no operation in this trace")
    last = max(e["args"]["sequence"] for e in ops)
    first, last = operations or (last - 2, last)
    rows = {}
    for bar in bars:
        owner = bar if "args" in bar else next(o for o in ops if (o["pid"], o["tid"]) == (bar["pid"], bar["tid"]) and
                                               o["ts"] <= bar["ts"] <= o["ts"] + o["dur"])
        if first <= owner["args"]["sequence"] <= last:
            rows.setdefault((bar["pid"], bar["tid"]), []).append(bar)
    keys = sorted(rows, key=lambda key: (not names[key].startswith("rank"), 0 if names[key].startswith("rank") else key[0],
                                         order[key]))
    return [(key[0], names[key], rows[key]) for key in keys]


def group_names(trace):
    return {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}


# ---- drawing -----------------------------------------------------------------------------------------


def _text(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(words)}</text>'


def _bar(x, y, width, colour, title):
    return (f'<rect x="{x:.2f}" y="{y}" width="{max(width, 0.6):.2f}" height="{LINE - 3}" fill="{colour}">'
            f'<title>{html.escape(title)}</title></rect>')


def _axis(begin, end, scale, bottom):
    """In ms, about ten lines."""
    span_ms = (end - begin) / 1000
    step = next(s * f for f in (0.01, 0.1, 1, 10, 100, 1000) for s in (1, 2, 5) if span_ms / (s * f) <= 12)
    for n in range(int(span_ms / step) + 1):
        x = LABELS + n * step * 1000 * scale
        yield f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        yield _text(x, TOP - 8, f"{n * step:g} ms", 'text-anchor="middle" fill="#555555"')


def _row(name, bars, y, begin, scale):
    if not name.endswith(")"):
        yield _text(LABELS - 8, y + LINE - 6, name, 'text-anchor="end"')
    for bar in bars:
        x, width = LABELS + (bar["ts"] - begin) * scale, bar["dur"] * scale
        if bar["cat"] == "operation":
            continue
        colour = COLOURS[bar["name"] if bar["cat"] == "stage" else bar["cat"]]
        what = bar["name"] if bar["cat"] == "stage" else f"{bar['cat']} {bar['name']}"
        yield _bar(x, y, width, colour, f"{what}: {bar['dur']:.1f} us")
    for bar in bars:
        if bar["cat"] == "operation" and bar["dur"] * scale > 7 * len(bar["name"]):
            yield _text(LABELS + (bar["ts"] - begin) * scale + 3, y + LINE - 6, bar["name"], 'font-size="10"')


def _legend(rows, y):
    used = {bar["name"] if bar["cat"] == "stage" else bar["cat"] for _, _, bars in rows for bar in bars}
    x = LABELS
    for name, colour in COLOURS.items():
        if name not in used or name == "done":
            continue
        words = LEGEND.get(name, name)
        if x + 22 + 6.2 * len(words) > WIDTH:
            x, y = LABELS, y + LINE
        yield _bar(x, y, 12, colour, name) + _text(x + 16, y + LINE - 6, words)
        x += 30 + 6.2 * len(words)


def picture(trace, operations=None):
    """The SVG."""
    rows, groups = chosen(trace, operations), group_names(trace)
    begin = min(bar["ts"] for _, _, bars in rows for bar in bars)
    end = max(bar["ts"] + bar["dur"] for _, _, bars in rows for bar in bars)
    scale, y, parts, last = (WIDTH - LABELS - 20) / (end - begin), TOP, [], None
    for pid, name, bars in rows:
        header = None if name.startswith("rank") else groups[pid]
        if header != last:
            y += GAP + LINE
            parts.append(_text(4, y - 5, header, 'font-weight="bold"'))
            last = header
        elif not name.endswith(")"):
            y += GAP
        parts += _row(name, bars, y, begin, scale)
        y += LINE
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 50}" font-family="sans-serif" '
            'font-size="11"><rect width="100%" height="100%" fill="white"/>')
    return "\n".join([head, *_axis(begin, end, scale, y), *parts, *_legend(rows, y + 14), "</svg>"]) + "\n"


# ---- recording ---------------------------------------------------------------------------------------

STEPS, RANKS = 6, 4
BUCKETS = {"head": 200_000, "body": 800_000, "stem": 300_000}  # elements, in the order of a backward pass
COMPUTE_S, LATE_S = 0.004, 0.008


def _train(rank, socket, build, exchange_id):
    """A trainer that computes nothing, and waits as long as that would take."""
    os.environ["GRADWIRE_LIBRARY"] = os.path.join(build, "libgradwire.so.0")
    sys.path.insert(0, os.path.join(FOLDER, "..", "python"))
    import gradwire  # pylint: disable=import-outside-toplevel
    import numpy  # pylint: disable=import-outside-toplevel

    context = gradwire.Context(socket)
    group = context.group(exchange_id(context), RANKS, rank, codec="int8")
    gradients = {name: numpy.full(count, rank + 1.0, dtype="float32") for name, count in BUCKETS.items()}
    for _ in range(STEPS):
        work = []
        for name, gradient in gradients.items():
            time.sleep(COMPUTE_S + (LATE_S if (rank, name) == (2, "body") else 0))
            work.append(group.all_reduce(gradient, "avg", name=name, async_op=True))
        for one in work:
            one.wait()
    group.close()


def _fork(rank, *arguments):
    """Starts a trainer, which comes back in no case."""
    child = os.fork()
    if child == 0:
        try:
            _train(rank, *arguments)
            os._exit(0)
        except BaseException as error:  # pylint: disable=broad-exception-caught
            print(f"step.py: rank {rank}: {error}", file=sys.stderr)
        finally:
            os._exit(1)
    return child


def _exchange(folder):
    """The id goes through a file."""
    path = os.path.join(folder, "id")

    def exchange(context, make=False):
        if make:
            with open(path + ".new", "wb") as file:
                file.write(context.unique_id())
            os.rename(path + ".new", path)
        while not os.path.exists(path):
            time.sleep(0.001)
        with open(path, "rb") as file:
            return file.read()
    return exchange


def _start(build, folder, node):
    argv = [f"{build}/gradwired", "--config=/dev/null", f"--socket-dir={folder}/{node}", "--wire.port=0",
            f"--wire.listen=127.0.0.{2 + node}", "--wire.transports=tcp", "--wire.devices=lo"]
    os.mkdir(f"{folder}/{node}")
    with open(f"{folder}/{node}/log", "wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    while not os.path.exists(f"{folder}/{node}/client.sock") and process.poll() is None:
        time.sleep(0.01)
    return process


def record(build):
    """The trace of a training on two nodes."""
    with tempfile.TemporaryDirectory() as folder:
        exchange, children = _exchange(folder), []
        daemons = [_start(build, folder, node) for node in range(2)]
        try:
            for rank in range(RANKS):
                children.append(_fork(rank, f"{folder}/{rank // 2}/client.sock", build,
                                      lambda context, rank=rank: exchange(context, rank == 0)))
            codes = [os.waitpid(child, 0)[1] for child in children]
            if any(codes):
                sys.exit(f"step.py: the ranks ended with {codes}")
            files = [f"{folder}/{node}/trace.json" for node in range(2)]
            for node, path in enumerate(files):
                subprocess.run([f"{build}/gwctl", f"--socket={folder}/{node}/admin.sock", "trace", f"--out={path}"],
                               check=True, stdout=subprocess.DEVNULL)
            return json.loads(subprocess.run([f"{build}/gwctl", "trace", "--merge", *files], check=True,
                                             stdout=subprocess.PIPE).stdout)
        finally:
            for daemon in daemons:
                daemon.terminate()
                daemon.wait()


# ---- the command line --------------------------------------------------------------------------------


def _range(text):
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if not match or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"{text}: wanted is FIRST-LAST")
    return int(match[1]), int(match[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("trace", nargs="?", help="a file of gwctl trace")
    parser.add_argument("--operations", type=_range, help="FIRST-LAST, by sequence number")
    parser.add_argument("--record", metavar="BUILD", help="make step.svg of a trace of its own, with this build folder")
    line = parser.parse_args()
    if (line.trace is None) == (line.record is None):
        parser.error("wanted is a file, or --record")
    if line.record:
        made = picture(record(os.path.abspath(line.record)))
        with open(PICTURE, "w", encoding="utf-8") as file:
            file.write(made)
        return 0
    with open(line.trace, encoding="utf-8") as file:
        sys.stdout.write(picture(json.load(file), line.operations))
    return 0


if __name__ == "__main__":
    sys.exit(main())
