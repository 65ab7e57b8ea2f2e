"""ctypes on the libcupti that the process has already mapped: the few v1 activity functions that are safe late.

Paid for with crashed servers (DESIGN §5): no other activity kind than the three below is ever enabled, no
timestamp callback is registered, ``cuptiSubscribe`` and ``cuptiFinalize`` are never called.
"""

from __future__ import annotations

import ctypes
import os

MEMCPY, MEMSET, CONCURRENT_KERNEL = 1, 2, 10
KINDS = (MEMCPY, MEMSET, CONCURRENT_KERNEL)
"""CUpti_ActivityKind values, in the order in which they are enabled. No other kind, ever."""

_ZEROED_OUT = 5  # CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, uint8_t
_PREFIX = {CONCURRENT_KERNEL: 208, MEMCPY: 88, MEMSET: 88}  # bytes that are the same from CUPTI 12.0 on
_NAMES = {
    0: "SUCCESS",
    1: "INVALID_PARAMETER",
    8: "OUT_OF_MEMORY",
    14: "NOT_COMPATIBLE",
    15: "NOT_INITIALIZED",
    27: "NOT_SUPPORTED",
    35: "INSUFFICIENT_PRIVILEGES",
    39: "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    999: "UNKNOWN",
}


class CuptiError(RuntimeError):
    """A CUPTI function that did not succeed; the text names it and the result."""


def result_name(code: int) -> str:
    """``CUPTI_ERROR_…`` in words, with its number."""
    return f"CUPTI_ERROR_{_NAMES[code]} ({code})" if code in _NAMES else f"CUPTI error {code}"


def expected_strides(version: int) -> dict[int, int]:
    """Bytes of a record by kind for a ``cuptiGetVersion()``. Source: the headers of CUPTI 12.0 to 13.5."""
    if version >= 130400:
        return {CONCURRENT_KERNEL: 248, MEMCPY: 112, MEMSET: 104}
    memcpy = 88 if version < 26 else 96
    if version < 130000:
        kernel = 208
    elif version < 130100:
        kernel = 216
    elif version < 130300:
        kernel = 224
    else:
        kernel = 232
    return {CONCURRENT_KERNEL: kernel, MEMCPY: memcpy, MEMSET: 88}


class Cupti:
    """The mapped libcupti. Make one only in a process whose CUDA is initialised."""

    def __init__(self, path: str) -> None:
        """Take the handle of the copy at ``path``.

        Raises:
            CuptiError: it is not mapped, or lacks a function of the v1 activity interface.
        """
        self.path = path
        try:
            # RTLD_NOLOAD: a second copy would fight with the first one over the driver.
            self._lib = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            lib = self._lib
            for name in ("cuptiGetVersion", "cuptiActivityRegisterCallbacks", "cuptiActivityEnable",
                         "cuptiActivityDisable", "cuptiActivityFlushAll", "cuptiActivityGetNextRecord",
                         "cuptiGetTimestamp", "cuptiActivitySetAttribute", "cuptiActivityGetAttribute"):  # fmt: skip
                getattr(lib, name).restype = ctypes.c_int
        except (OSError, AttributeError) as e:
            raise CuptiError(f"{path}: {e}")
        lib.cuptiActivityRegisterCallbacks.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        lib.cuptiActivityEnable.argtypes = lib.cuptiActivityDisable.argtypes = [ctypes.c_int]
        lib.cuptiActivityGetNextRecord.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        number = ctypes.c_uint32()
        self._check("cuptiGetVersion", lib.cuptiGetVersion(ctypes.byref(number)))
        self.version = int(number.value)
        """``cuptiGetVersion()``: 24 is CUDA 12.6, 130001 is 13.0 update 1."""

    @staticmethod
    def _check(name: str, code: int) -> None:
        if code:
            raise CuptiError(f"{name}: {result_name(code)}")

    def address(self, name: str) -> int | None:
        """Address of an exported function, for the native helper; None if there is none of that name."""
        try:
            return ctypes.cast(getattr(self._lib, name), ctypes.c_void_p).value
        except AttributeError:
            return None

    def stride(self, kind: int) -> int:
        """Bytes from one record of ``kind`` to the next, measured on a buffer of made-up records.

        Raises:
            CuptiError: CUPTI would not walk it, or to a length that no known version has.
        """
        scratch = (ctypes.c_uint64 * 512)(*([kind] * 512))  # a `kind` wherever CUPTI looks for one
        record = ctypes.c_void_p(None)
        seen = []
        for _ in range(2):
            self._check(
                "cuptiActivityGetNextRecord",
                self._lib.cuptiActivityGetNextRecord(scratch, ctypes.sizeof(scratch), ctypes.byref(record)),
            )
            seen.append(record.value or 0)
        n = seen[1] - seen[0]
        if n < _PREFIX[kind] or n > 1024 or n % 8:
            raise CuptiError(f"records of kind {kind} are {n} bytes in CUPTI {self.version}: unknown layout")
        return n

    def strides(self) -> dict[int, int]:
        """``stride`` of each of ``KINDS``."""
        return {kind: self.stride(kind) for kind in KINDS}

    def register(self, request: int, complete: int) -> None:
        """Make the two addresses CUPTI's buffer callbacks; the last caller in the process wins.

        Raises:
            CuptiError
        """
        self._check("cuptiActivityRegisterCallbacks", self._lib.cuptiActivityRegisterCallbacks(request, complete))

    def enable(self) -> None:
        """Enable ``KINDS``. What was enabled is disabled again if one fails.

        Raises:
            CuptiError
        """
        for n, kind in enumerate(KINDS):
            if kind not in (1, 2, 10):  # no assert: it would vanish under python -O
                raise CuptiError(f"kind {kind}: GRAPH_TRACE and API kinds enabled late kill or slow the server")
            code = self._lib.cuptiActivityEnable(kind)
            if code:
                for done in KINDS[:n]:
                    self._lib.cuptiActivityDisable(done)
                self._check(f"cuptiActivityEnable({kind})", code)

    def disable(self) -> None:
        """Disable ``KINDS``; all of them, whatever each says.

        Raises:
            CuptiError: the first that failed.
        """
        codes = [self._lib.cuptiActivityDisable(kind) for kind in reversed(KINDS)]
        for kind, code in zip(reversed(KINDS), codes, strict=True):
            self._check(f"cuptiActivityDisable({kind})", code)

    def buffers_are_zeroed(self, yes: bool) -> None:
        """Tell CUPTI whether its buffers come zeroed, so that it need not clear them on a launching thread.

        CUPTI reads it at each request. It must be off again before anyone else (torch's profiler) hands in buffers.
        An old CUPTI without the attribute clears them itself: no error.
        """
        value = ctypes.c_uint8(1 if yes else 0)
        size = ctypes.c_size_t(1)
        self._lib.cuptiActivitySetAttribute(_ZEROED_OUT, ctypes.byref(size), ctypes.byref(value))
