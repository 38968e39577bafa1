"""libgradwire through ctypes: where it is, and what its functions take"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_ubyte, c_void_p
from typing import Any

from . import errors

NAME = "libgradwire.so.0"
FOLDERS = ("/usr/local/lib", "/usr/lib", "/usr/lib64")
OK, IN_PROGRESS, BUSY = 0, 1, 21


class UniqueId(Structure):
    _fields_ = [("bytes", c_ubyte * 128)]


class Options(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("socket_path", c_char_p), ("client_name", c_char_p)]


class GroupConfig(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("codec", c_char_p), ("rounding", c_int)]


class Report(Structure):
    _fields_ = [("status", c_int), ("last_completed", c_uint64), ("failed_ops", c_uint64), ("epoch", c_uint32),
                ("message", c_char * 512)]


class Matrix(Structure):
    _fields_ = [("offset", c_uint64), ("rows", c_uint64), ("columns", c_uint64), ("stride", c_uint64)]


class BucketDesc(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("name", c_char_p), ("collective", c_int), ("type", c_int),
                ("redop", c_int), ("root", c_int), ("count", c_uint64), ("send", c_void_p), ("recv", c_void_p),
                ("priority", c_int), ("matrices", POINTER(Matrix)), ("n_matrices", c_size_t), ("codec", c_int),
                ("no_error_feedback", c_int)]


# Arguments of what is called; all but these return a status.
_STATUSES = {
    "gw_connect": [POINTER(Options), POINTER(c_void_p)],
    "gw_get_unique_id": [c_void_p, POINTER(UniqueId)],
    "gw_group_init_config": [c_void_p, POINTER(UniqueId), c_int, c_int, POINTER(GroupConfig), POINTER(c_void_p)],
    "gw_group_split": [c_void_p, c_int, c_int, POINTER(c_void_p)],
    "gw_group_check": [c_void_p, POINTER(Report)],
    "gw_group_abort": [c_void_p, c_char_p],
    "gw_group_state_save": [c_void_p, POINTER(c_void_p), POINTER(c_size_t)],
    "gw_group_state_load": [c_void_p, c_char_p, c_size_t],
    "gw_buffer_alloc": [c_void_p, c_uint64, POINTER(c_void_p)],
    "gw_buffer_register": [c_void_p, c_void_p, c_uint64, POINTER(c_void_p)],
    "gw_buffer_release": [c_void_p],
    "gw_bucket_create": [c_void_p, POINTER(BucketDesc), POINTER(c_void_p)],
    "gw_bucket_free": [c_void_p],
    "gw_submit": [c_void_p, c_void_p, POINTER(c_uint64)],
    "gw_stream_wait": [c_void_p, c_uint64, c_void_p],
    "gw_wait": [c_void_p, c_uint64, c_int64],
    "gw_test": [c_void_p, c_uint64],
}
_OTHERS = {
    "gw_status_name": ([c_int], c_char_p),
    "gw_last_error": ([], c_char_p),
    "gw_version": ([], c_char_p),
    "gw_disconnect": ([c_void_p], None),
    "gw_group_free": ([c_void_p], None),
    "gw_group_state_free": ([c_void_p], None),
    "gw_group_rank": ([c_void_p], c_int),
    "gw_group_size": ([c_void_p], c_int),
    "gw_buffer_data": ([c_void_p], c_void_p),
}


def _candidates() -> list[str]:
    named = os.environ.get("GRADWIRE_LIBRARY")
    if named:
        return [named]
    return [NAME, *filter(None, [ctypes.util.find_library("gradwire")]), *(os.path.join(f, NAME) for f in FOLDERS)]


def _load() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(str(error) if path in str(error) else f"{path}: {error}")
    raise errors.Error("GW_ERR_NOT_FOUND", "libgradwire was not found; tried " + "; ".join(tried) +
                       "; install gradwire, or name the file in GRADWIRE_LIBRARY (after make: build/libgradwire.so.0)")


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    every = {**{name: (arguments, c_int) for name, arguments in _STATUSES.items()}, **_OTHERS}
    for name, (arguments, result) in every.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise errors.Error("GW_ERR_VERSION", f"{library._name} is not the libgradwire of this package: it has no "
                               f"{name}; update the older of the two, or name the right file in GRADWIRE_LIBRARY") from None
        function.argtypes, function.restype = arguments, result
    return library


_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The library, loaded by the first call."""
    global _library
    if _library is None:
        _library = _declare(_load())
    return _library


def error(code: int) -> errors.Error:
    """The exception for the status that a call of this thread has just returned."""
    lib = library()
    return errors.of(code, lib.gw_status_name(code).decode(), (lib.gw_last_error() or b"").decode(errors="replace"))


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a status; raises unless it is GW_OK."""
    code = getattr(library(), name)(*arguments)
    if code != OK:
        raise error(code)


def out(name: str, *arguments: Any) -> int:
    """The same for one whose last parameter gives a handle or a number."""
    result = c_uint64() if name == "gw_submit" else c_void_p()
    call(name, *arguments, byref(result))
    return result.value or 0
