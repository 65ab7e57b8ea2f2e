"""The page that the ranks of a group share: a sealed memfd of the leader's, mapped by every rank.

All of it are 64-bit words. A store or load of an element of a ``memoryview`` cast to ``Q`` copies eight aligned bytes,
which compilers make one machine instruction on x86-64 and aarch64: another process sees the old word or the new one.
Each word has one writer.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys

from .protocol import CT_BITS, CT_MASK, STATE_MASK, Slot

SIZE = 4096
MAGIC = int.from_bytes(b"sgtopSW1", sys.byteorder)
I_MAGIC, I_EPOCH, I_RANKS, I_WORD, I_CLOSED = range(5)
"""Words at the head. ``WORD``: the leader's main thread writes it; ``CLOSED``: the same, 1: it writes no W any more."""
SLOTS_AT = 16
SLOT_WORDS = 8
S_APPLIED, S_SEEN, S_ARMED, S_LEAVING, S_BROKEN, S_PID = range(6)
"""Words of a slot. The rank's main thread writes all of them, but LEAVING, which its agent's thread writes."""
MOST_RANKS = (SIZE // 8 - SLOTS_AT) // SLOT_WORDS

F_ADD_SEALS, F_GET_SEALS = 1033, 1034
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4
SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW


class PageError(Exception):
    """What is wrong with a page, in words."""


class Page:
    """One mapping. ``fd`` stays open for as long as the page does (the leader hands it on); -1: not kept."""

    def __init__(self, fd: int, keep_fd: bool) -> None:
        self._map = mmap.mmap(fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.words = memoryview(self._map).cast("Q")
        self.fd = fd if keep_fd else -1

    @classmethod
    def make(cls, ranks: int, epoch: int) -> Page:
        """A new page for a group of ``ranks``.

        Raises:
            PageError: too many ranks. OSError: no memfd.
        """
        if not 1 <= ranks <= MOST_RANKS:
            raise PageError(f"a group of {ranks} ranks does not fit the page")
        fd = os.memfd_create("sgtop-switches", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, SIZE)
            fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
            page = cls(fd, keep_fd=True)
        except BaseException:
            os.close(fd)
            raise
        words = page.words
        words[I_EPOCH], words[I_RANKS] = epoch, ranks
        words[I_MAGIC] = MAGIC
        return page

    @classmethod
    def adopt(cls, fd: int, epoch: int) -> Page:
        """The leader's page, from a descriptor that a client handed over; ``fd`` stays the caller's.

        Raises:
            PageError: it is not the page of ``epoch``, or could shrink under our feet.
        """
        try:
            seals = fcntl.fcntl(fd, F_GET_SEALS)
            size = os.fstat(fd).st_size
        except OSError as error:
            raise PageError(f"what was handed over is no memfd: {error.strerror}") from None
        if seals & SEALS != SEALS or size != SIZE:
            raise PageError("what was handed over is not a sealed page")
        page = cls(fd, keep_fd=False)
        words = page.words
        if words[I_MAGIC] != MAGIC or words[I_EPOCH] != epoch or not 1 <= words[I_RANKS] <= MOST_RANKS:
            page.close()
            raise PageError("what was handed over is not the leader's page")
        return page

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return self.words[I_RANKS]

    @property
    def epoch(self) -> int:
        """Number that tells this page from others."""
        return self.words[I_EPOCH]

    @property
    def closed(self) -> bool:
        """Whether its leader writes no more."""
        return bool(self.words[I_CLOSED])

    def slot_at(self, rank: int) -> int:
        """Index of the first word of a rank's slot."""
        return SLOTS_AT + rank * SLOT_WORDS

    def slot(self, rank: int) -> Slot:
        """A rank's slot as it is now."""
        words, at = self.words, self.slot_at(rank)
        applied = words[at + S_APPLIED]
        return Slot(
            armed=bool(words[at + S_ARMED]),
            applied=applied >> CT_BITS & STATE_MASK,
            applied_at=applied & CT_MASK,
            seen=words[at + S_SEEN],
            leaving=bool(words[at + S_LEAVING]),
            broken=bool(words[at + S_BROKEN]),
        )

    def slots(self) -> list[Slot]:
        """All slots, in rank order."""
        return [self.slot(i) for i in range(self.ranks)]

    def close(self) -> None:
        """Unmap it. Idempotent."""
        self.words.release()
        self._map.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def applied_word(state: int, ct: int) -> int:
    """The word APPLIED of a slot."""
    return (state & STATE_MASK) << CT_BITS | ct & CT_MASK
