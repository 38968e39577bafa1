"""test_codec_choice.py - who chooses the codec between nodes: the bucket, the group, the configuration, or what was measured

Each daemon listens on a loopback address of its own; one test limits a cable between two namespaces.
"""

import contextlib
import subprocess
import time

from network import WIRE_FDS, Network
from ranks import PATIENCE_S, SLOW, Skip, check, contains, equal, exchange, loopback, main, prepare, program, submit, until

COUNT, ROUNDS = 100000, 8
BYTES = {"none": 4, "bf16": 2, "int8": 1.016, "int4": 0.516}  # of an element
LIMIT_BIT_S = 100_000_000


@contextlib.contextmanager
def _nodes(*flags_of_each, **options):
    """Daemons that reach each other, with flags of their own."""
    with loopback(len(flags_of_each), each=flags_of_each, **options) as daemons:
        for daemon in daemons:
            daemon.base_fds += WIRE_FDS
        yield daemons


def _coded(daemons, *options, rounds=ROUNDS):
    """Averages, a rank a node: error of one, of the mean of all, the digest, and bytes of an element that node 0 sent."""
    sent = daemons[0].stat("wire_bytes_sent")
    result = subprocess.run([program("tests/integration/coded"), *options, str(COUNT), str(rounds),
                             *[daemon.socket for daemon in daemons]], capture_output=True, text=True,
                            timeout=50 * SLOW, check=False)
    words = result.stdout.split()
    check(result.returncode == 0 and len(words) == 7, f"coded {options} ended with {result.returncode}: {result.stderr[:500]}")
    equal((words[4], words[5]), ("same", "kept"), f"bits of the ranks, and infinities, with {options}")
    sent = (daemons[0].stat("wire_bytes_sent") - sent) / COUNT / (rounds + 1)
    return float(words[1]), float(words[3]), words[6], sent


def _join(ranks, *choices):
    """Each rank with its own words: codec and rounding."""
    unique_id = ranks[0].ok("id")
    for number, (rank, choice) in enumerate(zip(ranks, choices)):
        rank.send(f"join g {unique_id} {len(ranks)} {number} {choice}")


def _wire(daemon):
    return daemon.admin_json("groups")[-1]["wire"]


def _row(daemon, max_bytes, codec):
    return next(row for row in _wire(daemon)["sizes"] if (row["max_bytes"], row["codec"]) == (max_bytes, codec))


# ---- who chooses -------------------------------------------------------------------------------------------


def bucket_group_and_configuration_choose():
    """The nearest one counts."""
    with _nodes(["--wire.codec=int8"], ["--wire.codec=int8"]) as daemons:
        for options, codec in ((["codec=none"], "none"), ([], "int8"), (["group=none"], "none"), (["group=bf16"], "bf16"),
                               (["group=bf16", "codec=int4"], "int4"), (["group=auto:none"], "none")):
            error, _, _, sent = _coded(daemons, *options)
            # The last round of `coded` has blocks that are not finite, which go as they are.
            check(BYTES[codec] <= sent < 1.35 * BYTES[codec] + 0.1, f"{sent} bytes an element with {options}, not {codec}")
            equal(error < 1e-6, codec == "none", f"whether {options} is exact (error {error})")


def what_cannot_be_coded_stays_exact():
    with _nodes([], []) as daemons:
        ranks = [daemon.rank() for daemon in daemons]
        _join(ranks, "int8", "int8")
        for rank in ranks:
            rank.answer("GW_OK")
        prepare(ranks)
        for number, rank in enumerate(ranks):
            rank.ok("alloc c 8192")
            for name, what in (("i", "all_reduce i32 sum"), ("m", "all_reduce f32 max"), ("r", "reduce f32 sum"),
                               ("e", "all_reduce f32 sum")):
                rank.ok(f"bucket {name} g {what} 1024 c:0 c:0" + (" codec=none" if name == "e" else ""))
            rank.ok(f"fill c i32 1024 {number + 1000003}")
        for rank, op in zip(ranks, submit(ranks, "i")):
            rank.ok(f"wait g {op} {PATIENCE_S * 1000}")
            equal(rank.ok("expect c i32 1024 2000007"), "0", "wrong integers")
        shown = {bucket["name"]: (bucket["codec"], bucket["codec_asked"]) for bucket in daemons[0].admin_json("buckets")}
        equal(shown, {"k": ("int8", "default"), "i": ("none", "default"), "m": ("none", "default"), "r": ("none", "default"),
                      "e": ("none", "none")}, "codecs of the buckets")
        exchange(ranks)
        equal(_wire(daemons[0])["why"], "asked by the ranks", "why")
        row = _row(daemons[1], 4096, "int8")
        equal((row["ops"], row["planned"], "predicted_us" in row), (1, True, False), "operations of that size")
        check(row["measured_us"] > 0 and 4 > row["bytes_before"] / row["bytes_after"] > 3.9, f"no savings in {row}")
        contains(daemons[0].gwctl("groups").stdout, "2 nodes, codec int8, rounding nearest: asked by the ranks", "MEASURED")


def one_node_encodes_nothing():
    with _nodes(["--wire.codec=int8"]) as daemons:
        ranks = [daemons[0].rank() for _ in range(2)]
        _join(ranks, "", "int8 nearest")
        for rank in ranks:
            rank.answer("GW_OK")
        prepare(ranks)
        equal({bucket["codec"] for bucket in daemons[0].admin_json("buckets")}, {"none"}, "codecs inside a node")
        check("wire" not in daemons[0].admin_json("groups")[-1], "a group of one node has a wire")


# ---- disagreement ------------------------------------------------------------------------------------------


def _disagree(flags, places, choices, *parts):
    with _nodes(*flags) as daemons:
        ranks = [daemons[place].rank() for place in places]
        _join(ranks, *choices)
        for rank in ranks:
            rank.answer("GW_ERR_BOOTSTRAP", "all ranks of a group must have the same", *parts)
        for rank in ranks:
            rank.end()


def different_codecs_are_named_on_all_ranks():
    _disagree([[], []], [0, 1, 0], ["int8", "bf16", "int8"], "rank 1 on host", "codec int8", "codec bf16", "it asked for it")
    _disagree([[], []], [1, 0, 0], ["auto:bf16", "auto:bf16", "auto:int8"], "rank 2 on host", "codec auto:none,int8")
    _disagree([[]], [0, 0], ["int8 stochastic", "int8 nearest"], "stochastic rounding", "nearest rounding")


def configurations_must_agree_where_the_group_relies_on_them():
    flags = [["--wire.codec=int8"], ["--wire.codec=bf16"]]
    _disagree(flags, [0, 1], ["", ""], "rank 0 on host", "rank 1 on host", "codec int8", "codec bf16", "wire.codec of its daemon")
    _disagree([["--wire.rounding=stochastic"], []], [0, 1], ["int8", "int8"], "stochastic", "nearest")
    with _nodes(*flags) as daemons:
        ranks = [daemon.rank() for daemon in daemons]
        _join(ranks, "int4", "int4")
        for rank in ranks:
            rank.answer("GW_OK")
        equal([_wire(daemon)["codec"] for daemon in daemons], ["int4", "int4"], "the codec that both asked for")


def what_is_no_codec_is_refused():
    with _nodes([]) as daemons:
        rank = daemons[0].rank()
        unique_id = rank.ok("id")
        for word in ("int7", "auto", "auto:int8,", "auto:bf16;int8"):
            rank.expect("GW_ERR_INVALID_ARGUMENT", f"join g {unique_id} 1 0 {word}", f"'{word}'", "auto:bf16,int8")
        rank.ok(f"join g {unique_id} 1 0 auto:int8")
    daemon = subprocess.run([program("gradwired"), "--config=/dev/null", "--wire.codec=int7", "--socket-dir=/nowhere"],
                            capture_output=True, text=True, timeout=20 * SLOW, check=False)
    check(daemon.returncode == 1, f"the daemon ended with {daemon.returncode}")
    contains(daemon.stderr, "wire.codec: 'int7' is no codec")


# ---- auto --------------------------------------------------------------------------------------------------


def auto_has_one_plan_on_all_nodes():
    with _nodes([], [], []) as daemons:
        ranks = [daemons[place].rank() for place in (0, 1, 1, 2)]
        _join(ranks, *["auto:bf16,int8"] * 4)
        for rank in ranks:
            rank.answer("GW_OK")
        groups = [daemon.admin_json("groups")[-1] for daemon in daemons]
        for what in ("codec", "bytes_per_s", "latency_us", "sizes"):
            equal(groups[1]["wire"][what], groups[0]["wire"][what], f"{what} of two nodes")
            equal(groups[2]["wire"][what], groups[0]["wire"][what], f"{what} of two nodes")
        equal(len({group["plan_hash"] for group in groups}), 1, "number of plans")
        wire = groups[0]["wire"]
        equal((wire["codec"], wire["nodes"]), ("auto:none,bf16,int8", 3), "what was asked")
        check({row["codec"] for row in wire["sizes"]} <= {"none", "bf16", "int8"}, "a codec that was not permitted")
        check(all(row["predicted_us"] > 0 for row in wire["sizes"]), "no prediction")
        contains(daemons[2].gwctl("groups").stdout, "asked by the ranks; measured: a node sends", "PREDICTED")
        prepare(ranks, count=10000)
        exchange(ranks)
        for rank in ranks:
            rank.end()


def auto_compresses_on_a_slow_cable():
    _compresses_on_a_slow_cable(1, 12e6)


def auto_compresses_on_a_slow_cable_that_lanes_share():
    """Those that do not measure at the very same time see more than their share: twice the cable is let pass."""
    _compresses_on_a_slow_cable(3, 8e6)


def _compresses_on_a_slow_cable(lanes, least_bytes):
    """`least_bytes`: of 64 MiB as int8, 17 MB, that the prediction has cross the cable at its rate, at least."""
    with Network() as network:
        try:
            network.limit(LIMIT_BIT_S)
        except subprocess.CalledProcessError as error:
            raise Skip(f"no rate can be set: {error.stderr.strip()}") from None
        with network.daemon(0, "--wire.listen=eth0", f"--lane.count={lanes}", bystanders=False) as a, \
                network.daemon(1, f"--lane.count={lanes}", bystanders=False) as b:
            ranks = [a.rank(), b.rank()]
            _join(ranks, "auto:bf16,int8", "auto:bf16,int8")
            for rank in ranks:
                rank.answer("GW_OK")
            wire = _wire(a)
            check(1e5 < wire["bytes_per_s"] < 2 * LIMIT_BIT_S / 8, f"measured {wire['bytes_per_s']} bytes/s")
            plan = {row["max_bytes"]: row for row in wire["sizes"] if row["planned"]}
            equal(plan[64 << 20]["codec"], "int8", "the codec of 64 MiB")
            check(plan[64 << 20]["predicted_us"] > least_bytes * 8 / LIMIT_BIT_S * 1e6, "the prediction is faster than the cable")
            prepare(ranks, count=1 << 18)
            exchange(ranks)
            row = _row(b, 1 << 20, plan[1 << 20]["codec"])
            equal((row["ops"], row["bytes_before"]), (1, 1 << 20), "the bucket is counted")
            check(row["measured_us"] > row["bytes_after"] * 7e6 / LIMIT_BIT_S - 20000, f"faster than the cable: {row}")
            for rank in ranks:
                rank.end()


def a_daemon_dies_while_it_is_measured():
    for delay_s in (0.02, 0.1):
        with _nodes(["--deadline.bootstrap_s=4"], [], checks=False) as daemons:
            ranks = [daemon.rank() for daemon in daemons]
            _join(ranks, "auto:int8", "auto:int8")
            time.sleep(delay_s)
            daemons[1].die()
            reply = ranks[0].recv(20 * SLOW)
            if reply.status == "GW_OK":  # it had been made
                until(lambda: ranks[0].do("check g").status == "GW_ERR_NODE_LOST", "the loss is noticed", 10)
            else:
                check(reply.status in ("GW_ERR_BOOTSTRAP", "GW_ERR_NODE_LOST"), f"{reply} came")
            daemons[0].assert_alive()


# ---- rounding ----------------------------------------------------------------------------------------------


def stochastic_rounding_repeats_and_is_right_on_average():
    runs = []
    for _ in range(2):  # other daemons: nothing of the bits may be theirs
        with _nodes([], []) as daemons:
            runs.append([_coded(daemons, f"group={codec}", "rounding=stochastic", rounds=48)
                         for codec in ("bf16", "int8")])
    equal([run[2] for run in runs[0]], [run[2] for run in runs[1]], "digests of two runs")
    with _nodes(["--wire.rounding=stochastic"], ["--wire.rounding=stochastic"]) as daemons:
        nearest = _coded(daemons, "group=bf16", "rounding=nearest", rounds=48)
        check(nearest[2] != runs[0][0][2], "stochastic rounding gives the bits of rounding to nearest")
        check(nearest[1] > nearest[0] / 2, f"the mean of rounding to nearest is right by itself: {nearest}")  # negative control
        check(runs[0][0][1] < nearest[1] / 2, f"the mean is {runs[0][0][1]} off, to nearest {nearest[1]}")
        configured = _coded(daemons, "group=bf16", rounds=48)
        equal(configured[2], runs[0][0][2], "the digest with configured rounding")


if __name__ == "__main__":
    main(globals(), 110)
