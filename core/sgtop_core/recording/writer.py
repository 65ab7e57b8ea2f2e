"""Appending chunks to a file, so that whatever happens the file stays readable up to the last chunk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

from . import container
from .errors import RecordingError


def refuse_existing(path: Path, overwrite: bool) -> None:
    """What must not be written over.

    Raises:
        RecordingError: ``path`` is a folder, or a file and not to be written over.
    """
    if os.path.isdir(path):
        raise RecordingError(f"{path} is a folder", "a recording is one file", f"-o {path / 'NAME.sgtop'}")
    if os.path.lexists(path) and not overwrite:
        raise RecordingError(f"{path} is there already", "a recording is never written over", "-f, or another -o")


class FileWriter:
    """A recording being written.

    Every chunk goes out in one ``write`` to an unbuffered file: a killed recorder leaves whole chunks and at most a
    torn last one, which the reader skips. There is no fsync: it would add disk waits to the server's host, and only
    a power cut could tell the difference.

    Raises:
        RecordingError: the file cannot be made, or no longer be written (disk full); what was written stays readable.
    """

    def __init__(self, path: str | os.PathLike[str], meta: dict[str, Any], *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self._refs: list[container.Ref] = []
        self._at = 0
        self._file: BinaryIO | None = None
        try:
            self._file = open(self.path, "wb" if overwrite else "xb", buffering=0)  # noqa: SIM115
        except (FileExistsError, IsADirectoryError):
            refuse_existing(self.path, overwrite)
            raise
        except OSError as e:
            raise RecordingError(f"{self.path} cannot be written", e.strerror or str(e)) from e
        self._append(container.head() + container.pack_meta(meta))

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._at

    def add(self, body: bytes, first_ns: int, last_ns: int, entries: int) -> None:
        """Append a chunk of entries."""
        ref = container.Ref(self._at, container.ENTRIES, first_ns, last_ns, entries, len(body))
        self._append(container.frame_chunk(container.ENTRIES, body, first_ns, last_ns, entries))
        self._refs.append(ref)

    def _append(self, data: bytes) -> None:
        if self._file is None:
            raise RecordingError(f"{self.path} is closed")
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as e:
            self._give_up()
            raise RecordingError(
                f"recording stopped: {self.path} cannot be written",
                e.strerror or str(e),
                "what was recorded so far can be read; make room and record to another file",
            ) from e
        self._at += len(data)

    def _give_up(self) -> None:
        """Cut the torn chunk off (that frees room, so it works on a full disk too) and close."""
        if self._file is None:
            return
        try:
            self._file.truncate(self._at)
        except OSError:
            pass
        self._file.close()
        self._file = None

    def close(self) -> None:
        """End the file with its index. A disk too full for the index leaves a file without one, which reads as well."""
        if self._file is None:
            return
        try:
            self._append(container.frame_index(self._refs, self._at))
        except RecordingError:
            return
        self._file.close()
        self._file = None
