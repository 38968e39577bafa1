"""gwwire - packets of gradwired's protocol: encoded, sent, received, decoded

What proto/PROTOCOL.md says in sections 2 and 5. Connection.raw sends any bytes with any descriptors, and
Connection.send any header and body: the tests' means to break every rule. Python 3.11, standard library only.
"""
import array
import os
import select
import socket
import struct
from types import SimpleNamespace

# ---- numbers of the protocol -------------------------------------------------------------------------

MAGIC, MAJOR, MINOR = 0x5747, 1, 1
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
    "Welcome": (2, "minor:u features:u node:b host:t version:t max_buffer_bytes:u max_ranks:u "
                   "stream_bytes:u"),
    "Error": (3, "status:u text:t"),
    "Done": (4, ""),
    "GetUniqueId": (5, ""),
    "UniqueId": (6, "id:b"),
    "GroupJoin": (7, "id:b nranks:u rank:u codec:t rounding:u"),
    "GroupReady": (8, "group:u nranks:u rank:u epoch:u credits:u plan_hash:u"),
    "GroupSplit": (9, "group:u color:s key:s"),
    "GroupAbort": (10, "group:u reason:t"),
    "GroupLeave": (11, "group:u"),
    "BufferCreate": (12, "bytes:u parts:u copied:u device:t why:t"),
    "BufferPart": (13, "index:u kind:u offset:u bytes:u data:b handle_bytes:u"),
    "BufferReady": (14, "buffer:u"),
    "BufferRelease": (15, "buffer:u"),
    "BucketCreate": (16, "group:u name:t collective:u type:u redop:u root:u count:u send_buffer:u send_offset:u "
                         "recv_buffer:u recv_offset:u priority:s codec:u matrices:u no_error_feedback:u"),
    "BucketLayout": (17, "matrix:M"),
    "BucketReady": (18, "bucket:u"),
    "BucketFree": (19, "group:u bucket:u"),
    "Submit": (20, "bucket:u epoch:u sequence:u queue:u notify:u"),
    "Complete": (21, "sequence:u status:u matched_ns:u reduce_ns:u last_rank:u"),
    "AdminRequest": (22, "command:t argument:T"),
    "AdminReply": (23, "json:b last:u"),
    "GroupStateSave": (24, "group:u"),
    "GroupState": (25, "bytes:u"),
    "GroupStateLoad": (26, "group:u bytes:u"),
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
