"""test_daemon.py - the life of the daemon: starting, sockets, service manager, configuration, draining"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from ranks import (PATIENCE_S, SLOW, Daemon, Rank, Skip, check, contains, equal, exchange, gw, join, kill, main, prepare,
                   program, reap, spawn, until)


def _run(*words, env=None, **options):
    """Runs gradwired to its end; returns code and what it wrote."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}
    result = subprocess.run([program("gradwired"), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            timeout=PATIENCE_S, env={**clean, **(env or {})}, check=False, **options)
    return result.returncode, result.stdout + result.stderr


def _folder():
    path = tempfile.mkdtemp(prefix="gw-test-")
    os.chmod(path, 0o755)
    return path


# ---- sockets --------------------------------------------------------------------------------------------


def stale_socket_files_are_replaced():
    with Daemon(bystanders=False) as daemon:
        rank = daemon.rank()
        daemon.die()
        check(os.path.exists(daemon.socket), "no stale socket was left to test with")
        rank.ok("disconnect")
        rank.expect("GW_ERR_NO_DAEMON", "connect")
        daemon.restart()
        contains(daemon.log(), "stale socket")
        rank.ok("connect")


def a_second_daemon_on_the_same_folder_is_refused():
    with Daemon() as daemon:
        code, text = _run("--config=/dev/null", f"--socket-dir={daemon.dir}")
        equal(code, 1, "exit code")
        contains(text, "another gradwired serves", daemon.dir, "--socket-dir")


def two_daemons_side_by_side():
    with Daemon() as one, Daemon() as other:
        for daemon in (one, other):
            ranks = daemon.ready(2)
            exchange(ranks)
        one.die()
        exchange(other.ranks)
        one.restart()
        one.close_ranks()


def a_file_in_the_way_of_the_folder_is_named():
    folder = _folder()
    try:
        path = os.path.join(folder, "file")
        with open(path, "w", encoding="ascii"):
            pass
        code, text = _run("--config=/dev/null", f"--socket-dir={path}")
        equal(code, 1, "exit code")
        contains(text, path, "socket-dir")
        code, text = _run("--config=/dev/null", f"--socket-dir={folder}/no/such/folder")
        equal(code, 1, "exit code")
        contains(text, "/no/such/folder", "No such file")
    finally:
        shutil.rmtree(folder)


def a_folder_of_another_user_is_refused():
    if os.getuid() != 0:
        raise Skip("only root can give a folder to another user")
    folder = _folder()
    try:
        os.chown(folder, 12345, 12345)
        code, text = _run("--config=/dev/null", f"--socket-dir={folder}")
        equal(code, 1, "exit code")
        contains(text, folder, "not a folder of this user")
    finally:
        shutil.rmtree(folder)


def any_user_can_start_one_without_configuration():
    """It listens where the library of the same user looks."""
    if os.getuid() != 0:
        raise Skip("only root can become two users")
    folder = _folder()
    os.chmod(folder, 0o700)
    os.chown(folder, 12345, 12345)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE_")}
    for env, path in (({"XDG_RUNTIME_DIR": folder}, f"{folder}/gradwire"), ({}, "/tmp/gradwire-12345")):
        environment = {**clean, **env}
        if not env:
            environment.pop("XDG_RUNTIME_DIR", None)
        log = os.path.join(tempfile.gettempdir(), f"gw-log-{os.getpid()}")
        with open(log, "wb") as file:
            daemon = spawn([program("gradwired"), "--config=/dev/null"], env=environment, user=12345, group=12345,
                           extra_groups=[], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        ranks = []
        try:
            until(lambda: os.path.exists(f"{path}/client.sock"), f"it serves in {path}")
            equal(os.stat(path).st_mode & 0o777, 0o700, "mode of the folder")
            for _ in range(2):
                rank = Rank("", user=12345, connect=False, XDG_RUNTIME_DIR=env.get("XDG_RUNTIME_DIR", ""))
                ranks.append(rank)
                rank.ok("connect")
            join(ranks)
            prepare(ranks)
            exchange(ranks)
            result = subprocess.run([program("gwctl"), "status"], env=environment, user=12345, group=12345,
                                    extra_groups=[], capture_output=True, text=True, check=False)
            equal(result.returncode, 0, f"gwctl finds it, too: {result.stderr}")
        finally:
            for rank in ranks:
                rank.close()
            daemon.terminate()
            code = reap(daemon)
            os.unlink(log)
            shutil.rmtree(path, ignore_errors=True)
        equal(code, 0, "exit code")
    shutil.rmtree(folder)


def who_finds_no_daemon_is_told_where_it_was_looked_for():
    rank = Rank("", connect=False, XDG_RUNTIME_DIR="/nowhere")
    try:
        reply = rank.do("connect")
        if reply.status == "GW_OK":
            raise Skip("a daemon of the system runs")
        equal(reply.status, "GW_ERR_NO_DAEMON", "the connection")
        contains(reply.text, "/nowhere/gradwire/client.sock", f"/tmp/gradwire-{os.getuid()}", "/run/gradwire/client.sock",
                 "GRADWIRE_SOCKET")
    finally:
        rank.close()


# ---- the service manager --------------------------------------------------------------------------------


class _Notified:
    """A notification socket, and what came to it."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(PATIENCE_S)

    def next(self):
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())


def the_service_manager_hears_of_every_state():
    folder = _folder()
    notified = _Notified(folder)
    with Daemon(env={"NOTIFY_SOCKET": notified.path}) as daemon:
        ready = notified.next()
        equal(ready.get("READY"), "1", "the first message")
        daemon.process.send_signal(signal.SIGHUP)
        reloading = notified.next()
        equal(reloading.get("RELOADING"), "1", "the message after SIGHUP")
        check("MONOTONIC_USEC" in reloading, "Type=notify-reload needs MONOTONIC_USEC")
        equal(notified.next().get("READY"), "1", "the message after the reload")
        daemon.close_ranks()
        daemon.process.terminate()
        equal(notified.next().get("STOPPING"), "1", "the message after SIGTERM")
        equal(reap(daemon.process), 0, "exit code")
        daemon.checks = False
    notified.socket.close()
    shutil.rmtree(folder)


def _activated(names, folder):
    """Starts the daemon as systemd would, with listening sockets for descriptors 3 and on."""
    sockets = []
    for n, name in enumerate(names):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.bind(f"{folder}/{name}{n}.passed")
        one.listen(64)
        sockets.append(one)
    # The shell is there to have a process that puts its own pid in LISTEN_PID and then becomes the daemon.
    high = [os.dup2(s.fileno(), 50 + n) for n, s in enumerate(sockets)]
    moves = " ".join(f"{3 + n}<&{50 + n}" for n in range(len(sockets)))
    closes = " ".join(f"{fd}<&-" for fd in high)
    with open(f"{folder}/log", "wb") as log:
        process = spawn(["bash", "-c", f"LISTEN_PID=$$ LISTEN_FDS={len(names)} LISTEN_FDNAMES={':'.join(names)} "
                         f"exec {program('gradwired')} --config=/dev/null --drain.timeout_s=1 {moves} {closes}"],
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=high)
    for fd in high:
        os.close(fd)
    return process, sockets


def sockets_from_the_service_manager():
    folder = _folder()
    process, sockets = _activated(["client", "admin"], folder)
    ranks = []
    try:
        ranks = [Rank(f"{folder}/client0.passed") for _ in range(2)]  # the backlog holds them until it serves
        join(ranks)
        prepare(ranks)
        exchange(ranks)
        result = subprocess.run([program("gwctl"), "--socket", f"{folder}/admin1.passed", "--json", "status"],
                                capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        equal(result.returncode, 0, f"gwctl: {result.stderr}")
        for rank in ranks:
            rank.end()
        process.terminate()
        equal(reap(process), 0, "exit code")
        check(os.path.exists(f"{folder}/client0.passed"), "it removed a socket that is the service manager's")
    finally:
        for rank in ranks:
            rank.close()
        kill(process)
        for one in sockets:
            one.close()
        shutil.rmtree(folder)


def systemd_socket_activate_starts_it():
    if not shutil.which("systemd-socket-activate"):
        raise Skip("there is no systemd-socket-activate")
    folder = _folder()
    path = f"{folder}/client.sock"
    process = spawn(["systemd-socket-activate", "--seqpacket", "--fdname=client", "-l", path, program("gradwired"),
                     "--config=/dev/null"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rank = None
    try:
        until(lambda: os.path.exists(path), "it listens")
        rank = Rank(path)
        rank.ok("id")
        rank.end()
        process.terminate()
        equal(reap(process), 0, "exit code")
    finally:
        if rank:
            rank.close()
        kill(process)
        shutil.rmtree(folder)


def two_sockets_of_one_name_are_refused():
    folder = _folder()
    process, sockets = _activated(["client", "client"], folder)
    try:
        equal(reap(process), 1, "exit code")
        with open(f"{folder}/log", encoding="utf-8") as log:
            contains(log.read(), "two sockets", "FileDescriptorName=")
    finally:
        for one in sockets:
            one.close()
        shutil.rmtree(folder)


# ---- configuration --------------------------------------------------------------------------------------


def _bad_file(text, *parts):
    folder = _folder()
    path = f"{folder}/gradwired.conf"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    code, said = _run(f"--config={path}", f"--socket-dir={folder}")
    shutil.rmtree(folder)
    equal(code, 2, "exit code")
    contains(said, path, *parts)


def an_unknown_key_stops_the_start_with_its_line():
    _bad_file("[limits]\nclients = 5\nclient = 6\n", ":3:", "client")


def a_bad_value_stops_the_start_with_its_line():
    _bad_file("# a comment\n\n[group]\ncredits = 100\n", ":4:", "credits")
    _bad_file("[limits]\nbuffer_bytes_per_uid = 4X\n", ":2:", "buffer_bytes_per_uid")
    _bad_file("[deadline]\nlate_ms = -1\n", ":2:", "late_ms")
    _bad_file("[log]\nlevel = loud\n", ":2:", "loud")
    _bad_file("[limits]\nclients = 5\nclients = 6\n", ":3:", "line 2")
    _bad_file("[limits]\nthis is no setting\n", ":2:")


def a_missing_file_stops_the_start():
    code, text = _run("--config=/no/such/file")
    equal(code, 2, "exit code")
    contains(text, "/no/such/file", "No such file")


def bad_flags_and_variables_stop_the_start():
    for words, env, parts in ((["--limits.clients=x"], {}, ["limits.clients"]), (["--nonsense=1"], {}, ["nonsense"]),
                              (["nonsense"], {}, ["nonsense"]), (["--limits.clients"], {}, ["limits.clients"]),
                              ([], {"GRADWIRE_LIMITS_CLIENTS": "x"}, ["GRADWIRE_LIMITS_CLIENTS"])):
        code, text = _run("--config=/dev/null", *words, env=env)
        equal(code, 2, f"exit code of {words} {env}")
        contains(text, *parts)


def help_version_and_the_whole_configuration_are_printed():
    code, text = _run("--help")
    equal(code, 0, "exit code")
    contains(text, "limits.clients", "deadline.bucket_s", "--config")
    code, text = _run("--version")
    contains(text, "gradwired ")
    code, text = _run("--config=/dev/null", "--print-config", "--limits.clients=77")
    equal(code, 0, "exit code")
    contains(text, "[limits]", "clients = 77")


def a_reload_applies_what_it_may_and_says_what_it_may_not():
    folder = _folder()
    path = f"{folder}/conf"
    with open(path, "w", encoding="ascii") as file:
        file.write("[limits]\nbuckets_per_uid = 3\n[group]\ncredits = 64\n")
    with Daemon(f"--config={path}", bystanders=False, checks=False) as daemon:
        rank = daemon.group(1)[0]
        rank.ok("alloc b 4096")
        for n in range(3):
            rank.ok(f"bucket k{n} g all_reduce f32 sum 16 b:0 b:0")
        rank.expect("GW_ERR_QUOTA", "bucket k3 g all_reduce f32 sum 16 b:0 b:0")
        with open(path, "w", encoding="ascii") as file:
            file.write("[limits]\nbuckets_per_uid = 5\n[group]\ncredits = 128\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_log("read again")
        contains(daemon.log(), "limits.buckets_per_uid: 3 -> 5", "group.credits: 64 -> 128 (after the next restart)")
        rank.ok("bucket k3 g all_reduce f32 sum 16 b:0 b:0")
        values = {entry["name"]: str(entry["value"]) for entry in daemon.admin_json("config")}
        equal((values["limits.buckets_per_uid"], values["group.credits"]), ("5", "64"), "settings shown")
        daemon.close_ranks()
        daemon.stop()
    shutil.rmtree(folder)


def a_reload_of_a_bad_file_changes_nothing():
    folder = _folder()
    path = f"{folder}/conf"
    with open(path, "w", encoding="ascii") as file:
        file.write("[limits]\nclients = 50\n")
    with Daemon(f"--config={path}") as daemon:
        with open(path, "w", encoding="ascii") as file:
            file.write("[limits]\nclients = 60\nnonsense = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_log("nothing is changed")
        contains(daemon.log(), f"{path}:3:", "nonsense")
        values = {entry["name"]: str(entry["value"]) for entry in daemon.admin_json("config")}
        equal(values["limits.clients"], "50", "the setting")
        daemon.check_bystanders()
    shutil.rmtree(folder)


def deadlines_that_are_reloaded_hold_at_once():
    folder = _folder()
    path = f"{folder}/conf"
    with open(path, "w", encoding="ascii") as file:
        file.write("")
    with Daemon(f"--config={path}") as daemon:
        ranks = daemon.ready(2)
        with open(path, "w", encoding="ascii") as file:
            file.write("[deadline]\nbucket_s = 1\nlate_ms = 100\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_log("read again")
        op = ranks[0].ok("submit k")
        reply = ranks[0].do(f"wait g {op} 8000")
        equal(reply.status, "GW_ERR_DEADLINE", "the wait")
        check(reply.ms < 3000 * SLOW, f"it took {reply.ms} ms")
    shutil.rmtree(folder)


# ---- draining -------------------------------------------------------------------------------------------


def draining_lets_groups_end_their_work():
    with Daemon("--drain.timeout_s=30", bystanders=False, checks=False) as daemon:
        ranks = daemon.ready(2)
        idle = daemon.rank()
        daemon.process.terminate()
        daemon.wait_log("draining")
        late = daemon.rank(connect=False)
        late.expect("GW_ERR_DRAINING", "connect")
        idle.expect("GW_ERR_DRAINING", "id")
        for _ in range(10):
            exchange(ranks)
        check(daemon.is_alive(), "it ended while a group was at work")
        begin = time.monotonic()
        for rank in ranks:
            rank.ok("leave g")
        equal(reap(daemon.process), 0, "exit code")
        check(time.monotonic() - begin < 2 * SLOW, "it took long to end")
        idle.expect("GW_ERR_DAEMON_GONE", "id")
        check(not os.path.exists(daemon.socket) and not os.path.exists(daemon.admin), "socket files are left")


def draining_ends_at_its_timeout():
    with Daemon("--drain.timeout_s=1", bystanders=False, checks=False) as daemon:
        ranks = daemon.ready(2)
        op = ranks[0].ok("submit k")
        ranks[0].send(f"wait g {op} -1")
        begin = time.monotonic()
        daemon.process.terminate()
        reply = ranks[0].recv()
        check(reply.status in ("GW_ERR_ABORTED", "GW_ERR_DAEMON_GONE"), f"the wait: {reply}")
        equal(reap(daemon.process), 0, "exit code")
        took = time.monotonic() - begin
        check(0.9 < took < 3 * SLOW, f"it took {took:.1f} s")


def a_second_signal_ends_it_at_once():
    for number in (signal.SIGTERM, signal.SIGINT):
        with Daemon("--drain.timeout_s=60", bystanders=False, checks=False) as daemon:
            daemon.ready(2)
            daemon.process.send_signal(number)
            daemon.wait_log("draining")
            begin = time.monotonic()
            daemon.process.send_signal(number)
            equal(reap(daemon.process), 0, "exit code")
            check(time.monotonic() - begin < 2 * SLOW, "it took long to end")


def draining_gives_up_groups_that_nobody_has_joined():
    with Daemon("--drain.timeout_s=30", bystanders=False, checks=False) as daemon:
        daemon.rank().ok("id")
        daemon.process.terminate()
        equal(reap(daemon.process, 5), 0, "exit code")


def draining_with_buckets_of_every_state():
    with Daemon("--drain.timeout_s=1", bystanders=False, checks=False) as daemon:
        for n in range(3):
            ranks = daemon.ready(2, count=1 << 20)
            if n == 1:
                ranks[0].ok("submit k")
            if n == 2:
                for rank in ranks:
                    rank.send("loop g k 100000000")
        forming = daemon.rank()
        forming.send(f"join g {forming.ok('id')} 2 0")
        with gw.Client(daemon.socket) as client:
            client.post("BufferCreate", bytes=8192, parts=2)
            daemon.process.terminate()
            equal(reap(daemon.process), 0, "exit code")
        check(not daemon.reports(), "a sanitizer has a report")


if __name__ == "__main__":
    main(globals())
