"""What is put into a target: a few lines for its main thread, and the agent's sources as one block of bytes.

The main thread only looks at the clock and starts a thread (some 50 µs); that thread checks the block's hash, loads the
agent from memory and starts it. The lines do nothing when they run after their deadline, and never raise: an exception
in a pending call would surface in the middle of the scheduler.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import marshal
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import pending

MAX_BLOB = 4 * 1024 * 1024
FAILED, LOADING = 3, 1
"""First byte of the page's status area: 0 the main thread has not come to it, LOADING the thread runs, FAILED and a
text follows. Second byte: 1 as soon as the tracer has let go (its call's stack stands in
the page, which goes away then)."""

# What the main thread runs: one expression, so that no name is left in __main__; the thread's own lines are a string to
# it, which the thread compiles.
_MAIN = (
    "try:(lambda t,h:t.monotonic_ns()<{deadline}and h.start_new_thread(exec,({thread!r},{{'__name__':'_sgtop_boot'}})))"
    "(__import__('time'),__import__('_thread'))\nexcept BaseException:pass\n"
)

_THREAD = """
try:
 import sys,time,hashlib,marshal,zlib
 D={deadline}
{where}
 try:
  b=get()
  if hashlib.sha256(b).hexdigest()!={digest!r}:raise ValueError('the agent arrived damaged')
  d=marshal.loads(zlib.decompress(b))
  g={{'__name__':'_sgtop_loader'}}
  exec(compile(d['loader'],'<sgtop loader>','exec'),g)
  g['start'](d,dict({opts!r},deadline_ns=D))
 except BaseException as e:
  say(('%s: %s'%(type(e).__name__,e)).encode()[:240])
  time.sleep(1)
 finally:
  done()
except BaseException:pass
"""

# Memory is read, reported to and given back with ctypes, which every torch process has loaded.
_PAGE = """ import ctypes as c
 a={place};st=a+{status_at};m=c.memmove
 m(st,b'\\x01',1)
 get=lambda:c.string_at(a+{blob_at},{blob})
 say=lambda t:m(st+2,t,len(t))and m(st,b'\\x03',1)
 def done():
  for _ in range(2000):
   if c.string_at(st+1,1)==b'\\x01':
    u=c.CDLL(None).munmap;u.argtypes=[c.c_void_p,c.c_size_t];u(a,{size});break
   time.sleep(0.001)"""

_FILE = """ p={path!r}
 get=lambda:open(p,'rb').read()
 say=lambda t:open(p+'.error','wb').write(t)
 done=lambda:None"""


@dataclass(frozen=True)
class Agent:
    """The agent's package as one block. ``digest`` identifies the version: two equal ones share a running agent."""

    blob: bytes
    digest: str
    alias: str
    source_hash: str


def package_files(package: Path) -> dict[str, bytes]:
    """Path in the package → bytes: sources and native helpers.

    Raises:
        OSError: no such folder. SyntaxError: a source that Python 3.10 would not take.
    """
    files = {}
    for path in sorted(package.rglob("*")):
        if path.suffix not in (".py", ".so") or "__pycache__" in path.parts:
            continue
        data = path.read_bytes()
        if path.suffix == ".py":
            ast.parse(data, str(path), feature_version=(3, 10))
        files[path.relative_to(package).as_posix()] = data
    if "boot.py" not in files or "__init__.py" not in files:
        raise FileNotFoundError(f"{package} holds no agent: boot.py is missing")
    return files


def agent_folder() -> Path:
    """Where the agent's sources stand in this installation."""
    spec = importlib.util.find_spec("sgtop_agent")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package sgtop_agent is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@lru_cache(maxsize=8)
def build(package: Path, python: tuple[int, int]) -> Agent:
    """The block for targets that run Python ``python``.

    Where it is sgtop's own version, code objects travel ready-made beside the sources: compiling holds the GIL of the
    target for milliseconds a module, unmarshalling for a tenth of that.

    Raises:
        OSError, SyntaxError: see ``package_files``. ValueError: larger than MAX_BLOB.
    """
    files = package_files(package)
    sha = hashlib.sha256()
    for name, data in files.items():
        sha.update(f"{name}:{len(data)}\n".encode())
        sha.update(data)
    source_hash = sha.hexdigest()[:16]
    alias = f"_sgtop_agent_{source_hash}"
    codes = {}
    if python == sys.version_info[:2]:
        for name, data in files.items():
            if name.endswith(".py"):
                code = compile(data, f"<sgtop>/{alias}/{name}", "exec", dont_inherit=True, optimize=2)
                codes[name] = marshal.dumps(code)
    block: Mapping[str, Any] = {
        "loader": Path(__file__).with_name("loader.py").read_text(encoding="utf-8"),
        "alias": alias,
        "files": files,
        "codes": codes,
        "magic": importlib.util.MAGIC_NUMBER,
    }
    blob = zlib.compress(marshal.dumps(dict(block), 2), 6)
    if len(blob) > MAX_BLOB:
        raise ValueError(f"the agent is {len(blob)} bytes, more than {MAX_BLOB}")
    return Agent(blob, hashlib.sha256(blob).hexdigest(), alias, source_hash)


def _bootstrap(deadline: str, where: str, agent: Agent, opts: Mapping[str, Any]) -> bytes:
    opts = {**opts, "hash": agent.source_hash, "alias": agent.alias, "page": None}
    thread = _THREAD.format(deadline=deadline, where=where, digest=agent.digest, opts=opts)
    compile(thread, "<sgtop>", "exec")
    source = _MAIN.format(deadline=deadline + " ", thread=thread)
    compile(source, "<sgtop>", "exec")
    return source.encode()


def for_page(agent: Agent, opts: Mapping[str, Any]) -> pending.Page:
    """Source and block for an anonymous page of the target; address and deadline are put in when it is written."""
    layout = pending.Page(b"", agent.blob)
    while True:  # the offsets stand in the source and depend on its length
        where = _PAGE.format(
            place=pending.PLACE.decode(),
            size=layout.size,
            status_at=layout.status_at,
            blob_at=layout.blob_at,
            blob=len(agent.blob),
        )
        # The placeholders are no expressions; any number of their length is, so the check compiles that.
        source = _bootstrap(_LATER, where.replace(pending.PLACE.decode(), _ANY), agent, opts)
        source = source.replace(_ANY.encode(), pending.PLACE).replace(_LATER.encode(), pending.DEADLINE)
        page = pending.Page(source, agent.blob)
        if (page.size, page.status_at, page.blob_at) == (layout.size, layout.status_at, layout.blob_at):
            return page
        layout = page


_ANY = "0x" + "5" * (len(pending.PLACE) - 2)
_LATER = "0x" + "6" * (len(pending.DEADLINE) - 2)


def for_file(agent: Agent, opts: Mapping[str, Any], deadline_ns: int, blob_path: str) -> bytes:
    """Source that takes the block from ``blob_path``, a path in the target's eyes (PEP 768)."""
    return _bootstrap(str(deadline_ns), _FILE.format(path=blob_path), agent, opts)
