"""test_kill.py - kill -9 of trainers and of the daemon in the middle of large buckets, on a GPU that is full of work

Whoever is left has a named error, its streams and the GPU back within 2 s. Ends within 4 minutes.
"""

import time

from gpu import (SOON_S, Daemon, Rank, Trainers, check, check_given_back, contains, device_states, equal, exchange,
                 held_mib, join, main, prepare, until)

FOR_EVER = 1000000  # steps
START_S = 60  # for contexts


def _dies_within(trainers, killed, status, *parts):
    """The survivors' errors, and that they go on."""
    for trainer in trainers:
        when, text = trainer.wait_word("FAILED", 10)
        contains(text, status, *parts)
        freed = trainer.wait_word("FREED", 10)[0]
        usable = trainer.wait_word("USABLE", 10)[0]
        print(f"# rank {trainer.rank}: error after {(when - killed) * 1e3:.1f} ms, streams free after "
              f"{(freed - killed) * 1e3:.1f} ms, GPU used again after {(usable - killed) * 1e3:.0f} ms", flush=True)
        check(freed - killed < SOON_S, f"error after {when - killed:.2f} s, streams free after {freed - killed:.2f} s")
        trainer.ends_well()


def _serves_on(daemon):
    """No device has failed, and a new group under the same load gets right results."""
    daemon.assert_alive()
    check("failed" not in device_states(daemon).values(), f"a device has failed: {device_states(daemon)}")
    with Trainers(daemon, 2, "load", 100) as trainers:
        for trainer in trainers:
            trainer.wait_word("DONE", START_S)
            trainer.ends_well()


def _kill_one(words, victim, word, delays):
    """`word`: what the trainers must have said before."""
    with Daemon() as daemon:
        for delay in delays:
            with Trainers(daemon, 2, *words) as trainers:
                for trainer in trainers:
                    trainer.wait_word(word, START_S)
                contains(trainers[0].wait_word("PATH", 1)[1], "ipc")
                time.sleep(delay)
                trainers[victim].process.kill()
                killed = time.monotonic()
                _dies_within([trainers[1 - victim]], killed, "GW_ERR_RANK_DIED", f"rank {victim}",
                             f"pid {trainers[victim].pid}")
            daemon.check_bystanders()
        _serves_on(daemon)
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the trainers have gone")
        check_given_back(daemon)


def a_trainer_is_killed_in_the_middle_of_large_buckets():
    _kill_one(("load", FOR_EVER), 1, "READY", (0.0, 0.003, 0.0071, 0.011))


def a_trainer_is_killed_whose_streams_wait():
    _kill_one(("hold", 20), 0, "HOLDING", (0.1,))


def a_trainer_is_killed_that_others_wait_for():
    _kill_one(("hold", 20), 1, "HOLDING", (0.1,))


def all_trainers_are_killed_at_once():
    with Daemon() as daemon:
        with Trainers(daemon, 2, "load", FOR_EVER) as trainers:
            for trainer in trainers:
                trainer.wait_word("READY", START_S)
            for trainer in trainers:
                trainer.process.kill()
        daemon.check_bystanders()
        _serves_on(daemon)
        until(lambda: daemon.admin_json("status")["clients"] == 3, "the trainers have gone")
        check_given_back(daemon)


def _kill_daemon(words, word):
    with Daemon(bystanders=False, checks=False) as daemon:
        pid = daemon.pid
        with Trainers(daemon, 2, *words) as trainers:
            for trainer in trainers:
                trainer.wait_word(word, START_S)
            time.sleep(0.0071)
            daemon.process.kill()
            killed = time.monotonic()
            _dies_within(trainers, killed, "GW_ERR_DAEMON_GONE")
        daemon.process.wait()
        until(lambda: held_mib(pid) in (None, 0), "the daemon's GPU memory is free")
        daemon.restart()
        ranks = [Rank(daemon.socket, memory=f"device:{r}") for r in range(2)]
        daemon.ranks += ranks
        join(ranks)
        prepare(ranks, count=1 << 20)
        exchange(ranks)
        for rank in ranks:
            equal(rank.ok(f"expect b f32 {1 << 20} 3"), "0", "wrong elements with a new daemon, in fresh processes")


def the_daemon_is_killed_in_the_middle_of_large_buckets():
    _kill_daemon(("load", FOR_EVER), "READY")


def the_daemon_is_killed_while_streams_wait():
    _kill_daemon(("hold", 20), "HOLDING")


def nobody_is_killed():
    """The negative control: without a death no group fails under this load."""
    with Daemon() as daemon:
        with Trainers(daemon, 2, "load", 200) as trainers:
            for trainer in trainers:
                trainer.wait_word("DONE", START_S)
                check(not any(line[0] == "FAILED" for line in trainer.lines), trainer.said())
                trainer.ends_well()


if __name__ == "__main__":
    main(globals(), 120)
