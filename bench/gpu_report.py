"""What `make bench-gpu` prints and writes: the tables in nccl-tests' columns, the compute that is kept, the targets."""
import json
import math
import os

import report

KIB, MIB = 1 << 10, 1 << 20
FLOW_BYTES = 64 * MIB
PEERS = {"gradwire": "gradwire", "nccl": "NCCL", "nccl-host": "NCCL, P2P off"}


def p95(values):
    """The nearest-rank 95th percentile."""
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


class Row:
    """One size, idle or with each trainer computing. Times of each peer in us, one operation at a time; GB/s back to
    back; None where not measured."""

    def __init__(self, load, size, ranks):
        self.load, self.bytes, self.ranks = load, size, ranks
        self.us = dict.fromkeys(PEERS)
        self.p95_us = dict.fromkeys(PEERS)
        self.flow_gbps = dict.fromkeys(PEERS)
        self.wrong = dict.fromkeys(PEERS)
        self.cores = None  # of the daemon, while operations came one at a time

    def algbw(self, peer="gradwire"):
        return None if self.us[peer] is None else self.bytes / self.us[peer] / 1e3

    def times_as_fast(self, peer):
        """As the peer, one operation at a time."""
        return None if None in (self.us[peer], self.us["gradwire"]) else self.us[peer] / self.us["gradwire"]

    def json(self):
        return {"load": self.load, "bytes": self.bytes, "count": self.bytes // 4, "type": "float", "redop": "avg",
                "ranks": self.ranks, "us": self.us, "p95_us": self.p95_us, "flow_gbps": self.flow_gbps,
                "wrong": self.wrong, "daemon_cores": self.cores}


class Kept:
    """A trainer's kernels a second: alone, with buckets back to back, alone again, in one life of its processes."""

    def __init__(self, load, peer, devices):
        self.load, self.peer, self.devices = load, peer, devices
        self.limit_gbps = None  # the exchange was slowed down to this
        self.before, self.loaded, self.after = [], [], []  # by rank
        self.gbps = self.idle_gbps = self.cores = None

    def by_device(self, rates):
        """Ranks may share a GPU: their kernels count together."""
        sums = dict.fromkeys(self.devices, 0.0)
        for device, rate in zip(self.devices, rates):
            sums[device] += rate
        return sums

    def part(self):
        """The part of its compute that the GPU which keeps least keeps."""
        before, loaded, after = map(self.by_device, (self.before, self.loaded, self.after))
        parts = [loaded[d] / ((before[d] + after[d]) / 2) for d in loaded if before[d] + after[d] > 0]
        return min(parts) if parts else None

    def speed(self):
        """Of the buckets, as a part of that without load."""
        return None if None in (self.gbps, self.idle_gbps) or self.idle_gbps <= 0 else self.gbps / self.idle_gbps

    def json(self):
        return {"load": self.load, "peer": self.peer, "limit_gbps": self.limit_gbps, "kernels_per_s_before": self.before,
                "kernels_per_s_loaded": self.loaded, "kernels_per_s_after": self.after, "kept": self.part(),
                "gbps": self.gbps, "idle_gbps": self.idle_gbps, "daemon_cores": self.cores}


class Result:
    """All that one run has measured."""

    def __init__(self):
        self.devices = []         # what gpu_limit says of each
        self.placement = []       # the device of each rank
        self.about = {}           # what rank 0 of each peer says of itself
        self.absent = {}          # peer: why it is not there
        self.limits = []          # answers of gpu_limit
        self.rows, self.kept = [], []
        self.counters = []        # {"peer" or "limit", "bytes", "nvlink_kib", "pcie_tx", "pcie_rx"}
        self.notes = []

    def row(self, load, size):
        return next((row for row in self.rows if (row.load, row.bytes) == (load, size)), None)

    def find_kept(self, load, peer, limited=False):
        return next((k for k in self.kept if (k.load, k.peer, k.limit_gbps is not None) == (load, peer, limited)), None)

    def ranks_a_device(self):
        return max((self.placement.count(device) for device in self.placement), default=1)

    def limit_gbps(self):
        """What an exchange through the host cannot pass: the ranks of a GPU share its link."""
        if not self.limits:
            return None
        return report.median([limit["both_gbps"] for limit in self.limits]) / self.ranks_a_device()

    def n_wrong(self, peer="gradwire"):
        return sum(row.wrong[peer] or 0 for row in self.rows)

    def json(self):
        return {"devices": self.devices, "placement": self.placement, "about": self.about, "absent": self.absent,
                "limit_gbps": self.limit_gbps(), "limits": self.limits, "rows": [row.json() for row in self.rows],
                "compute": [kept.json() for kept in self.kept], "counters": self.counters, "notes": self.notes,
                "targets": [target.json() for target in targets(self)]}


# ---- tables ---------------------------------------------------------------------------------------

# Title, unit, width and decimals of each column; row_text gives the values in this order.
COLUMNS = [
    ("size", "(B)", 10, 0), ("count", "(elements)", 10, 0), ("type", "", 6, 0), ("redop", "", 5, 0),
    ("time", "(us)", 9, 1), ("p95", "(us)", 9, 1), ("algbw", "(GB/s)", 6, 2), ("busbw", "(GB/s)", 6, 2),
    ("#wrong", "", 6, 0), ("flow", "(GB/s)", 6, 2), ("cores", "", 5, 2),
    ("NCCL", "(us)", 9, 1), ("ratio", "(times)", 7, 2), ("flow", "(GB/s)", 6, 1),
    ("P2P off", "(us)", 9, 1), ("ratio", "(times)", 7, 2), ("flow", "(GB/s)", 6, 1)]


def row_text(row):
    algbw = row.algbw()
    busbw = None if algbw is None else algbw * 2 * (row.ranks - 1) / row.ranks
    values = [row.bytes, row.bytes // 4, "float", "avg", row.us["gradwire"], row.p95_us["gradwire"], algbw, busbw,
              row.wrong["gradwire"], row.flow_gbps["gradwire"], row.cores]
    for peer in ("nccl", "nccl-host"):
        values += [row.us[peer], row.times_as_fast(peer), row.flow_gbps[peer]]
    return report.cells_text(values, COLUMNS)


KEPT_COLUMNS = [
    ("trainer", "", 8, 0), ("exchange", "", 14, 0), ("limited", "(GB/s)", 8, 1), ("alone", "(kern/s)", 9, 1),
    ("loaded", "(kern/s)", 9, 1), ("alone", "(kern/s)", 9, 1), ("kept", "(part)", 7, 3), ("buckets", "(GB/s)", 8, 2),
    ("idle", "(GB/s)", 8, 2), ("speed", "(part)", 7, 3), ("cores", "", 6, 2)]


def kept_text(kept):
    values = [kept.load, PEERS[kept.peer], kept.limit_gbps, sum(kept.before), sum(kept.loaded), sum(kept.after),
              kept.part(), kept.gbps, kept.idle_gbps, kept.speed(), kept.cores]
    return report.cells_text(values, KEPT_COLUMNS)


def limit_text(result):
    if not result.limits:
        return "# limit: not measured"
    median = {key: report.median([limit[key] for limit in result.limits]) for key in result.limits[0]}
    share = result.ranks_a_device()
    text = f"# limit: copies of all GPUs at once, GB/s each: {median['both_gbps']:.1f} both ways, " \
           f"{median['out_gbps']:.1f} out, {median['in_gbps']:.1f} in"
    return text + (f"; {share} ranks share a GPU's link: {median['both_gbps'] / share:.1f} a rank" if share > 1 else "")


def counter_text(counted):
    def shown(value, unit_bytes):
        return "not readable here" if value is None else f"{value * unit_bytes / MIB:.1f} MiB"
    what = f"{counted['bytes'] / MIB:.0f} MiB"
    what = f"{PEERS[counted['peer']]} moved {what} of buckets a rank" if counted["peer"] in PEERS else f"{what} of copies"
    return f"# counters: {what}; " \
           f"NVLink {shown(counted['nvlink_kib'], KIB)}, PCIe sent {shown(counted['pcie_tx'], 1)}, " \
           f"received {shown(counted['pcie_rx'], 1)} (all GPUs)"


# ---- targets --------------------------------------------------------------------------------------

class Target:
    """One line of the list of what must be reached. `value` None: it was not measured, and `note` says why."""

    def __init__(self, label, value, comparison, bound, note=""):
        self.label, self.value, self.comparison, self.bound, self.note = label, value, comparison, bound, note

    def verdict(self):
        if self.value is None:
            return "not measured"
        return "met" if report.met(self.value, self.comparison, self.bound) else "MISSED"

    def text(self):
        value = "-" if self.value is None else f"{shown(self.value, self.comparison):.3f}"
        note = f" ({self.note})" if self.note else ""
        return f"  {value:>10}  {self.comparison:>2} {self.bound:<6} {self.verdict():<12}  {self.label}{note}"

    def json(self):
        return {"label": self.label, "value": self.value, "comparison": self.comparison, "bound": self.bound,
                "verdict": self.verdict(), "note": self.note}


def shown(value, comparison):
    """Three decimals, rounded against us: what looks met is met."""
    scaled = round(value * 1000, 6)
    return (math.floor(scaled) if comparison.startswith(">") else math.ceil(scaled)) / 1000


def compute_targets(result):
    kept = result.find_kept("compute", "gradwire")
    if kept is None:
        return [Target("compute kept, compute-bound trainer", None, ">=", 0.98)]
    note = f"kernels/s {sum(kept.before):.1f} alone, {sum(kept.loaded):.1f} loaded, {sum(kept.after):.1f} alone"
    if kept.cores is not None:
        note += f"; {kept.cores:.2f} cores of the daemon"
    others = [result.find_kept("compute", peer) for peer in ("nccl", "nccl-host")]
    note += "".join(f"; {PEERS[other.peer]} {other.part():.3f}" for other in others if other and other.part())
    speed_note = "" if kept.speed() is None else f"{kept.gbps:.2f} of {kept.idle_gbps:.2f} GB/s"
    return [Target("compute kept, compute-bound trainer", kept.part(), ">=", 0.98, note),
            Target("speed of its 64 MiB buckets meanwhile, of that when idle", kept.speed(), ">=", 0.9, speed_note)]


def memory_target(result, peer):
    """Whichever is the faster was measured again at the other's rate."""
    label = f"compute kept, memory-bound trainer, of that with {PEERS[peer]} at the same bytes a second"
    for ours_limited in (False, True):
        ours = result.find_kept("memory", "gradwire", ours_limited)
        theirs = result.find_kept("memory", peer, not ours_limited)
        if ours and theirs and ours.part() and theirs.part():
            note = f"{ours.part():.4f} at {ours.gbps:.2f} GB/s, {PEERS[peer]} {theirs.part():.4f} at {theirs.gbps:.2f} GB/s"
            return Target(label, ours.part() / theirs.part(), ">=", 1.0, note)
    return Target(label, None, ">=", 1.0, result.absent.get(peer, ""))


def latency_targets(result):
    found = []
    for load, words, bound in (("none", "idle", 80.0), ("compute", "under load", 150.0)):
        for size in (4 * KIB, 64 * KIB):
            row = result.row(load, size)
            found.append(Target(f"us, median, {report.size_text(size)}, {words}", row.us["gradwire"] if row else None,
                                "<=", bound))
    return found


def speed_targets(result):
    labels = ["GB/s, 64 MiB, idle, one at a time", "times NCCL's time with P2P off, 25 MiB, idle"]
    if len(result.devices) < 2:
        return [Target(labels[0], None, ">=", 30.0, "it takes two GPUs"), Target(labels[1], None, "<=", 1.0,
                                                                               "it takes two GPUs")]
    big, middle = result.row("none", 64 * MIB), result.row("none", 25 * MIB)
    note = f"back to back {big.flow_gbps['gradwire']:.2f}" if big and big.flow_gbps["gradwire"] else ""
    if result.limit_gbps():
        note += f"{'; ' if note else ''}the limit is {result.limit_gbps():.1f}"
    ratio = middle.times_as_fast("nccl-host") if middle else None
    return [Target(labels[0], big.algbw() if big else None, ">=", 30.0, note),
            Target(labels[1], 1.0 / ratio if ratio else None, "<=", 1.0, result.absent.get("nccl-host", ""))]


def path_target(result):
    """The engine `staged` goes through the host: NVLink carries nothing of it."""
    label = "of the bytes of our buckets went over NVLink"
    counted = next((c for c in result.counters if c["peer"] == "gradwire" and c["nvlink_kib"] is not None), None)
    if counted is None or counted["bytes"] == 0:
        return Target(label, None, "<=", 0.001, "NVLink's counters are not readable here")
    return Target(label, counted["nvlink_kib"] * KIB / counted["bytes"], "<=", 0.001)


def targets(result):
    wrong = [row.wrong["gradwire"] for row in result.rows if row.wrong["gradwire"] is not None]
    return compute_targets(result) + [memory_target(result, "nccl"), memory_target(result, "nccl-host")] + \
        latency_targets(result) + speed_targets(result) + [path_target(result)] + \
        [Target("wrong results", sum(wrong) if wrong else None, "<=", 0),
         Target("wrong among 100 000 buckets of mixed sizes; memory flat", None, "<=", 0, "make test-gpu does this")]


def targets_text(result):
    found = targets(result)
    by = {verdict: sum(t.verdict() == verdict for t in found) for verdict in ("met", "MISSED", "not measured")}
    title = "Targets (for 2 GPUs, one rank each, no MPS):"
    if any(device["name"].startswith("Simulated") for device in result.devices):
        title += " THIS RUN: simulated GPUs, so its figures say nothing about real ones"
    elif len(result.devices) == 1:
        title += f" THIS RUN: {len(result.placement)} ranks shared one GPU"
    elif len(result.devices) > 2:
        title += f" THIS RUN: {len(result.devices)} GPUs"
    last = f"{by['met']} met, {by['MISSED']} MISSED, {by['not measured']} not measured"
    return "\n".join([title] + [target.text() for target in found] + [last])


def write_json(path, result):
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result.json(), file, indent=1)
        file.write("\n")
