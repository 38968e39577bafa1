#!/usr/bin/env python3
"""Packets of released versions: the Python client reads them all, and a daemon serves those that clients send.

usage: BUILD=<build folder> python3 tests/integration/test_golden.py
"""
import glob
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import gwclient as gw  # noqa: E402
from gwtest import ROOT, Checks, Daemon  # noqa: E402


class Golden:
    """One file of proto/golden."""

    def __init__(self, path):
        self.name = os.path.basename(path)[3:-4]
        self.fields, self.data = {}, b""
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.message = lines[0][2:].split(":")[0]
        for line in lines[1:]:
            if line.startswith("# "):
                name, value = line[2:].split(" = ", 1)
                value = json.loads(value)
                self.fields[name] = bytes.fromhex(value["hex"]) if isinstance(value, dict) and "hex" in value else value
            else:
                self.data += bytes.fromhex(line)

    def packet(self):
        return gw.Packet(self.data, [0] * self.data[3], False)


def load(version):
    files = sorted(glob.glob(os.path.join(ROOT, "proto/golden", version, "*.txt")))
    return {golden.name: golden for golden in map(Golden, files)}


def test_reading(checks, version, golden):
    for item in golden.values():
        with checks(f"{version}: {item.name} reads as recorded, and is written the same"):
            packet = item.packet()
            assert packet.name == item.message, packet
            values = {name: value for name, value in vars(packet.fields).items() if value}
            assert values == item.fields, f"{values}, recorded was {item.fields}"
            assert gw.pack(item.message, **item.fields) == packet.body


def test_complete(checks, versions):
    with checks("there is one of every message"):
        assert {item.message for golden in versions.values() for item in golden.values()} == set(gw.MESSAGES)


def test_page(checks):
    """PROTOCOL.md says that the fields in its braces are numbered in their order."""
    with open(os.path.join(ROOT, "proto/PROTOCOL.md"), encoding="utf-8") as file:
        listed = dict(re.findall(r"\*\*(\w+)\*\*\s+\{([^}]*)\}", file.read()))
    with checks("the page lists the fields of every message in their order"):
        for message, (_, spec) in [*gw.MESSAGES.items(), ("Matrix", (0, gw.MATRIX))]:
            if spec:
                assert re.findall(r"`([a-z_]+)`", listed[message]) == re.findall(r"(\w+):", spec), message


def test_serving(checks, golden, daemon):
    page = gw.mmap.PAGESIZE
    with gw.Client(daemon.socket, hello=False) as client, gw.Client(daemon.socket) as peer:
        def serve(name, answer, fds=(), replace=None, wait=True):
            """Sends the recorded bytes; the answer must be the recorded message with the same request."""
            item = golden[name]
            client.raw(item.data.replace(*replace) if replace else item.data, fds)
            if not wait:
                return None
            packet = client.recv()
            assert packet.name == answer and packet.request == item.packet().request, packet
            return packet

        def like(packet, name):
            """The answer has the values that were recorded."""
            got = {key: value for key, value in vars(packet.fields).items() if value}
            assert got == golden[name].fields, f"{got}, recorded was {golden[name].fields}"

        with checks("the daemon serves: Hello"):
            assert serve("hello", "Welcome").fields.minor == min(golden["hello"].fields.get("minor", 0), gw.MINOR)
        with checks("the daemon serves: GetUniqueId and GroupJoin"):
            id_ = serve("get_unique_id", "UniqueId").fields.id
            recorded = golden["unique_id"].fields["id"]
            assert (len(id_), id_[:8], id_[-72:]) == (128, recorded[:8], recorded[-72:])
            request = peer.post_join(id_, 2, 0)
            packet = serve("group_join", "GroupReady", replace=(recorded, id_))
            assert dict(golden["group_ready"].fields, plan_hash=0) == dict(vars(packet.fields), plan_hash=0), packet
            group, other = gw.Group(client, packet), peer.joined(request)
        with checks("the daemon serves: BufferCreate and BufferPart"):
            memory = gw.Memory(2 * page)
            serve("buffer_create", None, wait=False)
            client.send("BufferPart", golden["buffer_create"].packet().request, [memory.fd],
                        gw.pack("BufferPart", kind=1, bytes=4096))
            like(serve("buffer_part", "BufferReady", [memory.fd]), "buffer_ready")
        with checks("the daemon serves: BucketCreate and BucketLayout"):
            serve("bucket_create", None, wait=False)
            like(serve("bucket_layout", "BucketReady"), "bucket_ready")
        with checks("the daemon serves: Submit, with Complete"):
            memory.map[2048:4096] = b"\0\0\x80?" * 512  # 1.0
            buffer = peer.buffer(2048)
            buffer.write([4.0] * 512)
            matrices = golden["bucket_layout"].fields["matrix"]
            bucket = other.bucket("fc1", buffer, redop=gw.AVG, count=512, matrices=matrices)
            group.slots.ready(1)
            group.channel.raw(golden["submit"].data)
            assert other.run(bucket) == group.wait(1) == "GW_OK"
            complete = group.channel.recv()
            assert complete.name == "Complete" and set(golden["complete"].fields) == set(vars(complete.fields))
            assert buffer.read(512) == [2.5] * 512 and memory.map[4096:6144] == b"\0\0\x20\x40" * 512
        with checks("the daemon serves: GroupSplit"):
            request = other.post_split(-1, 0)
            assert serve("group_split", "GroupReady").body == golden["group_ready_none"].packet().body
            assert peer.joined(request) is None
        for name in ("bucket_free", "group_abort", "group_leave", "buffer_release"):
            with checks(f"the daemon serves: {golden[name].message}"):
                assert serve(name, "Done").body == golden["done"].packet().body
        with checks("the daemon refuses in good order: bucket_create_codec"):
            # Later daemons know the codec; the group has been left.
            assert serve("bucket_create_codec", "Error").fields.status == gw.STATUS["GW_ERR_NOT_FOUND"]
        with checks("the daemon refuses in good order: buffer_create_device"):
            serve("buffer_create_device", None, wait=False)
            client.send("BufferPart", golden["buffer_create_device"].packet().request, (),
                        gw.pack("BufferPart", kind=2, bytes=8192, data=bytes(64)))
            packet = client.recv()
            assert packet.name == "Error" and packet.fields.status == gw.STATUS["GW_ERR_UNSUPPORTED"], packet
        with checks("the daemon refuses in good order: buffer_part_ipc"):
            client.send("BufferCreate", 12, (), gw.pack("BufferCreate", bytes=8192, parts=1))
            assert serve("buffer_part_ipc", "Error").fields.status == gw.STATUS["GW_ERR_UNSUPPORTED"]
    with checks("the daemon serves: AdminRequest"), gw.Client(daemon.admin) as admin:
        admin.raw(golden["admin_request"].data)
        assert admin.recv().data == golden["admin_reply"].data


def main():
    checks = Checks()
    versions = {version: load(version) for version in sorted(os.listdir(os.path.join(ROOT, "proto/golden")))
                if version[0].isdigit()}
    golden = versions["1.0"]
    for version, packets in versions.items():
        test_reading(checks, version, packets)
    test_complete(checks, versions)
    test_page(checks)
    with Daemon() as daemon:
        test_serving(checks, golden, daemon)
        with checks("the daemon ends in good order"):
            daemon.stop()
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
