"""network.py - daemons in network namespaces that a cable joins, for the integration tests"""

import os
import shutil
import subprocess

from ranks import Daemon, Skip, until

WIRE_FDS = 16  # that the first group of several nodes opens for good, at most; see nothing_leaks in test_bootstrap


class Network:
    """Two namespaces, joined by a cable; each has eth0, 10.77.0.1 or .2, and fe80::1 or ::2."""

    def __enter__(self):
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise Skip("network namespaces take root and the program ip")
        self.names = [f"gw{os.getpid()}{side}" for side in "ab"]
        try:
            for name in self.names:
                self._ip("netns", "add", name)
            self._ip("link", "add", "eth0", "netns", self.names[0], "type", "veth",
                     "peer", "eth0", "netns", self.names[1])
            for number, name in enumerate(self.names):
                self._ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
                self._ip("-n", name, "address", "add", f"fe80::{number + 1}/64", "dev", "eth0", "nodad")
            self.mend()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise Skip(f"network namespaces: {error.stderr.strip()}") from None
        return self

    def _ip(self, *words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout

    def daemon(self, side, *flags, **options):
        daemon = Daemon("--wire.transports=tcp", "--wire.devices=eth0", "--wire.port=0", *flags,
                        wrapper=["ip", "netns", "exec", self.names[side]], **options)
        daemon.base_fds += WIRE_FDS
        return daemon

    def limit(self, bit_s):
        """What each side may send."""
        for name in self.names:
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                            str(bit_s), "burst", "128k", "latency", "400ms"], capture_output=True, text=True, check=True)

    def cut(self):
        self._ip("-n", self.names[1], "link", "set", "eth0", "down")

    def mend(self):
        for name in self.names:
            self._ip("-n", name, "link", "set", "eth0", "up")
        for name in self.names:  # the kernel takes up to a second to say so, and UCX asks it
            until(lambda name=name: " UP " in self._ip("-n", name, "-br", "link", "show", "eth0"), "the cable is up")

    def set_mtu(self, size):
        for name in self.names:
            self._ip("-n", name, "link", "set", "eth0", "mtu", str(size))

    def swallow(self, side):
        """What that side sends goes nowhere from now on, while its interface stays up. Skip: there is no tc."""
        if not shutil.which("tc"):
            raise Skip("a queue that lets nothing through takes the program tc")
        result = subprocess.run(["ip", "netns", "exec", self.names[side], "tc", "qdisc", "replace", "dev", "eth0",
                                 "root", "tbf", "rate", "8bit", "burst", "1600", "limit", "3000"],
                                capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Skip(f"tc: {result.stderr.strip()}")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
