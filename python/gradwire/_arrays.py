"""What a torch tensor or NumPy array is to the daemon: where it lies, how long it is, and of what

Neither library is imported here: the object says what it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

TYPES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4, "int8": 5, "uint8": 6, "int32": 7, "int64": 8}
TYPE_BYTES = {1: 4, 2: 8, 3: 2, 4: 2, 5: 1, 6: 1, 7: 4, 8: 8}
PAIRS = {"complex64": "float32", "complex128": "float64"}  # sums of these are sums of their parts


class Span(NamedTuple):
    """Dense memory of one type."""

    address: int
    count: int
    type: int
    device: Any  # of torch; None: the host's memory

    @property
    def bytes(self) -> int:
        return self.count * TYPE_BYTES[self.type]


def is_tensor(array: Any) -> bool:
    return hasattr(array, "data_ptr")


def _is_dense(tensor: Any) -> bool:
    """Whether its elements fill one range, in whatever order: channels_last does."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _of_tensor(tensor: Any) -> tuple[int, int, str, Any, bool]:
    if tensor.is_sparse:
        raise TypeError("a sparse tensor cannot be exchanged: use to_dense()")
    return (tensor.data_ptr(), tensor.numel(), str(tensor.dtype).split(".")[1],
            tensor.device if tensor.device.type != "cpu" else None, _is_dense(tensor))


def _of_array(array: Any) -> tuple[int, int, str, Any, bool]:
    interface = getattr(array, "__array_interface__", None)
    if interface is None:
        raise TypeError(f"{type(array).__name__} is neither a torch tensor nor a NumPy array")
    return array.ctypes.data, array.size, array.dtype.name, None, array.flags.c_contiguous or array.flags.f_contiguous


def span(array: Any, reduces: str = "") -> Span:
    """The memory of an array. `reduces`: the operation that it is an operand of, or ""."""
    address, count, name, device, dense = (_of_tensor if is_tensor(array) else _of_array)(array)
    if not dense:
        raise ValueError("the array's elements do not lie side by side: use contiguous(), or numpy.ascontiguousarray()")
    if name in PAIRS and reduces in ("", "sum", "avg"):
        name, count = PAIRS[name], 2 * count
    if name not in TYPES:
        raise TypeError(f"elements of type {name} cannot be exchanged{' with ' + reduces if reduces else ''}: "
                        f"there are {', '.join(TYPES)}" + ("" if reduces in ("", "sum", "avg") else
                                                           "; complex numbers have sum and avg"))
    return Span(address, count, TYPES[name], device)
