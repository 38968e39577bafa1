"""What bench/vit.py prints and writes: a row for each way to train, the targets, the JSON."""
import json
import os

import report
from gpu_report import Target, p95

GIB, MB = 1 << 30, 10**6
OWN = ("ddp", "fp16", "bf16", "powersgd")  # what DDP has to exchange gradients
WORDS = {"plain": "no DDP", "noop": "DDP, no-op hook", "ddp": "DDP", "fp16": "DDP, fp16 hook", "bf16": "DDP, bf16 hook",
         "powersgd": "DDP, PowerSGD hook", "gradwire": "gradwire"}


class Way:
    """One way to train. cap: the bucket size in MB; views: gradients are views of the buckets; alone: world size 1;
    guarded: steps wait until the gradients can be trusted; rounded: to bf16, before they leave the GPU."""

    def __init__(self, kind, cap=25, codec=None, views=True, static=False, alone=False, guarded=False, rounded=False):
        self.kind, self.cap, self.codec, self.rounded = kind, cap, codec, rounded
        self.views, self.static, self.alone, self.guarded = views, static, alone, guarded

    def title(self):
        more = {"1 rank": self.alone, "static graph": self.static, "no views": not self.views,
                "guarded": self.guarded, "bf16": self.rounded}
        return ", ".join([WORDS[self.kind], *(word for word, there in more.items() if there)])

    def family(self):
        """Ways of a family differ by the bucket size only."""
        return self.title(), self.codec

    def is_plain_ddp(self):
        """Several ranks, and DDP as most use it."""
        return self.kind not in ("plain", "powersgd") and self.views and not (self.static or self.alone or self.guarded)

    def exchanges(self):
        """Whether gradients become the same on all ranks."""
        return self.kind not in ("plain", "noop") and not self.alone


class Row:
    """All that was measured of one way in one scene; None: not measured."""

    def __init__(self, scene, way):
        self.scene, self.way = scene, way
        self.step_ms, self.seconds, self.steps, self.turns = [], 0.0, 0, 0
        self.peak_bytes = self.used_bytes = self.cores = self.wire_bytes = self.engine = self.equal = None
        self.exposed_ms = self.to_noop = None

    def ms(self):
        return report.median(self.step_ms)

    def json(self):
        way = self.way
        return {"scene": self.scene, "way": way.title(), "kind": way.kind, "codec": way.codec,
                "bucket_mb": None if way.kind == "plain" else way.cap, "views": way.views, "static_graph": way.static,
                "one_rank": way.alone, "guarded": way.guarded, "rounded": way.rounded, "engine": self.engine,
                "turns": self.turns, "steps": self.steps,
                "steps_per_s": self.steps / self.seconds, "ms": self.ms(), "p95_ms": p95(self.step_ms),
                "exposed_ms": self.exposed_ms, "to_noop": self.to_noop, "peak_bytes": self.peak_bytes,
                "used_bytes": self.used_bytes, "daemon_cores": self.cores, "wire_bytes": self.wire_bytes,
                "gradients_equal": self.equal}


class Result:
    """All that one run has measured."""

    def __init__(self, options):
        self.options = options
        self.torch, self.about = "", {}  # about: what rank 0 says of itself, by scene
        self.words = {}      # what is to be said of a scene
        self.rows = []
        self.absent = {}     # (scene, title): why it is not there
        self.checks = {}     # scene: what the comparison of gradients gave
        self.daemon_mib = {}
        self.notes = []
        self.failed = False

    def fail(self, why):
        """What was measured before is good, but it is not all."""
        self.notes.append(why)
        self.failed = True

    def row(self, scene, way):
        return next((row for row in self.rows if row.scene == scene and row.way is way), None)

    def of(self, scene, *kinds, codec=None, alone=False, rounded=None):
        """None: whatever it is."""
        return [row for row in self.rows if row.scene == scene and row.way.kind in kinds and row.way.alone == alone and
                codec in (None, row.way.codec) and rounded in (None, row.way.rounded)]

    def best(self, scene, *kinds, **which):
        """The row with the shortest step, or None."""
        return min(self.of(scene, *kinds, **which), key=Row.ms, default=None)

    def compare(self):
        """What lies between a way and the no-op hook at its best: that is its communication which is not hidden."""
        for row in self.rows:
            noop = self.best(row.scene, "noop")
            if noop and row.way.kind not in ("plain", "noop") and not row.way.alone:
                row.exposed_ms, row.to_noop = row.ms() - noop.ms(), row.ms() / noop.ms()

    def json(self):
        self.compare()
        options = self.options
        return {"model": options.model, "device": options.device, "batch": options.batch, "autocast": options.autocast,
                "accumulate": options.accumulate, "torch": self.torch, "about": self.about, "scenes": self.words,
                "rows": [row.json() for row in self.rows],
                "absent": [{"scene": scene, "way": title, "why": why} for (scene, title), why in self.absent.items()],
                "checks": self.checks, "daemon_mib": self.daemon_mib, "notes": self.notes,
                "targets": [target.json() for target in targets(self)]}


# ---- table ----------------------------------------------------------------------------------------

COLUMNS = [("scene", "", 8, 0), ("way", "", 22, 0), ("bucket", "(MB)", 6, 0), ("codec", "", 5, 0), ("engine", "", 6, 0),
           ("turns", "", 5, 0), ("steps", "", 5, 0), ("speed", "(steps/s)", 9, 2), ("time", "(ms)", 9, 2),
           ("p95", "(ms)", 9, 2), ("exposed", "(ms)", 9, 2), ("/no-op", "(times)", 7, 3), ("peak", "(GiB)", 6, 2),
           ("cores", "", 5, 2), ("wire", "(MB/step)", 9, 1), ("equal", "", 5, 0)]


def row_text(row):
    way = row.way
    equal = {None: None, True: "yes", False: "NO"}[row.equal]
    values = [row.scene, way.title(), None if way.kind == "plain" else way.cap, way.codec, row.engine, row.turns,
              row.steps, row.steps / row.seconds, row.ms(), p95(row.step_ms), row.exposed_ms, row.to_noop,
              None if row.peak_bytes is None else row.peak_bytes / GIB, row.cores,
              None if row.wire_bytes is None else row.wire_bytes / MB, equal]
    return report.cells_text(values, COLUMNS)


def table_text(result):
    result.compare()
    lines = [report.header_text(COLUMNS)]
    for scene in result.words:
        lines += [row_text(row) for row in result.rows if row.scene == scene]
    lines += [f"# {scene}: {title} is left out: {why}" for (scene, title), why in result.absent.items()]
    lines += [f"# {scene}: the daemons hold {mib} MiB of GPU memory" for scene, mib in result.daemon_mib.items()]
    return "\n".join(lines)


# ---- targets --------------------------------------------------------------------------------------


def ratio(one, other):
    return one.ms() / other.ms() if one and other else None


def shortly(*rows):
    return "; ".join(f"{row.way.title()} {row.ms():.2f} ms at {row.way.cap} MB" for row in rows if row)


def is_article(options):
    return options.model == "vit-l-32" and options.device == "cuda"


def step_targets(result):
    """Between the ranks of one node."""
    options, found = result.options, []
    fp32 = not options.autocast
    for scene, bound in (("p2p off", 1.02), ("p2p on", 1.03)):
        ours, noop, ddp = (result.best(scene, kind, rounded=False) for kind in ("gradwire", "noop", "ddp"))
        found.append(Target(f"{scene}, fp32: gradwire's step, of the no-op hook's", ratio(ours, noop) if fp32 else None,
                            "<=", bound, shortly(noop, ours, ddp) if fp32 else "autocast"))
    ours, theirs = result.best("p2p off", "gradwire"), result.best("p2p off", *OWN)
    found.append(Target("p2p off, autocast, batch 128: gradwire's step, of the best of DDP's own",
                        ratio(ours, theirs) if options.autocast and options.batch == 128 else None, "<", 1.0,
                        shortly(ours, theirs) if options.autocast else "it takes --autocast --batch 128"))
    scene = next(iter(result.words), None)
    ours, theirs = result.best(scene, "gradwire", alone=True), result.best(scene, "ddp", alone=True)
    found.append(Target("gradwire's step at world size 1, of DDP's", ratio(ours, theirs), "<=", 1.005,
                        shortly(ours, theirs)))
    return found


def memory_target(result):
    """Of the bucket size where it is worst. The arenas are in the host's memory, and so is what codecs leave out."""
    worst, note = None, "no GPU" if result.options.device == "cpu" else ""
    for ours in (row for row in result.rows if row.way.kind == "gradwire" and row.peak_bytes and
                 not (row.way.alone or row.way.guarded or row.way.rounded)):  # which DDP has not
        theirs = next((row for row in result.of(ours.scene, "ddp") if row.way.views and row.peak_bytes and
                       (row.way.cap, row.way.static) == (ours.way.cap, ours.way.static)), None)
        if theirs and (worst is None or ours.peak_bytes / theirs.peak_bytes > worst):
            worst = ours.peak_bytes / theirs.peak_bytes
            note = f"{ours.peak_bytes / GIB:.4f} and {theirs.peak_bytes / GIB:.4f} GiB, {ours.scene}, {ours.way.cap} MB"
    return Target("peak GPU memory of a trainer, of that with DDP with bucket views", worst, "<=", 1.0, note)


def node_targets(result):
    found, ddp = [], result.best("nodes", "ddp")
    crossed = crosses(result, ddp)
    for codec, bound in (("bf16", 1.5), ("int8", 2.5)):
        ours = result.best("nodes", "gradwire", codec=codec)
        value, note = None, ""
        if ddp and ours and ddp.exposed_ms is not None and crossed:
            note = f"{ddp.exposed_ms:.1f} and {ours.exposed_ms:.1f} ms"
            if min(ddp.exposed_ms, ours.exposed_ms) > 0:
                value = ddp.exposed_ms / ours.exposed_ms
            else:
                note += ": one is not longer than the no-op hook's step, so there is no ratio"
        elif ddp and not crossed:
            note = f"DDP sent {ddp.wire_bytes / MB:.1f} MB a step over the loopback: it went another way"
        found.append(Target(f"nodes, {codec}: DDP's exposed communication, of gradwire's", value, ">=", bound, note))
    return found


def crosses(result, ddp):
    """Whether all gradients went over the network. Each of 2 nodes sends their bytes once."""
    return ddp is not None and ddp.wire_bytes >= 2 * 0.9 * result.about["nodes"]["bytes"]


def mlp_target(result):
    options = result.options
    label = "processor, 4 ranks, the demo's network: times as fast as DDP over Gloo"
    if (options.model, options.device, options.ranks) != ("mlp", "cpu", 4):
        return Target(label, None, ">=", 2.0, "it takes --device cpu --model mlp --ranks 4")
    ours, theirs = result.best("host", "gradwire", rounded=False), result.best("host", "ddp")
    return Target(label, ratio(theirs, ours), ">=", 2.0, shortly(ours, theirs))


def check_targets(result):
    equal = [row.equal for row in result.rows if row.way.kind == "gradwire" and row.equal is not None]
    compared = {scene: check["differing"] for scene, check in result.checks.items()}
    note = ", ".join(f"{scene}: {check['note']}" for scene, check in result.checks.items() if check["note"])
    differing = [n for n in compared.values() if n is not None]
    return [Target("ways of gradwire after which gradients differ between ranks",
                   equal.count(False) if equal else None, "<=", 0, f"{len(equal)} ways"),
            Target("gradients that differ between gradwire none and DDP, 2 ranks",
                   sum(differing) if differing else None, "<=", 0, note or ", ".join(compared))]


def targets(result):
    result.compare()
    found = [*step_targets(result), memory_target(result), *node_targets(result)]
    if not is_article(result.options):
        found = [Target(t.label, None, t.comparison, t.bound, "only ViT-L/32 on GPUs counts") for t in found]
    return [*found, mlp_target(result), *check_targets(result)]


def targets_text(result):
    found = targets(result)
    by = {verdict: sum(t.verdict() == verdict for t in found) for verdict in ("met", "MISSED", "not measured")}
    title = "Targets (for ViT-L/32 on 2 GPUs, medians):"
    last = f"{by['met']} met, {by['MISSED']} MISSED, {by['not measured']} not measured"
    return "\n".join([title] + [target.text() for target in found] + [last])


def write_json(path, result):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result.json(), file, indent=1)
        file.write("\n")
