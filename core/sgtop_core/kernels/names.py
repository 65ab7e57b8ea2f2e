"""Kernel names: demangled, short, and resolved once a pointer.

CUPTI gives the address of a mangled C++ name in the server's process. ``NameTable`` collects addresses that are new,
the session asks the agent for them, and what comes back is kept for as long as the server lives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

try:
    import cxxfilt
except ImportError:  # sgtop from a bare tree (bench/gpu): names stay as the compiler wrote them
    cxxfilt = None

from .categories import Categories
from .layout import COPY_KINDS, MEMCPY, MEMSET

MAX_NAMES = 50_000
"""Different kernels remembered; a server has some hundreds."""
MAX_ASKED = 256
"""Addresses asked for in one command."""


def _demangler() -> cxxfilt.BaseDemangler | None:
    if cxxfilt is None:
        return None
    default = cxxfilt.default_demangler
    if isinstance(default, cxxfilt.Demangler):
        return default
    # cxxfilt looks for the C++ runtime with ldconfig or gcc, which slim containers lack; numpy has loaded it anyway.
    try:
        return cxxfilt.Demangler("libc.so.6", "libstdc++.so.6")
    except (OSError, AttributeError):
        return default


_DEMANGLER = _demangler()


def demangle(name: str) -> str:
    """The C++ name in words; what is not mangled (Triton, CuTe DSL), or cannot be read, as it is."""
    if not name.startswith("_Z") or _DEMANGLER is None:
        return name
    try:
        return str(_DEMANGLER.demangle(name))
    except (cxxfilt.Error, ValueError, OSError):
        return name


def _cut_brackets(text: str, opening: str, closing: str) -> str:
    """``text`` without what stands inside brackets, at any depth."""
    out, depth = [], 0
    for c in text:
        if c == opening:
            depth += 1
        elif c == closing and depth:
            depth -= 1
        elif not depth:
            out.append(c)
    return "".join(out)


def _arguments(text: str) -> list[str]:
    """Template arguments of the first ``<…>`` in ``text``, split at its own commas."""
    start = text.find("<")
    if start < 0:
        return []
    out, depth, begin = [], 0, start + 1
    for i in range(start, len(text)):
        c = text[i]
        if c in "<({[":
            depth += 1
        elif c in ">)}]":
            depth -= 1
        if (c == "," and depth == 1) or depth == 0:
            out.append(text[begin:i].strip())
            begin = i + 1
            if depth == 0:
                break
    return out


_LITERAL = re.compile(r"^(\(.*\))?-?[\d.]+[uUlLf]*$|^(true|false)$")
_PLAIN = re.compile(
    r"^(__)?(nv_)?(bfloat16|half|float|double|int|long|unsigned.*|char|bool|c10::.*|at::.*Tensor.*|std::.*|void|signed.*)[\s\d]*\*?$"
)
_GENERIC = re.compile(
    r"^(kernel|elementwise_kernel|vectorized_elementwise_kernel|"
    r"unrolled_elementwise_kernel|elementwise_kernel_with_index|reduce_kernel|index_elementwise_kernel|gemmk1_kernel|"
    r"universal_kernel|DeviceScanKernel|DeviceReduceKernel|static_kernel|device_func|kernel_impl|triton_kernel)$"
)
_WRAPPER = re.compile(r"^(Kernel2?|device_kernel|cutlass_kernel)$")
_SPECIFIC = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DULL = {
    "cutlass", "at", "native", "gemm", "kernel", "Kernel", "void", "std", "array", "char", "detail", "func", "cute",
    "anonymous", "namespace", "const", "GemmUniversal", "collective", "TrivialOffsetCalculator", "unsigned", "int",
    "float", "operator", "lambda", "bool", "long", "double", "device", "c10", "Params", "conv", "type", "nv_bfloat16",
    "thread", "epilogue",
}  # fmt: skip


def _telling(argument: str) -> str:
    """The word of a template argument that says most: the longest that is not scaffolding."""
    words = [w for w in _SPECIFIC.findall(argument) if w not in _DULL]
    functors = [w for w in words if re.search(r"[Ff]unctor|_kernel$|^cutlass_|Op$|_op$|Impl$|_cuda$", w)]
    pool = functors or words
    return max(pool, key=len) if pool else ""


def _wrapped(text: str) -> str:
    """Last part of the name of the type that a wrapper kernel is made of, through types that only enable another."""
    inner = text
    while True:
        types = [a for a in _arguments(inner) if not _LITERAL.match(a)]
        if not types:
            return ""
        head = types[0].partition("<")[0].rpartition("::")[2].strip()
        if not head.startswith("enable_"):
            return head
        inner = types[0]


def short(name: str, width: int = 64) -> str:
    """A name for a table: no return type, no parameters, no template arguments but the one that tells kernels apart.

    ``void cutlass::Kernel2<cutlass_80_tensorop_…>(…Params)`` → ``cutlass_80_tensorop_…``;
    ``void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, …>(…)`` →
    ``vectorized_elementwise_kernel[FillFunctor]``. Source of the problem: nsys' ``:base`` names, which call every
    CUTLASS kernel ``Kernel2``.
    """
    text = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    text = re.sub(r"^(void|auto)\s+", "", text)
    head = _cut_brackets(text, "<", ">")
    head = head.partition("(")[0].strip()
    head = head.removesuffix("::operator")  # a call operator: what matters is whose
    head = head.split(" ")[-1]  # a return type that was spelled out
    base = head.rpartition("::")[2] or head
    if _WRAPPER.match(base):
        base = _wrapped(text) or base
    elif _GENERIC.match(base):
        found = [a for a in _arguments(text) if not _LITERAL.match(a) and not _PLAIN.match(a)]
        word = next((w for w in map(_telling, found) if w), "")
        if word:
            base = f"{base}[{word}]"
    base = base or name
    return base if len(base) <= width else base[: width - 1] + "…"


@dataclass(frozen=True, slots=True)
class Name:
    """What is known of a kernel's name."""

    short: str
    full: str
    category: str


def memory_name(code: int) -> str:
    """Name of a copy or set by its code in ``parse.Records.name``, as nsys spells it."""
    kind, copy = -code >> 8, -code & 0xFF
    if kind == MEMSET:
        return "memset"
    assert kind == MEMCPY
    return f"memcpy {COPY_KINDS.get(copy, 'unknown')}"


class NameTable:
    """Address → name, for one server process."""

    def __init__(self, categories: Categories | None = None) -> None:
        self._categories = categories if categories is not None else Categories()
        self._known: dict[int, Name] = {}
        self._wanted: dict[int, None] = {}
        self.version = 0
        """Goes up when names become known."""

    def see(self, addresses: Iterable[int]) -> None:
        """Note addresses that records carry; new ones are wanted."""
        for a in addresses:
            if a not in self._known and a not in self._wanted and len(self._known) + len(self._wanted) < MAX_NAMES:
                if a < 0:
                    name = memory_name(a)
                    self._known[a] = Name(name, name, "copy")
                else:
                    self._wanted[a] = None

    def ask(self) -> list[int]:
        """Addresses to ask the agent for now; they are asked for once and come again only through ``ask_again``."""
        out = list(self._wanted)[:MAX_ASKED]
        for a in out:
            del self._wanted[a]
            self._known[a] = Name(f"kernel at {a:#x}", f"kernel at {a:#x}", "other")
        return out

    def ask_again(self, addresses: Iterable[int]) -> None:
        """The question got lost (the connection broke): want them again."""
        for a in addresses:
            self._known.pop(a, None)
            self._wanted[a] = None

    def answer(self, names: Mapping[str, str | None]) -> None:
        """The agent's reply: hex address → mangled name, or None where it could not be read."""
        self.version += 1
        for key, mangled in names.items():
            try:
                address = int(key, 16)
            except ValueError:
                continue
            if mangled:
                full = demangle(mangled)
                self._known[address] = Name(short(full), full, self._categories.of(full))

    def get(self, address: int) -> Name:
        """The name, or a placeholder with the address."""
        found = self._known.get(address)
        return found if found is not None else Name(f"kernel at {address:#x}", f"kernel at {address:#x}", "other")
