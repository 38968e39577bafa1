"""gwclient - a second client of gradwired, written from proto/PROTOCOL.md

For tests: it shows that the page is enough to write a client from, and it can do what libgradwire never would.
Every level is open: Connection.raw sends any bytes with any descriptors, Connection.send any header and body (both
in gwwire, which this module passes on), Client.request a message and waits for its answer, and Group and Buffer do
the right thing.

    with Client(path) as a, Client(path) as b:       # both say Hello
        groups = join([a, b])
        buffers = [c.buffer(4096) for c in (a, b)]
        buckets = [g.bucket("x", buf, count=1024) for g, buf in zip(groups, buffers)]
        ops = [g.submit(bucket) for g, bucket in zip(groups, buckets)]
        statuses = [g.wait(op) for g, op in zip(groups, ops)]

Nothing here waits for more than `timeout` seconds, 10 if not said. Python 3.11, standard library only.
"""
import array
import ctypes
import fcntl
import mmap
import os
import platform
import socket
import time

from gwwire import *  # noqa: F401,F403
from gwwire import ALL_REDUCE, F32, MINOR, STATUS, STATUS_NAMES, SUM, TYPE_CODES, Closed, Connection, Refused, pack

# ---- sessions ------------------------------------------------------------------------------------------


class Client(Connection):
    """A session. With hello=False nothing is sent: for tests of what may come first."""

    def __init__(self, path, name="gwclient", hello=True, timeout=10):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            raise
        super().__init__(sock, timeout)
        self.last_request = 0
        self.answers = {}  # that came while another was waited for
        self.welcome = None
        self.groups = []
        if hello:
            try:
                self.hello(name)
            except Exception:
                sock.close()
                raise

    def hello(self, name="gwclient", minor=MINOR, features=0):
        self.welcome = self.request("Hello", minor=minor, features=features, client_name=name).fields
        return self.welcome

    def post(self, message, /, fds=(), request=None, **fields):
        """Sends a request and returns its number, to be given to answer(). If the daemon has disconnected, that is
        where its last word is heard."""
        if request is None:
            self.last_request += 1
            request = self.last_request
        try:
            self.send(message, request, fds, pack(message, **fields))
        except Closed:
            pass
        return request

    def answer(self, request, timeout=None):
        """The packet that answers a request. Refused when it is an Error, or one that answers no request came."""
        while request not in self.answers:
            packet = self.recv(timeout)
            self.answers[packet.request] = packet
            if packet.name == "Error" and packet.request == 0:
                raise Refused(packet.fields.status, packet.fields.text)
        packet = self.answers.pop(request)
        if packet.name == "Error":
            raise Refused(packet.fields.status, packet.fields.text)
        return packet

    def request(self, message, /, fds=(), **fields):
        return self.answer(self.post(message, fds, **fields))

    # -- groups

    def unique_id(self):
        return self.request("GetUniqueId").fields.id

    def post_join(self, id_, nranks, rank):
        """The first half of a join, which ends when all ranks have come: give the number to joined()."""
        return self.post("GroupJoin", id=id_, nranks=nranks, rank=rank)

    def joined(self, request, timeout=None):
        """The group of a join or split; None for a negative color."""
        packet = self.answer(request, timeout)
        if packet.fields.group == 0:
            return None
        group = Group(self, packet)
        self.groups.append(group)
        return group

    # -- buffers

    def buffer(self, n_bytes, parts=1, **options):
        """A buffer of `parts` memfds of about the same size."""
        page = mmap.PAGESIZE
        each = -(-n_bytes // parts // page) * page if parts > 1 else n_bytes
        sizes = [each] * (parts - 1) + [n_bytes - each * (parts - 1)]
        memories = [Memory(size) for size in sizes]
        request = self.post("BufferCreate", bytes=n_bytes, parts=parts, **options)
        for index, memory in enumerate(memories):
            self.post("BufferPart", [memory.fd], request, index=index, kind=1, bytes=memory.bytes)
        try:
            return Buffer(self, self.answer(request).fields.buffer, memories)
        finally:
            for memory in memories:
                memory.close_fd()

    # -- admin

    def admin(self, command, *arguments):
        """The JSON text that an admin command answers with."""
        request = self.post("AdminRequest", command=command, argument=arguments)
        pieces = []
        while not pieces or not pieces[-1].last:
            pieces.append(self.answer(request).fields)
        return b"".join(piece.json for piece in pieces).decode()

    def close(self):
        for packet in self.answers.values():
            packet.close()
        for group in self.groups:
            group.channel.close()
        super().close()


def join(clients, id_=None):
    """Makes one group, a rank for each of `clients` in their order (one may be there several times)."""
    id_ = id_ or clients[0].unique_id()
    requests = [client.post_join(id_, len(clients), rank) for rank, client in enumerate(clients)]
    return [client.joined(request) for client, request in zip(clients, requests)]


def split(groups, colors, keys):
    requests = [group.post_split(color, key) for group, color, key in zip(groups, colors, keys)]
    return [group.client.joined(request) for group, request in zip(groups, requests)]


# ---- memory --------------------------------------------------------------------------------------------

F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1, 2, 4


class Memory:
    """A memfd that the daemon takes; arguments make it one that it does not."""

    def __init__(self, n_bytes, seals=F_SEAL_SHRINK | F_SEAL_GROW, allocate=True):
        self.bytes = n_bytes
        self.fd = os.memfd_create("gwclient", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, n_bytes)
        if allocate:
            os.posix_fallocate(self.fd, 0, n_bytes)
        if seals:
            fcntl.fcntl(self.fd, F_ADD_SEALS, seals)
        self.map = mmap.mmap(self.fd, n_bytes)

    def close_fd(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class Buffer:
    """Registered memory. Values are read and written across its parts."""

    def __init__(self, client, handle, memories):
        self.client, self.handle, self.memories = client, handle, memories
        self.bytes = sum(memory.bytes for memory in memories)

    def _pieces(self, offset, n_bytes):
        for memory in self.memories:
            if offset < memory.bytes and n_bytes > 0:
                piece = min(n_bytes, memory.bytes - offset)
                yield memory.map, offset, piece
                n_bytes -= piece
                offset = 0
            else:
                offset -= memory.bytes

    def write(self, values, type_=F32, offset=0):
        data = array.array(TYPE_CODES[type_], values).tobytes()
        at = 0
        for target, start, length in self._pieces(offset, len(data)):
            target[start:start + length] = data[at:at + length]
            at += length

    def read(self, count, type_=F32, offset=0):
        values = array.array(TYPE_CODES[type_])
        n_bytes = count * values.itemsize
        values.frombytes(b"".join(m[start:start + length] for m, start, length in self._pieces(offset, n_bytes)))
        return list(values)

    def release(self):
        self.client.request("BufferRelease", buffer=self.handle)


# ---- groups --------------------------------------------------------------------------------------------

SLOTS_MAGIC, SLOTS_VERSION, SLOTS_HEADER_BYTES, SLOT_BYTES = 0x54535747, 1, 576, 64
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_FUTEX_WAIT = 0
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Slots:
    """The shared words. Python has no fences: on x86 aligned words need none, elsewhere the system calls between
    writing and reading do it."""

    def __init__(self, fd, credits):
        self.credits = credits
        self.bytes = SLOTS_HEADER_BYTES + credits * SLOT_BYTES
        self.map = mmap.mmap(fd, self.bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.words = memoryview(self.map).cast("I")
        self.longs = memoryview(self.map)[16:32].cast("Q")
        if (self.words[0], self.words[1], self.words[2]) != (SLOTS_MAGIC, SLOTS_VERSION, credits):
            raise ValueError("these are no slots of version 1")

    epoch = property(lambda self: self.words[3])
    last_completed = property(lambda self: self.longs[0])
    failed_ops = property(lambda self: self.longs[1])
    status = property(lambda self: self.words[8])

    @property
    def message(self):
        return bytes(self.map[64:SLOTS_HEADER_BYTES]).split(b"\0")[0].decode(errors="backslashreplace")

    def _at(self, sequence):
        return (SLOTS_HEADER_BYTES + sequence % self.credits * SLOT_BYTES) // 4

    def ready(self, sequence):
        self.words[self._at(sequence)] = sequence & 0xffffffff

    def done_word(self, sequence):
        return self.words[self._at(sequence) + 1]

    def op_status(self, sequence):
        return self.words[self._at(sequence) + 2]

    def reached(self, sequence):
        return (self.done_word(sequence) - sequence) & 0xffffffff < 1 << 31

    def sleep(self, sequence, word, seconds):
        """FUTEX_WAIT on `done` while it is `word`."""
        if _FUTEX is None:
            time.sleep(0.001)
            return
        timeout = _Timespec(int(seconds), int(seconds % 1 * 1e9))
        _libc.syscall(_FUTEX, ctypes.c_void_p(self.address + 4 * (self._at(sequence) + 1)), _FUTEX_WAIT,
                      ctypes.c_uint32(word), ctypes.byref(timeout), None, 0)


class Group:
    """A rank's membership."""

    def __init__(self, client, packet):
        ready = packet.fields
        self.client, self.handle, self.rank, self.nranks = client, ready.group, ready.rank, ready.nranks
        self.epoch, self.credits, self.plan_hash = ready.epoch, ready.credits, ready.plan_hash
        self.sequence = 0
        slots_fd, channel_fd = packet.fds
        packet.fds.clear()
        self.channel = Connection(socket.socket(fileno=channel_fd), client.timeout)
        try:
            self.slots = Slots(slots_fd, ready.credits)
        finally:
            os.close(slots_fd)

    def post_split(self, color, key):
        return self.client.post("GroupSplit", group=self.handle, color=color, key=key)

    def abort(self, reason=""):
        self.client.request("GroupAbort", group=self.handle, reason=reason)

    def leave(self):
        self.client.request("GroupLeave", group=self.handle)
        self.channel.close()

    # -- state

    def save_state(self):
        """What this rank must keep, as bytes."""
        size = self.client.request("GroupStateSave", group=self.handle).fields.bytes
        memory = Memory(size)
        try:
            self.client.request("GroupStateSave", [memory.fd], group=self.handle)
            return memory.map[:size]
        finally:
            memory.close_fd()

    def load_state(self, state):
        memory = Memory(len(state))
        try:
            memory.map[:] = state
            self.client.request("GroupStateLoad", [memory.fd], group=self.handle, bytes=len(state))
        finally:
            memory.close_fd()

    # -- buckets

    def bucket(self, name, send=None, recv=None, *, collective=ALL_REDUCE, type=F32, redop=SUM, matrices=(), **fields):
        """Declares a bucket and returns its handle. `send` and `recv` are Buffers; recv is send where not given."""
        recv = recv or send
        request = self.client.post("BucketCreate", group=self.handle, name=name, collective=collective, type=type,
                                   redop=redop, send_buffer=send.handle if send else 0,
                                   recv_buffer=recv.handle if recv else 0, matrices=len(matrices), **fields)
        piece = 1000  # of at most 44 bytes each
        for at in range(0, len(matrices), piece):
            self.client.post("BucketLayout", (), request, matrix=matrices[at:at + piece])
        return self.client.answer(request).fields.bucket

    def free_bucket(self, bucket):
        self.client.request("BucketFree", group=self.handle, bucket=bucket)

    # -- operations

    def submit(self, bucket, *, ready=True, notify=False, queue=0, sequence=None, epoch=None):
        """Submits and returns the sequence. ready=False: the input comes later, see Slots.ready. `sequence` and
        `epoch` replace the right ones."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        if ready:
            self.slots.ready(sequence)
        self.channel.send("Submit", 0, (), pack("Submit", bucket=bucket, epoch=self.epoch if epoch is None else epoch,
                                                sequence=sequence, queue=queue, notify=notify))
        return sequence

    def wait(self, sequence, timeout=None):
        """The name of the status that an operation ended with. TimeoutError when it did not end in time."""
        end = time.monotonic() + (self.client.timeout if timeout is None else timeout)
        last_look = False
        while True:
            word = self.slots.done_word(sequence)
            if self.slots.reached(sequence):
                return STATUS_NAMES[self._status(sequence)]
            if last_look:
                return STATUS_NAMES[self.slots.status or STATUS["GW_ERR_DAEMON_GONE"]]
            if self.slots.status or self.channel.is_closed():
                last_look = True
                continue
            if time.monotonic() > end:
                raise TimeoutError(f"operation {sequence} has not ended; done is {word}")
            self.slots.sleep(sequence, word, 0.05)

    def _status(self, sequence):
        if self.slots.done_word(sequence) != sequence & 0xffffffff and sequence <= self.slots.last_completed and \
                self.slots.failed_ops == 0:
            return 0
        return self.slots.op_status(sequence)

    def run(self, bucket, **options):
        """Submits and waits: for ranks in processes or threads of their own."""
        return self.wait(self.submit(bucket, **options))
