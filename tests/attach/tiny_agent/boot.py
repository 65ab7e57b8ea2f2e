"""Socket pair, thread named ``sg:FD:NONCE``, hello for hello, then it echoes ``cmd`` frames until EOF."""

import _thread
import json
import os
import select
import socket
import time

from . import wire


def start(opts):
    _thread.start_new_thread(_serve, (opts,))


def _name(text):
    with open(f"/proc/self/task/{_thread.get_native_id()}/comm", "w") as f:
        f.write(text)


def _meet(opts):
    """The connected socket, None when nobody came in time."""
    left = (opts["deadline_ns"] - time.monotonic_ns()) / 1e9
    if opts["rendezvous"] == "listen":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{opts['dir']}/sgtop-{os.getpid()}.sock")
            listener.listen(1)
            listener.settimeout(max(left, 0.01))
            return listener.accept()[0]
    mine, theirs = socket.socketpair()
    _name(f"sg:{theirs.fileno()}:{opts['nonce']}")
    try:
        if left <= 0 or not select.select([mine], [], [], left)[0]:
            mine.close()
            return None
        return mine
    finally:
        theirs.close()


def _serve(opts):
    mine = None
    try:
        mine = _meet(opts)
        if mine is None:
            return
        reader = wire.FrameReader()
        frames = list(reader.feed(mine.recv(65536)))
        _name("sgtop-agent")
        if frames[0].get("token") != opts["token"]:
            mine.sendall(wire.pack({"k": "bye", "why": "wrong token"}))
            return
        if os.environ.get("TINY_BYE"):
            mine.sendall(wire.pack({"k": "bye", "why": os.environ["TINY_BYE"]}))
            return
        mine.sendall(os.environ["TINY_GARBAGE"].encode() if "TINY_GARBAGE" in os.environ else wire.pack(_hello(opts)))
        while True:
            data = mine.recv(65536)
            if not data:
                return
            for frame in reader.feed(data):
                if frame["k"] == "cmd":
                    mine.sendall(wire.pack({"k": "reply", "id": frame["id"], "ok": True, "result": json.dumps(frame)}))
    except Exception:
        pass
    finally:
        if mine is not None:
            mine.close()
        _forget()


def _forget():
    __spec__.loader.remove()


def _hello(opts):
    token = "0" * 32 if os.environ.get("TINY_WRONG_TOKEN") else opts["token"]
    proto = int(os.environ.get("TINY_PROTO", wire.PROTOCOL))
    return {"k": "hello", "proto": proto, "agent": "tiny", "token": token, "way": opts["way"], "pid": os.getpid()}
