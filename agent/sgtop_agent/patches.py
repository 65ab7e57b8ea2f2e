"""Patching methods of living objects, and undoing it without a trace.

A hook replaces a method on the *instance*; undoing deletes the instance attribute, and only if it is still
ours. An object whose class has slots cannot take an instance attribute: there a proxy takes the object's
place on its holder, and the object goes back on undo. All of this happens on the agent's thread; each
replacement is one attribute store, so the main thread sees either the old method or the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Fail = Callable[[BaseException], None]
Make = Callable[[Any, Fail], Any]
"""From the original bound method and the hook's own ``fail`` to the replacement."""

_MISSING = object()


class Proxy:
    """Stands in for an object with slots: its own methods first, everything else from the object."""

    def __init__(self, target: Any) -> None:
        self.__dict__["_sgtop_target"] = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sgtop_target"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_sgtop_target"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_sgtop_target"], name)

    @property  # type: ignore[misc]  # isinstance() must go on saying what it said; typeshed has it writable
    def __class__(self) -> type:
        return type(self.__dict__["_sgtop_target"])


class _Patch:
    __slots__ = ("before", "hook", "name", "owner", "wrapper")

    def __init__(self, hook: str, owner: Any, name: str, wrapper: Any, before: Any) -> None:
        self.hook, self.owner, self.name, self.wrapper, self.before = hook, owner, name, wrapper, before


class Patches:
    """The hooks that are on.

    ``off``: hook → why it switched itself off, in words. ``foreign``: hooks that somebody else has wrapped
    since; they stay in place, as a call through them still ends in the original.
    """

    def __init__(self) -> None:
        self.off: dict[str, str] = {}
        self.foreign: list[str] = []
        self.names: set[str] = set()
        self._patches: list[_Patch] = []
        self._proxies: dict[int, tuple[Proxy, Any, Any, str]] = {}

    def method(self, hook: str, holder: Any, path: str, make: Make) -> bool:
        """Replace the method at ``path`` below ``holder`` (``run_batch``, ``request_receiver.recv_requests``).

        Returns whether there was such a method and it is hooked now.
        """
        try:
            *way, name = path.split(".")
            owner = holder
            for step in way:
                holder, owner = owner, getattr(owner, step, None)
            target = self._proxies[id(owner)][1] if id(owner) in self._proxies else owner
            original = getattr(target, name, None)
            if owner is None or not callable(original):
                return False
            if any(p.owner is owner and p.name == name for p in self._patches):
                return True
            if not hasattr(target, "__dict__"):
                if not way:
                    return False
                owner = self._proxy(holder, way[-1], target)
            before = vars(owner).get(name, _MISSING)

            def fail(error: BaseException) -> None:
                try:
                    self.fail(hook, error)
                except Exception:
                    pass  # the agent is gone and a call was on its way into its hook: SGLang goes on all the same

            wrapper = make(original, fail)
            patch = _Patch(hook, owner, name, wrapper, before)
            self._patches.append(patch)
            self._store(owner, name, wrapper)
            self.names.add(hook)
            return True
        except Exception as error:
            self.off[hook] = f"could not be set: {error!r}"
            return False

    def _proxy(self, holder: Any, attribute: str, target: Any) -> Proxy:
        for proxy, real, _, _ in self._proxies.values():
            if real is target:
                return proxy
        proxy = Proxy(target)
        self._proxies[id(proxy)] = (proxy, target, holder, attribute)
        setattr(holder, attribute, proxy)
        return proxy

    @staticmethod
    def _store(owner: Any, name: str, value: Any) -> None:
        if type(owner) is Proxy:
            vars(owner)[name] = value
        else:
            setattr(owner, name, value)

    def fail(self, hook: str, error: BaseException) -> None:
        """A hook failed, on whatever thread: switch it off for good and keep the reason.

        An interrupt that a signal handler of SGLang raised while a hook ran is not the hook's failure:
        it is raised again.
        """
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            raise error
        try:
            self.off[hook] = f"{type(error).__name__}: {error}"[:300]
            for patch in [p for p in self._patches if p.hook == hook]:
                self._undo(patch)
            self.names.discard(hook)
        except Exception as second:
            self.off[hook] = repr(second)[:300]

    def _undo(self, patch: _Patch) -> None:
        owner, name = patch.owner, patch.name
        if vars(owner).get(name) is not patch.wrapper:
            if name in vars(owner):
                self.foreign.append(patch.hook)
        elif patch.before is _MISSING:
            if type(owner) is Proxy:
                del vars(owner)[name]
            else:
                delattr(owner, name)
        else:
            self._store(owner, name, patch.before)
        if patch in self._patches:
            self._patches.remove(patch)

    def undo(self) -> None:
        """Take every hook off, newest first. Idempotent."""
        for patch in reversed(list(self._patches)):
            try:
                self._undo(patch)
            except Exception as error:
                self.off[patch.hook] = f"could not be undone: {error!r}"
        for proxy, target, holder, attribute in self._proxies.values():
            if getattr(holder, attribute, None) is proxy:
                setattr(holder, attribute, target)
        self._patches.clear()
        self._proxies.clear()
        self.names.clear()
