"""What `make bench-host` prints and writes: the table in nccl-tests' columns, the targets, the JSON."""
import json
import math
import os

MIB = 1 << 20
REGISTERED = "all_reduce_registered"
DOUBT_LEAST = MIB

# Must be reached on 2 cores: what, at which sizes, for which ranks, how the figure compares with the bound.
TARGETS = [
    # label, operation, sizes, ranks, figure, comparison, bound
    ("speed, of the limit's", "all_reduce", [4 * MIB, 16 * MIB, 64 * MIB], [2, 4], "of_limit", ">=", 0.8),
    ("times as fast as Open MPI", "all_reduce", [4 * MIB, 16 * MIB], [2, 4], "vs_openmpi", ">=", 2.7),
    ("times as fast as Open MPI", "all_reduce", [64 * MIB], [2, 4], "vs_openmpi", ">=", 5.0),
    ("times as fast as Gloo", "all_reduce", [25 * MIB], [2, 4], "vs_gloo", ">=", 8.0),
    ("us, median", "all_reduce", [4096], [2], "us", "<=", 30.0),
    ("times as fast as Open MPI", "all_reduce", [65536], [4], "vs_openmpi", ">", 1.0),
    ("times Open MPI's time, registered memory", REGISTERED, [16 * MIB], [2], "openmpi_ratio", "<=", 1.3),
    ("times Open MPI's time, registered memory", REGISTERED, [64 * MIB], [2], "openmpi_ratio", "<", 1.0),
]


def median(values):
    """The middle value; of an even number of values the mean of the middle two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def quartile(values):
    """The lower quartile: for choosing between settings by a few measurements, it suffers less from other work."""
    return sorted(values)[len(values) // 4]


def p99(values):
    """The nearest-rank 99th percentile: of less than 100 values the largest."""
    ordered = sorted(values)
    return ordered[math.ceil(0.99 * len(ordered)) - 1]


def size_text(size):
    return f"{size // MIB} MiB" if size % MIB == 0 else f"{size // 1024} KiB" if size % 1024 == 0 else f"{size} B"


class Row:
    """All that was measured for one operation, size and number of ranks. Times in us, None if not measured."""

    def __init__(self, op, size, ranks):
        self.op, self.bytes, self.ranks = op, size, ranks
        self.gradwire_us = self.gradwire_p99_us = self.openmpi_us = self.gloo_us = self.limit_us = None
        self.awake_us = self.copy_us = None
        self.openmpi_setting = ""
        self.wrong = None

    def json(self):
        keys = ["gradwire_us", "gradwire_p99_us", "openmpi_us", "gloo_us", "limit_us"]
        values = {key: getattr(self, key) for key in keys}
        return {"op": self.op, "bytes": self.bytes, "ranks": self.ranks,
                **{key: None if value is None else round(value, 3) for key, value in values.items()}}

    def figure(self, name):
        """A figure that TARGETS names, or None."""
        over = {"of_limit": (self.limit_us, self.gradwire_us), "of_awake": (self.awake_us, self.gradwire_us),
                "vs_openmpi": (self.openmpi_us, self.gradwire_us),
                "vs_gloo": (self.gloo_us, self.gradwire_us), "openmpi_ratio": (self.gradwire_us, self.openmpi_us),
                "limit_vs_openmpi": (self.openmpi_us, self.limit_us), "us": (self.gradwire_us, 1.0)}[name]
        return None if None in over else over[0] / over[1]


# Title, unit, width and decimals of each column; row_text gives the values in this order.
COLUMNS = [
    ("size", "(B)", 10, 0), ("count", "(elements)", 10, 0), ("type", "", 6, 0), ("redop", "", 5, 0),
    ("ranks", "", 5, 0),
    ("time", "(us)", 9, 1), ("p99", "(us)", 9, 1), ("algbw", "(GB/s)", 6, 2), ("busbw", "(GB/s)", 6, 2),
    ("#wrong", "", 6, 0),
    ("Open MPI", "(us)", 9, 1), ("Gloo", "(us)", 9, 1), ("limit", "(us)", 8, 1), ("awake", "(us)", 8, 1),
    ("copy", "(GB/s)", 6, 1),
    ("/MPI", "(times)", 7, 2), ("/Gloo", "(times)", 7, 2), ("/limit", "(speed)", 7, 2), ("memory", "", 10, 0)]


def header_text(columns):
    titles = " ".join(f"{title:>{width}}" for title, _, width, _ in columns)
    units = " ".join(f"{unit:>{width}}" for _, unit, width, _ in columns)
    return f"#{titles}\n#{units}"


def cells_text(values, columns):
    return " " + " ".join(cell(value, column[2], column[3]) for value, column in zip(values, columns))


def cell(value, width, decimals):
    text = "-" if value is None else value if isinstance(value, str) else f"{value:.{decimals}f}"
    return f"{text:>{width}}"


def row_text(row):
    def bandwidth(time_us):
        return None if time_us is None else row.bytes / time_us / 1e3

    algbw = bandwidth(row.gradwire_us)
    busbw = None if algbw is None else algbw * 2 * (row.ranks - 1) / row.ranks
    values = [row.bytes, row.bytes // 4, "float", "sum", row.ranks, row.gradwire_us, row.gradwire_p99_us, algbw, busbw,
              row.wrong, row.openmpi_us, row.gloo_us, row.limit_us, row.awake_us,
              bandwidth(row.copy_us), row.figure("vs_openmpi"),
              row.figure("vs_gloo"), row.figure("of_limit"), "registered" if row.op == REGISTERED else "shared"]
    return cells_text(values, COLUMNS)


def settings_text(rows):
    """Which of Open MPI's settings was the fastest, by size."""
    lines = [f"#   {size_text(row.bytes):>7}, {row.ranks} ranks: {row.openmpi_setting}" for row in rows
             if row.openmpi_setting and row.op != REGISTERED]
    title = ["# Open MPI's fastest settings (collective algorithm, single copy mechanism):"]
    return "\n".join(title + lines) if lines else ""


def met(value, comparison, bound):
    return {">=": value >= bound, "<=": value <= bound, ">": value > bound, "<": value < bound}[comparison]


def doubtful(row):
    """Whether gradwire seems faster than the machine allows: other work disturbed the limit's turns."""
    of_awake = row.figure("of_awake")
    return of_awake is not None and row.bytes >= DOUBT_LEAST and of_awake > 1.1


def shown(value, comparison):
    """Two decimals, rounded against us: what looks met is met."""
    scaled = value * 100
    return (math.floor(scaled) if comparison.startswith(">") else math.ceil(scaled)) / 100


def remark(row, figure, bound):
    """What to know about a target that was missed."""
    limit = row.figure("limit_vs_openmpi")
    if figure == "vs_openmpi" and limit is not None and limit < bound:
        return f" (the limit itself: {shown(limit, '>='):.2f})"
    return ""


def targets_text(rows):
    """A line for each target that was measured, and how many were met."""
    index = {(row.op, row.bytes, row.ranks): row for row in rows}
    lines, n_met = [], 0
    for label, op, sizes, ranks, figure, comparison, bound in TARGETS:
        for n_ranks in ranks:
            for size in sizes:
                row = index.get((op, size, n_ranks))
                value = row.figure(figure) if row else None
                if value is None:
                    continue
                doubt = figure == "of_limit" and doubtful(row)
                good = met(value, comparison, bound) and not doubt
                n_met += good
                verdict = "met   " if good else "DOUBT " if doubt else "MISSED"
                note = remark(row, figure, bound) if verdict == "MISSED" else ""
                if figure == "of_limit" and row.figure("of_awake") is not None:
                    note = f" ({shown(row.figure('of_awake'), '>='):.2f} of the same by threads that never sleep)"
                lines.append(f"  {size_text(size):>7}  {n_ranks} ranks  {shown(value, comparison):10.2f}  "
                             f"{comparison:>2} {bound:<5} {verdict}  {label}{note}")
    if not lines:
        return "No target was measured."
    last = f"{n_met} of {len(lines)} met"
    if any(" DOUBT " in line for line in lines):
        last += "; DOUBT: faster than the limit, so other work disturbed the limit's turns"
    return "\n".join(["Targets (2 cores, medians):"] + lines + [last])


def write_json(path, rows):
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join("  " + json.dumps(row.json()) for row in rows) + "\n]\n")
