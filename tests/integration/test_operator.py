"""test_operator.py - gwctl against a daemon at work: every command, its JSON, its exit codes, kick and drain"""

import json
import os
import re
import subprocess

from ranks import PATIENCE_S, Daemon, check, contains, equal, exchange, gw, main, program, reap, until

SHOWN = {"status": dict, "clients": list, "groups": list, "buffers": list, "buckets": list, "stats": dict,
         "config": list, "trace": dict}


def _gwctl(*words, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}
    return subprocess.run([program("gwctl"), *words], capture_output=True, text=True, timeout=PATIENCE_S,
                          env={**clean, **(env or {})}, check=False)


def every_command_prints_json_and_a_table():
    with Daemon() as daemon:
        ranks = daemon.ready(2, more="as=fc1.weight")
        exchange(ranks)
        for command, kind in SHOWN.items():
            document = daemon.admin_json(command)
            check(isinstance(document, kind) and document, f"{command} --json is {str(document)[:100]}")
            result = daemon.gwctl(command)
            equal((result.returncode, result.stderr), (0, ""), f"gwctl {command}")
            check(result.stdout.strip(), f"gwctl {command} prints nothing")
        for command in ("version", "doctor"):
            result = daemon.gwctl("--json", command)
            check(result.returncode == 0 or command == "doctor" and result.returncode == 1, f"gwctl {command}: {result}")
            json.loads(result.stdout)
        contains(daemon.gwctl("buckets").stdout, "fc1.weight", "all_reduce")
        contains(daemon.gwctl("groups").stdout, str(ranks[0].pid))


def what_is_shown_is_so():
    with Daemon(bystanders=False) as daemon:
        ranks = daemon.ready(2, count=5000, more="as=conv.bias priority=7")
        for _ in range(3):
            exchange(ranks)
        status = daemon.admin_json("status")
        equal([status[w] for w in ("clients", "groups", "buffers", "buckets", "state", "pid")],
              [3, 1, 2, 2, "serving", daemon.pid], "the status")
        clients = {c["pid"]: c for c in daemon.admin_json("clients")}
        for rank in ranks:
            equal((clients[rank.pid]["uid"], clients[rank.pid]["groups"], clients[rank.pid]["buffer_bytes"]),
                  (os.getuid(), 1, 40960), "a client")
        group = daemon.admin_json("groups")[0]
        equal((group["nranks"], group["state"], group["last_completed"], group["in_flight"]), (2, "ok", 3, 0), "the group")
        equal([(r["pid"], r["submitted"]) for r in group["ranks"]], [(r.pid, 3) for r in ranks], "its ranks")
        equal(sum(r["last_count"] for r in group["ranks"]), 3, "how often a rank was last")
        bucket = daemon.admin_json("buckets")[0]
        equal([bucket[w] for w in ("name", "collective", "type", "redop", "count", "priority", "rounds")],
              ["conv.bias", "all_reduce", "f32", "sum", 5000, 7, 3], "a bucket")
        equal(daemon.stat("ops_completed"), 3, "operations counted")
        events = [e for e in daemon.admin_json("trace")["traceEvents"] if e.get("cat") == "operation"]
        equal([(e["name"], e["args"]["sequence"]) for e in sorted(events, key=lambda e: e["ts"])],
              [("conv.bias", n) for n in (1, 1, 2, 2, 3, 3)], "operations that were traced, of two ranks")
        ranks[1].kill()
        until(lambda: daemon.admin_json("groups")[0]["state"] == "failed", "the group has failed")
        contains(daemon.admin_json("groups")[0]["message"], "rank 1", str(ranks[1].pid))
        contains(daemon.gwctl("groups").stdout, "GW_ERR_RANK_DIED")


def names_that_would_harm_a_terminal_are_shown_escaped():
    with Daemon() as daemon, gw.Client(daemon.socket, name="evil\x1b[2J\x07\n") as client:
        group = client.joined(client.post_join(client.unique_id(), 1, 0))
        buffer = client.buffer(4096)
        group.bucket("\x1b]0;title\x07\n\\x1b", buffer, count=4)
        for command in ("clients", "buckets", "groups"):
            for words in ((command,), ("--json", command)):
                text = daemon.gwctl(*words).stdout
                check(not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text), f"control characters in gwctl {words}")
        contains(daemon.gwctl("clients").stdout, "evil")


def prometheus_text_is_well_formed():
    with Daemon() as daemon:
        exchange(daemon.ready(2))
        result = daemon.gwctl("--prometheus", "stats")
        equal(result.returncode, 0, "exit code")
        names = set()
        for line in result.stdout.splitlines():
            if line.startswith("# "):
                check(re.fullmatch(r"# (HELP|TYPE) [a-z_:][a-z0-9_:]* .+", line), f"line {line!r}")
            else:
                sample = re.fullmatch(r'([a-z_:][a-z0-9_:]*)(\{[^}]*\})? [-+0-9.e]+(Inf)?', line)
                check(sample, f"line {line!r}")
                names.add(sample[1])
        check(any("ops_completed" in name for name in names), f"no ops_completed among {sorted(names)[:10]}")


def watching_goes_on():
    with Daemon() as daemon:
        process = subprocess.Popen([program("gwctl"), "--socket", daemon.admin, "--watch=0.1", "stats"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            text = ""
            while text.count("ops_completed") + text.count("operations completed") < 3:
                line = process.stdout.readline()
                check(line, f"it ended: {process.poll()}")
                text += line
        finally:
            process.kill()
            process.communicate()


def exit_code_0_when_it_went_well():
    with Daemon() as daemon:
        equal(daemon.gwctl("status").returncode, 0, "status")
        equal(_gwctl("--help").returncode, 0, "help")
        equal(_gwctl("status", env={"GRADWIRE_ADMIN_SOCKET": daemon.admin}).returncode, 0, "GRADWIRE_ADMIN_SOCKET")
        equal(_gwctl("status", env={"GRADWIRE_SOCKET": daemon.socket}).returncode, 0, "beside GRADWIRE_SOCKET")


def both_programs_tell_their_version_and_help():
    for name in ("gwctl", "gradwired"):
        for flag, text in (("--version", f"{name} "),
                           ("-h", f"usage: {name}"), ("--help", f"usage: {name}")):
            result = subprocess.run([program(name), flag], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            equal((result.returncode, result.stderr), (0, ""), f"{name} {flag}")
            check(result.stdout.startswith(text), f"{name} {flag} prints {result.stdout[:100]!r}")


def exit_code_1_when_it_failed():
    with Daemon() as daemon:
        for words in (("kick", "4711"), ("kick", "x"), ("log-level", "loud")):
            result = daemon.gwctl(*words)
            equal(result.returncode, 1, f"gwctl {words}")
            contains(result.stderr, "gwctl: ", words[1])
            equal(daemon.gwctl("--json", *words).returncode, 1, f"gwctl --json {words}")
        # On the clients' socket there are no admin commands.
        equal(_gwctl("--socket", daemon.socket, "status").returncode, 1, "status on the clients' socket")


def exit_code_2_for_wrong_usage():
    with Daemon() as daemon:
        for words in ((), ("nonsense",), ("status", "x"), ("kick",), ("--nonsense", "status"), ("--watch=0", "stats"),
                      ("--watch", "status"), ("--prometheus", "groups"), ("--prometheus", "--json", "stats"), ("--socket",)):
            result = _gwctl(*words, env={"GRADWIRE_ADMIN_SOCKET": daemon.admin})
            equal(result.returncode, 2, f"gwctl {words}")
            contains(result.stderr, "gwctl --help")


def exit_code_3_without_a_daemon():
    for words in [(command,) for command in SHOWN] + [("kick", "1"), ("drain",), ("log-level", "info")]:
        result = _gwctl("--socket", "/no/such/socket", *words)
        equal(result.returncode, 3, f"gwctl {words}")
        contains(result.stderr, "/no/such/socket", "start gradwired")
    with Daemon(bystanders=False, checks=False) as daemon:
        daemon.die()
        equal(daemon.gwctl("status").returncode, 3, "a socket that nobody listens on")


def the_log_tells_a_good_end_from_a_bad_one():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        ranks[0].ok("leave g")
        ranks[0].close()
        daemon.wait_log(f"pid {ranks[0].pid}) ends: disconnected")
        ranks[1].kill()
        until(lambda: re.search(rf"pid {ranks[1].pid}\) ends: died", daemon.log()), "the log tells of the death")


def a_kicked_client_and_its_peers_hear_why():
    with Daemon() as daemon:
        ranks = daemon.ready(2)
        op = ranks[0].ok("submit k")
        ranks[0].send(f"wait g {op} -1")
        client = next(c["id"] for c in daemon.admin_json("clients") if c["pid"] == ranks[1].pid)
        equal(daemon.gwctl("kick", str(client)).returncode, 0, "exit code")
        ranks[0].answer("GW_ERR_KICKED", "rank 1", f"pid {ranks[1].pid}", "operator")
        check(ranks[1].do("submit k").status != "GW_OK", "the kicked rank goes on")
        check(ranks[1].do("id").status in ("GW_ERR_DAEMON_GONE", "GW_ERR_KICKED"), "what the kicked client hears")
        equal(daemon.gwctl("kick", str(client)).returncode, 1, "kicking it again")


def the_log_level_changes():
    with Daemon() as daemon:
        equal(daemon.gwctl("log-level", "debug").returncode, 0, "exit code")
        daemon.rank().ok("alloc b 4096")
        daemon.wait_log(" debug ")


def draining_from_gwctl():
    with Daemon("--drain.timeout_s=30", bystanders=False, checks=False) as daemon:
        ranks = daemon.ready(2)
        result = daemon.gwctl("--json", "drain")
        equal((result.returncode, json.loads(result.stdout)), (0, {"state": "draining"}), "the answer")
        equal(daemon.admin_json("status")["state"], "draining", "the state shown")
        exchange(ranks)
        for rank in ranks:
            rank.ok("leave g")
        equal(reap(daemon.process), 0, "exit code of the daemon")


def operators_come_in_when_clients_have_filled_every_place():
    with Daemon("--limits.clients=4", bystanders=False) as daemon:
        for _ in range(4):
            daemon.rank()
        daemon.rank(connect=False).expect("GW_ERR_QUOTA", "connect")
        equal(daemon.gwctl("clients").returncode, 0, "gwctl, whose user needs to find out who fills the places")


if __name__ == "__main__":
    main(globals())
