"""What `make bench-nodes` prints: the table, and which targets were met."""
import report

MIB = 1 << 20
CODECS = ["none", "fp16", "bf16", "fp8", "int8", "int4"]
# Bytes of an fp32 number in each codec. Those with a scale have one of 4 bytes for 256 numbers.
CODEC_BYTES = {"none": 4, "fp16": 2, "bf16": 2, "fp8": 1 + 1 / 64, "int8": 1 + 1 / 64, "int4": 0.5 + 1 / 64}
RATES = {"0": 0, "200M": 2 * 10**8, "1G": 10**9, "10G": 10**10}

COLUMNS = [("size", "(B)", 10, 0), ("count", "(elements)", 10, 0), ("type", "", 6, 0), ("redop", "", 5, 0),
           ("nodes", "", 5, 0), ("rate", "(bit/s)", 7, 0), ("codec", "", 6, 0), ("time", "(us)", 10, 1),
           ("p95", "(us)", 10, 1), ("busbw", "(GB/s)", 6, 3), ("wire", "(MB)", 8, 2), ("ratio", "", 6, 2),
           ("error", "(max)", 8, 0), ("Open MPI", "(us)", 10, 1), ("Gloo", "(us)", 10, 1), ("limit", "(us)", 9, 1),
           ("/peer", "(times)", 7, 2), ("/limit", "(speed)", 7, 3), ("/none", "(times)", 7, 2)]


def data_bytes(row):
    """What a node must send of an all-reduce that is not encoded."""
    return row["bytes"] * 2 * (row["nodes"] - 1) / row["nodes"]


def predicted_bytes(row):
    return data_bytes(row) * CODEC_BYTES[row["codec"]] / 4


def best_peer_us(row):
    return min((row[key] for key in ("openmpi_us", "gloo_us") if row[key]), default=None)


def times(numerator, denominator):
    return numerator / denominator if numerator and denominator else None


class Rows(list):
    def find(self, size, nodes, rate, codec="none"):
        wanted = {"bytes": size, "nodes": nodes, "rate_bps": rate, "codec": codec}
        return next((row for row in self if all(row[key] == value for key, value in wanted.items())), None)

    def none_of(self, row):
        return self.find(row["bytes"], row["nodes"], row["rate_bps"])

    def text(self, row, p95_us):
        us, none = row["gradwire_us"], self.none_of(row)
        rate = next(text for text, rate in RATES.items() if rate == row["rate_bps"])
        values = [row["bytes"], row["bytes"] // 4, "float", "avg", row["nodes"], rate, row["codec"], us, p95_us,
                  data_bytes(row) / us / 1e3, row["wire_bytes"] / 1e6, data_bytes(row) / row["wire_bytes"],
                  f"{row['max_rel_err']:.1e}", row["openmpi_us"], row["gloo_us"], row["limit_us"],
                  times(best_peer_us(row), us), times(row["limit_us"], us), times(none and none["gradwire_us"], us)]
        return report.cells_text(values, COLUMNS)


class Targets:
    """Lines of what must be reached, met or missed."""

    def __init__(self):
        self.lines, self.n_met, self.n_measured = [], 0, 0

    def add(self, what, value, least, label):
        if value is None:
            self.lines.append(f"  {what:<34} {'-':>10}     {least:<5} -       {label}: not measured")
            return
        met = value >= least
        self.n_met += met
        self.n_measured += 1
        self.lines.append(f"  {what:<34} {report.shown(value, '>='):10.2f}  >= {least:<5} {'met   ' if met else 'MISSED'}  "
                          f"{label}")

    def text(self):
        return "\n".join(["Targets (medians; all nodes on this machine):", *self.lines,
                          f"{self.n_met} of {self.n_measured} met"])


def add_limited(targets, rows, n):
    def us(codec):
        row = rows.find(25 * MIB, n, 10**9, codec)
        return row and row["gradwire_us"]

    what = f"25 MiB, {n} nodes, 1 Gbit/s"
    none = rows.find(25 * MIB, n, 10**9) or {}
    targets.add(f"{what}, none", times(none.get("limit_us"), us("none")), 0.92, "speed, of the limit's")
    targets.add(f"{what}, none", times(none and best_peer_us(none), us("none")), 1.0, "times as fast as the better peer")
    for codec, least in (("bf16", 1.85), ("int8", 3.6), ("int4", 6.8)):
        targets.add(f"{what}, {codec}", times(us("none"), us(codec)), least, "times as fast as none")


def add_wire_bytes(targets, rows):
    """The farthest from what is predicted, of all that are large enough for announcements not to count."""
    off = [abs(row["wire_bytes"] / predicted_bytes(row) - 1) for row in rows if row["bytes"] >= MIB]
    targets.add("1 MiB and more, all codecs", 1 - max(off) if off else None, 0.95, "wire bytes, 1 less what they are off by")


def add_all(targets, rows, perftest):
    """`perftest`: bytes a second each way; None: not measured."""
    for n in (2, 4):
        add_limited(targets, rows, n)
    add_wire_bytes(targets, rows)
    none = rows.find(100 * MIB, 2, 0)
    us = none and none["gradwire_us"]
    what = "100 MiB, 2 nodes, no limit, none"
    targets.add(what, times(none and best_peer_us(none), us), 1.5, "times as fast as the better peer")
    targets.add(what, times(none and data_bytes(none) / us * 1e6, perftest), 0.7, "of ucx_perftest's speed, both ways at once")
