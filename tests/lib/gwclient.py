"""gwclient - a second client of gradwired, written from proto/PROTOCOL.md

For tests: it shows that the page is enough to write a client from, and it can do what libgradwire never would.
Every level is open: Connection.raw sends any bytes with any descriptors, Connection.send any header and body,
Client.request a message and waits for its answer, and Group and Buffer do the right thing.

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
import select
import socket
import struct
import time
from types import SimpleNamespace

# ---- numbers of the protocol -------------------------------------------------------------------------

MAGIC, MAJOR, MINOR = 0x5747, 1, 0
HEADER = struct.Struct("=HBBHHII")  # magic, major, n_fds, type, reserved, request, body_bytes
BODY_MAX, FDS_MAX = 65536, 8
PACKET_MAX = HEADER.size + BODY_MAX
CONTROL_BYTES = socket.CMSG_SPACE(253 * 4)  # the most that the kernel delivers

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, BARRIER = range(1, 7)
F32, F64, F16, BF16, I8, U8, I32, I64 = range(1, 9)
SUM, AVG, MIN, MAX, PROD = range(1, 6)
TYPE_CODES = {F32: "f", F64: "d", I8: "b", U8: "B", I32: "i", I64: "q"}  # of memoryview.cast

# Message -> its type and fields, which are numbered from 1. Kinds of fields: u unsigned or bool, s signed
# (zigzag), b bytes, t text, T texts, M a list of Matrix.
MESSAGES = {
    "Hello": (1, "minor:u features:u client_name:t"),
    "Welcome": (2, "minor:u features:u node:b host:t version:t max_buffer_bytes:u max_ranks:u"),
    "Error": (3, "status:u text:t"),
    "Done": (4, ""),
    "GetUniqueId": (5, ""),
    "UniqueId": (6, "id:b"),
    "GroupJoin": (7, "id:b nranks:u rank:u"),
    "GroupReady": (8, "group:u nranks:u rank:u epoch:u credits:u plan_hash:u"),
    "GroupSplit": (9, "group:u color:s key:s"),
    "GroupAbort": (10, "group:u reason:t"),
    "GroupLeave": (11, "group:u"),
    "BufferCreate": (12, "bytes:u parts:u copied:u device:t"),
    "BufferPart": (13, "index:u kind:u offset:u bytes:u data:b"),
    "BufferReady": (14, "buffer:u"),
    "BufferRelease": (15, "buffer:u"),
    "BucketCreate": (16, "group:u name:t collective:u type:u redop:u root:u count:u send_buffer:u send_offset:u "
                         "recv_buffer:u recv_offset:u priority:s codec:u matrices:u"),
    "BucketLayout": (17, "matrix:M"),
    "BucketReady": (18, "bucket:u"),
    "BucketFree": (19, "group:u bucket:u"),
    "Submit": (20, "bucket:u epoch:u sequence:u queue:u notify:u"),
    "Complete": (21, "sequence:u status:u matched_ns:u reduce_ns:u last_rank:u"),
    "AdminRequest": (22, "command:t argument:T"),
    "AdminReply": (23, "json:b last:u"),
}
MATRIX = "offset:u rows:u columns:u stride:u"
NAMES = {number: name for name, (number, _) in MESSAGES.items()}
TYPES = {name: number for name, (number, _) in MESSAGES.items()}


def _read_statuses():
    """Codes by name and back, from proto/status.def: "GW_ERR_ABORTED" -> 52."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../proto/status.def")
    codes = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("GW_STATUS("):
                name, code = line[len("GW_STATUS("):].split(",")[:2]
                codes["GW_" + name.strip()] = int(code)
    return codes


STATUS = _read_statuses()
STATUS_NAMES = {code: name for name, code in STATUS.items()}


class Refused(Exception):
    """The daemon answered with an Error."""

    def __init__(self, status, text):
        super().__init__(f"{STATUS_NAMES.get(status, status)}: {text}")
        self.status = STATUS_NAMES.get(status, str(status))
        self.text = text


class Closed(Exception):
    """The connection has ended."""


# ---- protobuf ------------------------------------------------------------------------------------------


def _fields(spec):
    return [(number, *field.split(":")) for number, field in enumerate(spec.split(), 1)]


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tagged(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def _pack_spec(spec, values):
    out, known = b"", set()
    for number, name, kind in _fields(spec):
        known.add(name)
        value = values.get(name)
        if not value:
            continue
        if kind == "u":
            out += varint(number << 3) + varint(int(value))
        elif kind == "s":
            out += varint(number << 3) + varint(value << 1 ^ value >> 63)
        elif kind in "bt":
            out += _tagged(number, value.encode() if isinstance(value, str) else bytes(value))
        elif kind == "T":
            out += b"".join(_tagged(number, item.encode()) for item in value)
        elif kind == "M":
            out += b"".join(_tagged(number, _pack_spec(MATRIX, item)) for item in value)
    if set(values) - known:
        raise TypeError(f"no such field: {set(values) - known}")
    return out


def pack(message, /, **values):
    """The body of a message. Text may also be given as bytes; a matrix is a dictionary."""
    return _pack_spec(MESSAGES[message][1], values)


def _read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
        shift += 7


def _unpack_spec(spec, data):
    fields = {number: (name, kind) for number, name, kind in _fields(spec)}
    empty = {"u": 0, "s": 0, "b": b"", "t": ""}
    out = {name: empty.get(kind, []) for name, kind in fields.values()}
    out = {name: list(value) if value == [] else value for name, value in out.items()}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        name, kind = fields.get(tag >> 3, (None, None))
        if tag & 7 == 0:
            value, at = _read_varint(data, at)
        elif tag & 7 == 2:
            length, at = _read_varint(data, at)
            value, at = data[at:at + length], at + length
            if at > len(data):
                raise ValueError("a field is longer than its message")
        elif tag & 7 in (1, 5):
            at += 8 if tag & 7 == 1 else 4
            continue
        else:
            raise ValueError(f"wire type {tag & 7}")
        if kind == "u":
            out[name] = value
        elif kind == "s":
            out[name] = value >> 1 ^ -(value & 1)
        elif kind == "b":
            out[name] = bytes(value)
        elif kind == "t":
            out[name] = bytes(value).decode(errors="backslashreplace")
        elif kind == "T":
            out[name].append(bytes(value).decode(errors="backslashreplace"))
        elif kind == "M":
            out[name].append(_unpack_spec(MATRIX, value))
    return out


def unpack(name, body):
    """The fields of a message, as a dictionary; those that are absent have their 0."""
    return _unpack_spec(MESSAGES[name][1], bytes(body))


# ---- packets -------------------------------------------------------------------------------------------


def header(type_, request, body_bytes, n_fds=0, *, magic=MAGIC, major=MAJOR, reserved=0):
    return HEADER.pack(magic, major, n_fds, type_, reserved, request, body_bytes)


class Packet:
    """One received packet. `fds` are this process's: take what you need out of it and close() the rest."""

    def __init__(self, data, fds, truncated):
        if len(data) < HEADER.size:
            raise ValueError(f"a packet of {len(data)} bytes")
        (self.magic, self.major, self.n_fds, self.type, self.reserved, self.request,
         self.body_bytes) = HEADER.unpack_from(data)
        self.data, self.body, self.fds, self.truncated = data, data[HEADER.size:], fds, truncated
        if (self.magic, self.major, self.reserved, self.body_bytes) != (MAGIC, MAJOR, 0, len(self.body)):
            raise ValueError(f"a header that is not valid: {data[:HEADER.size].hex()}")
        if self.n_fds != len(fds) and not truncated:
            raise ValueError(f"{len(fds)} descriptors came, the header says {self.n_fds}")
        self.name = NAMES.get(self.type, str(self.type))
        self.fields = SimpleNamespace(**unpack(self.name, self.body))

    def close(self):
        while self.fds:
            os.close(self.fds.pop())

    def __repr__(self):
        return f"{self.name} #{self.request} {vars(self.fields)} +{len(self.fds)} fds"


class Connection:
    """A SOCK_SEQPACKET socket that speaks packets."""

    def __init__(self, sock, timeout=10):
        self.socket = sock
        self.timeout = timeout
        sock.settimeout(timeout)

    def fileno(self):
        return self.socket.fileno()

    def raw(self, data, fds=(), control=None):
        """Sends bytes as they are, as one packet. `control` replaces the control messages made of `fds`."""
        if control is None:
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.socket.sendmsg([data], control, socket.MSG_NOSIGNAL)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed(str(error)) from None

    def send(self, message, request=0, fds=(), body=b"", **wrong):
        """Sends a message, given as name or number. `wrong` has header fields that shall not be as they should:
        magic, major, reserved, n_fds, body_bytes."""
        type_ = TYPES.get(message, message)
        self.raw(header(type_, request, wrong.pop("body_bytes", len(body)), wrong.pop("n_fds", len(fds)), **wrong) +
                 body, fds)

    def recv(self, timeout=None):
        """The next packet. Closed when there will be none, TimeoutError when none comes in time."""
        self.socket.settimeout(self.timeout if timeout is None else timeout)
        try:
            data, control, flags, _ = self.socket.recvmsg(PACKET_MAX, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # once, before what the daemon sent earlier
            return self.recv(timeout)
        fds = array.array("i")
        for level, kind, part in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(part[:len(part) // 4 * 4])
        fds = list(fds)
        if not data:
            raise Closed("end of the connection")
        try:
            return Packet(data, fds, bool(flags & socket.MSG_CTRUNC))
        except ValueError:
            for fd in fds:
                os.close(fd)
            raise

    def is_closed(self, timeout=0):
        """Whether the other end has hung up, within `timeout` seconds."""
        poll = select.poll()
        poll.register(self.socket, 0)  # POLLHUP comes unasked
        return bool(poll.poll(timeout * 1000))

    def recv_all(self, timeout=None):
        """Every packet up to the end of the connection."""
        packets = []
        try:
            while True:
                packets.append(self.recv(timeout))
        except Closed:
            return packets

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


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
