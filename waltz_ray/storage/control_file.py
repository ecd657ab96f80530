"""The control file ``waltz-storage.ctl``: whose directory this is, and each partition's fence and marks.

On-disk story (bytes in docs/formats.md, "Control file")
    Only the two 28-byte slots of each entry are written in place, always the one that is *not* current, and flushed
    before the caller hears about it. A crash in between leaves that slot old, new or torn; the other one is whole and
    is what the next start finds, so nothing that was answered is forgotten. The next start writes a torn slot again
    from the good one.

    A failed flush ends the process, but leaves the new slot in the page cache, where it looks like any other and is on
    no disk. So a start writes all entries once more as it finds them, and flushes. In each entry at most the slot that
    was being written differs from the disk, so a crash while that is done can tear only that one, as before.

    One byte that rots outside of the slots is put right by the same writing: an entry's place says whose it is, the
    entries that there are more than were counted, the cluster its key, from which no other cluster's differs by one
    byte. A version that is not 0 may be meant, and a file with fewer entries than were counted may have been cut, and
    fences with it: both are refused. Whatever a crash leaves of that is the byte as it was, or as it is.

    A slot that was flushed is then copied over the other one, which nobody flushes: so one byte that rots takes no
    promise away, and the next start finds it in the other slot. At every moment one slot is on the disk with what was
    answered last, and only the other one differs from the disk, or is torn by a crash. The next entry goes over that
    copy, too, and not over the slot that was flushed. Between a flush and its copy, and where the copy did not reach
    the disk before the power went, there is one slot again; if that very one rots, the entry before it is current: a
    replica that remembers less than it had joined, which is refused until a person says what is to become of it.

    "Current" is the valid slot with the higher session ID, then the higher low-water mark. Lowering a mark within
    a session would therefore leave the old slot current, so then both slots are written, one after the other.

    Which of the two layouts a file has its checksums say, not its length: the offline tools of Waltz 0.13 lengthen a
    file of ours to the length that one of theirs would have. What lies behind the last entry does no harm; the next
    start cuts it off. A crash leaves the file as long as it was, or cut: no entry is touched by that.

    The file is made under a temporary name, flushed and renamed: after a crash it is there completely or not at all.
    A 76-byte-entry file (Waltz 0.13) is converted the same way, after a flushed copy ``waltz-storage.ctl.waltz-0.13``
    has been made; a crash at any step leaves a directory that the next start converts again or finds converted.

    It grows the same way (``extend``), while the replica serves: a new file with all slots as they are, and entries
    that never had a session behind them, is flushed, renamed, and the directory flushed. Until that returned no slot
    is written, in either file, and no new entry can be used: whoever calls it keeps all others from writing. So after a
    crash the old file or the new one is there, whole, with every slot that was ever answered; if it is the old one,
    nothing of the new partitions had been promised, and the next start extends it again. A temporary file that is left
    behind is overwritten by the next try. After the rename the old file is no longer written: its name is gone. (It is
    the handle of the *new* file, open since it was made, that all later slots go through, so it cannot fail to open. If
    the directory could not be flushed for lack of handles, the next slot that is written begins with that.)
    A disk that is full changes nothing: the file is as it was. The number of entries never falls: a file that has more
    than ZooKeeper says comes from a ZooKeeper that lags or was restored from a copy, and keeps its fences.
"""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from waltz_ray.errors import ControlFileMissing, Corruption, DiskFull, ForeignStorage
from waltz_ray.protocol.checksum import crc32
from waltz_ray.storage.disk import Disk, DurableDisk

__all__ = [
    "CONTROL_FILE",
    "NEVER_OPENED",
    "ORIGINAL_COPY",
    "ControlEntry",
    "ControlFile",
    "ControlImage",
    "convert_original",
    "create_control_file",
    "read_control_image",
    "read_to_serve",
    "slots_to_write",
    "write_original_control_file",
]

log = logging.getLogger(__name__)

CONTROL_FILE = "waltz-storage.ctl"
ORIGINAL_COPY = "waltz-storage.ctl.waltz-0.13"
_TEMPORARY = ".new"

_HEADER = struct.Struct(">iq16si96x")
_HEADER_BYTES = 128
_ENTRY_BYTES = 60
_MARKS = struct.Struct(">qqq")
_SLOT_BYTES = 28
_ORIGINAL_ENTRY_BYTES = 76
_ORIGINAL_SLOT = struct.Struct(">qqqii")
_ORIGINAL_SLOT_BYTES = 36
_ORIGINAL_FLAGS = 1 | 4  # available, assigned
_INT = struct.Struct(">i")
_CRC = struct.Struct(">I")


class ControlEntry(NamedTuple):
    """One partition's fence and marks. ``session_id`` -1: no session was ever opened here."""

    session_id: int
    low_water_mark: int
    local_low_water_mark: int


NEVER_OPENED = ControlEntry(-1, -1, -1)


Slots = tuple[ControlEntry | None, ControlEntry | None]


class ControlImage(NamedTuple):
    """A control file as read: per partition the two slots in file order (None = wrong checksum) and the current one."""

    path: str
    original: bool  # 76-byte entries of Waltz 0.13
    created_ms: int
    cluster_key: uuid.UUID
    slots: list[Slots]
    currents: list[int]  # 0 or 1: the current slot; -1: neither is valid
    trailing_bytes: int  # behind the last entry: not ours
    rotten: int = -1  # the byte outside of the slots that is another one on the disk

    def current(self, partition_id: int) -> ControlEntry | None:
        """The entry in force, or None if neither slot is valid."""
        index = self.currents[partition_id]
        return None if index < 0 else self.slots[partition_id][index]

    def slot_offset(self, partition_id: int, slot: int) -> int:
        """Byte offset of a slot in the file."""
        if self.original:
            return _HEADER_BYTES + _ORIGINAL_ENTRY_BYTES * partition_id + 4 + _ORIGINAL_SLOT_BYTES * slot
        return _HEADER_BYTES + _ENTRY_BYTES * partition_id + 4 + _SLOT_BYTES * slot


def _encode_slot(entry: ControlEntry) -> bytes:
    marks = _MARKS.pack(*entry)
    return marks + _CRC.pack(crc32(marks))


def _encode_new(partition_id: int) -> bytes:
    """The entry of a partition that never had a session."""
    return _INT.pack(partition_id) + 2 * _encode_slot(NEVER_OPENED)


def _encode(created_ms: int, cluster_key: uuid.UUID, entries: list[ControlEntry | None]) -> bytes:
    """A whole file; an entry that is None stays unusable (zeros have a wrong checksum)."""
    parts = [_HEADER.pack(0, created_ms, cluster_key.bytes, len(entries))]
    for partition_id, entry in enumerate(entries):
        slot = bytes(_SLOT_BYTES) if entry is None else _encode_slot(entry)
        parts += [_INT.pack(partition_id), slot, slot]
    return b"".join(parts)


def read_control_image(disk: Disk, directory: str) -> ControlImage:
    """Read and check the control file; the two layouts are told apart by the checksums of their slots.

    ControlFileMissing, or Corruption for a header or a size that is not a control file's. A wrong slot is no error, nor
    is what lies behind the last entry.
    """
    path = f"{directory}/{CONTROL_FILE}"
    return _image(path, _content(disk, path))


def read_to_serve(disk: Disk, directory: str, cluster_key: uuid.UUID) -> ControlImage:
    """The same of a directory that is to be served in the cluster of that key; one rotten byte outside of the slots is
    put right in the image, and on the disk by ``ControlFile``, where the others leave no doubt about it.

    ControlFileMissing, Corruption; ForeignStorage for another cluster's.
    """
    path = f"{directory}/{CONTROL_FILE}"
    raw = _content(disk, path)
    try:
        image = _image(path, raw)
    except Corruption as damage:
        image = _put_right(path, raw, damage)
    own, wanted = image.cluster_key.bytes, cluster_key.bytes
    rotten = [at for at in range(16) if own[at] != wanted[at]]
    if len(rotten) == 1 and image.rotten < 0:  # keys are random: no other cluster's is so near
        return image._replace(cluster_key=cluster_key, rotten=12 + rotten[0])
    if rotten:
        raise ForeignStorage(
            f"{directory}: belongs to the cluster with key {image.cluster_key}, not to {cluster_key}; "
            "is this the right disk?"
        )
    return image


def _content(disk: Disk, path: str) -> bytes:
    if not disk.exists(path):
        raise ControlFileMissing(f"{path}: there is no control file; is this the right disk?")
    handle = disk.open(path, "read")
    try:
        return disk.pread(handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def _put_right(path: str, raw: bytes, damage: Corruption) -> ControlImage:
    """With the one byte changed that makes a control file of it. ``damage``, raised, if there is none such.

    The version has no second witness: another one may be meant.
    """
    if len(raw) < _HEADER_BYTES:
        raise damage
    for at, wanted in _words_as_they_should_be(raw, damage.offset):
        wrong = [at + n for n, byte in enumerate(wanted) if raw[at + n] != byte]
        if len(wrong) != 1:
            continue
        try:
            image = _image(path, raw[:at] + wanted + raw[at + len(wanted) :])
        except Corruption:
            continue  # it is not this byte, or not this one alone
        if not image.original:
            return image._replace(rotten=wrong[0])
    raise damage


def _words_as_they_should_be(raw: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """(where, what) of the field that is wrong at byte ``at``."""
    if at == 4:
        yield 4, b"\0"  # no time is so late
    elif at == 28:
        count, rest = divmod(len(raw) - _HEADER_BYTES, _ENTRY_BYTES)
        is_more = count > _INT.unpack_from(raw, 28)[0]  # of one with fewer some may have been cut off, fences and all
        if is_more and not rest and all(_is_entry(raw, _Entries(False, []), p) for p in range(count)):
            yield 28, _INT.pack(count)
    elif 32 <= at < _HEADER_BYTES:
        yield at, b"\0"
    elif at >= _HEADER_BYTES:
        partition_id, within = divmod(at - _HEADER_BYTES, _ENTRY_BYTES)
        if not within and at + _ENTRY_BYTES <= len(raw) and _read_entry(raw, False, partition_id)[1] >= 0:
            yield at, _INT.pack(partition_id)


def _image(path: str, raw: bytes) -> ControlImage:
    if len(raw) < _HEADER_BYTES:
        raise Corruption(path, len(raw), f"{len(raw)} bytes are too short for a control file")
    version, created_ms, key, count = _HEADER.unpack(raw[:_HEADER_BYTES])
    if version != 0:
        raise Corruption(path, 0, f"format version {version}, expected 0")
    if created_ms <= 0:
        raise Corruption(path, 4, f"creation time {created_ms} is not a time")
    wrong = next((at for at in range(32, _HEADER_BYTES) if raw[at]), None)
    if wrong is not None:
        raise Corruption(path, wrong, "a reserved byte of the header is not zero")
    entries = _entries(raw, path, count)
    slots, currents = [slots for slots, _ in entries.read], [current for _, current in entries.read]
    trailing = len(raw) - entries.end
    return ControlImage(path, entries.original, created_ms, uuid.UUID(bytes=key), slots, currents, trailing)


class _Entries(NamedTuple):
    """``count`` entries read as being of one layout: per partition the slots and which one is current."""

    original: bool
    read: list[tuple[Slots, int]]

    @property
    def entry_bytes(self) -> int:
        return _ORIGINAL_ENTRY_BYTES if self.original else _ENTRY_BYTES

    @property
    def end(self) -> int:
        return _HEADER_BYTES + len(self.read) * self.entry_bytes

    @property
    def valid_slots(self) -> int:
        return sum(slot is not None for slots, _ in self.read for slot in slots)


def _entries(raw: bytes, path: str, count: int) -> _Entries:
    """In the layout in which more slots are valid; if none is in either, in the one that has this length."""
    room = len(raw) - _HEADER_BYTES
    possible = [
        _Entries(original, [_read_entry(raw, original, partition_id) for partition_id in range(count)])
        for original, size in ((False, _ENTRY_BYTES), (True, _ORIGINAL_ENTRY_BYTES))
        if 0 < count * size <= room
    ]
    best = max(possible, key=lambda entries: (entries.valid_slots, entries.end == len(raw)), default=None)
    if best is None or (not best.valid_slots and best.end != len(raw)):
        raise Corruption(path, 28, f"{count} partitions do not fit a file of {len(raw)} bytes")
    for partition_id in range(count):
        at = _HEADER_BYTES + partition_id * best.entry_bytes
        stored = _INT.unpack_from(raw, at)[0]
        if stored != partition_id:
            raise Corruption(path, at, f"entry {partition_id} is of partition {stored}")
    further = range(count, (len(raw) - _HEADER_BYTES) // best.entry_bytes)
    if any(_is_entry(raw, best, partition_id) for partition_id in further):
        # The number has rotted. Were they taken for bytes of no meaning, they would be cut off, fences and all.
        raise Corruption(path, 28, f"{count} partitions, but there are entries of more")
    return best


def _is_entry(raw: bytes, entries: _Entries, partition_id: int) -> bool:
    stored = _INT.unpack_from(raw, _HEADER_BYTES + partition_id * entries.entry_bytes)[0]
    return bool(stored == partition_id and _read_entry(raw, entries.original, partition_id)[1] >= 0)


def _read_entry(raw: bytes, original: bool, partition_id: int) -> tuple[Slots, int]:
    """(the slots in file order, which one is current or -1)."""
    if original:
        at = _HEADER_BYTES + partition_id * _ORIGINAL_ENTRY_BYTES + 4
        read = _original_slot(raw, at), _original_slot(raw, at + _ORIGINAL_SLOT_BYTES)
    else:
        at = _HEADER_BYTES + partition_id * _ENTRY_BYTES + 4
        read = _slot(raw, at), _slot(raw, at + _SLOT_BYTES)
    (first, first_rank), (second, second_rank) = read
    return (first, second), -1 if first is second is None else int(second_rank > first_rank)


_NO_RANK = (-2, -2)


def _slot(raw: bytes, at: int) -> tuple[ControlEntry | None, tuple[int, int]]:
    marks = raw[at : at + _MARKS.size]
    if crc32(marks) != _CRC.unpack_from(raw, at + _MARKS.size)[0]:
        return None, _NO_RANK
    entry = ControlEntry(*_MARKS.unpack(marks))
    return entry, (entry.session_id, entry.low_water_mark)


def _original_slot(raw: bytes, at: int) -> tuple[ControlEntry | None, tuple[int, int]]:
    content = raw[at : at + _ORIGINAL_SLOT.size]
    if crc32(content) != _CRC.unpack_from(raw, at + _ORIGINAL_SLOT.size)[0]:
        return None, _NO_RANK
    session_id, low, local_low, _flags, sequence = _ORIGINAL_SLOT.unpack(content)
    return ControlEntry(session_id, low, local_low), (sequence, 0)


def create_control_file(disk: DurableDisk, directory: str, cluster_key: uuid.UUID, partitions: int) -> None:
    """A control file of ``partitions`` entries that never had a session. The directory exists."""
    content = _encode(disk.disk.now_ms(), cluster_key, [NEVER_OPENED] * partitions)
    disk.replace_file(f"{directory}/{CONTROL_FILE}", content)


def convert_original(disk: DurableDisk, directory: str, image: ControlImage) -> ControlImage:
    """Replace Waltz 0.13's control file by one of 60-byte entries, keeping a copy of it first."""
    handle = disk.disk.open(image.path, "read")
    try:
        raw = disk.disk.pread(handle, disk.disk.size(handle), 0)
    finally:
        disk.disk.close(handle)
    disk.replace_file(f"{directory}/{ORIGINAL_COPY}", raw)
    entries = [image.current(partition_id) for partition_id in range(len(image.slots))]
    disk.replace_file(f"{directory}/{CONTROL_FILE}", _encode(image.created_ms, image.cluster_key, entries))
    return read_control_image(disk.disk, directory)


def write_original_control_file(
    disk: DurableDisk, directory: str, image: ControlImage, entries: list[ControlEntry | None]
) -> None:
    """The control file of Waltz 0.13, durably, whole or not at all: ``image``'s cluster and time, and ``entries``.

    An entry that is None is of a partition that is neither available nor assigned.
    """
    parts = [_HEADER.pack(0, image.created_ms, image.cluster_key.bytes, len(entries))]
    for partition_id, entry in enumerate(entries):
        parts.append(_INT.pack(partition_id))
        for sequence, marks in enumerate((NEVER_OPENED, entry or NEVER_OPENED), 1):
            slot = _ORIGINAL_SLOT.pack(*marks, 0 if entry is None else _ORIGINAL_FLAGS, sequence)
            parts.append(slot + _CRC.pack(crc32(slot)))
    disk.replace_file(f"{directory}/{CONTROL_FILE}", b"".join(parts))


def slots_to_write(old: ControlEntry, new: ControlEntry, current: int) -> tuple[int, ...]:
    """Where ``new`` is written, in this order, so that the next start finds it and not ``old`` of slot ``current``.

    Never the only good slot first. The other one, too, if the old entry would still win at the next start, or tie.
    """
    if new == old:
        return ()
    return (1 - current, current) if new[:2] <= old[:2] else (1 - current,)


class ControlFile:
    """The control file of an open store. Different partitions may be written by different threads at once."""

    def __init__(self, disk: DurableDisk, image: ControlImage) -> None:
        self._disk, self._image = disk, image
        self._current = list(image.currents)
        self._entries = [image.current(partition_id) for partition_id in range(len(image.slots))]
        self._half_written: set[int] = set()
        """Partitions whose entry found no room in the other slot: what stands there would win at the next start."""
        self._handle = disk.disk.open(image.path, "write")
        self._name_in_doubt = False
        """It was given its name (``extend``), and the directory could not be flushed for lack of resources."""
        try:
            self._write_again()
        except BaseException:
            self.close()
            raise

    def _write_again(self) -> None:
        """Everything as it was found, but for a slot that a crash tore, which was never answered: durable now.

        Then what is current is copied over what is older.
        """
        image = self._image
        if image.trailing_bytes:
            log.warning(
                "%s: %d bytes behind the last entry are cut off (a tool of Waltz 0.13 has lengthened the file?)",
                image.path,
                image.trailing_bytes,
            )
            self._disk.truncate(self._handle, image.path, _HEADER_BYTES + len(self) * _ENTRY_BYTES)
        content = bytearray(self._disk.disk.pread(self._handle, _HEADER_BYTES + len(self) * _ENTRY_BYTES, 0))
        if image.rotten >= 0:
            log.warning("%s: byte %d had rotted: it is put right by the others", image.path, image.rotten)
            content[:_HEADER_BYTES] = _HEADER.pack(0, image.created_ms, image.cluster_key.bytes, len(self))
        for partition_id, slots in enumerate(image.slots):
            _INT.pack_into(content, _HEADER_BYTES + partition_id * _ENTRY_BYTES, partition_id)
            entry = self._entries[partition_id]
            for slot in (0, 1):
                if entry is not None and slots[slot] is None:
                    offset = image.slot_offset(partition_id, slot)
                    content[offset : offset + _SLOT_BYTES] = _encode_slot(entry)
        self._disk.pwrite(self._handle, image.path, bytes(content), 0)
        self._disk.fdatasync(self._handle, image.path)
        for partition_id, (first, second) in enumerate(image.slots):  # now that none of them is only in memory
            if first is not None and second is not None and first != second:
                self._copy(partition_id)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, partition_id: int) -> ControlEntry:
        """The current entry; Corruption if neither slot is valid."""
        entry = self._entries[partition_id]
        if entry is None:
            offset = self._image.slot_offset(partition_id, 0)
            raise Corruption(self._image.path, offset, f"both slots of partition {partition_id} have a wrong checksum")
        return entry

    def write(self, partition_id: int, entry: ControlEntry) -> None:
        """``entry`` is current, durably, when this returns. DiskFull: perhaps; to be done again."""
        slots = slots_to_write(self.entry(partition_id), entry, self._current[partition_id])
        if not slots and partition_id in self._half_written:
            slots = (1 - self._current[partition_id],)
        for slot in slots:
            self._write_slot(partition_id, slot, entry)
            self._half_written.add(partition_id)
        self._half_written.discard(partition_id)
        self._entries[partition_id] = entry
        if len(slots) == 1:
            self._copy(partition_id)

    def make_anew(self, partition_id: int, entry: ControlEntry) -> None:
        """``entry``, durably, where neither slot was valid. A crash leaves it so, or the new entry."""
        for slot in (0, 1):
            self._write_slot(partition_id, slot, entry)

    def extend(self, partitions: int) -> None:
        """Have entries of at least ``partitions`` partitions, durably; the new ones never had a session.

        The caller sees to it that nothing else is called meanwhile. DiskFull, OutOfResources: nothing was changed.
        """
        more = partitions - len(self)
        if more <= 0:
            return
        path, temporary = self._image.path, self._image.path + _TEMPORARY
        content = self._extended(partitions)
        handle = self._disk.create(temporary)
        try:
            self._disk.pwrite(handle, temporary, content, 0)
            self._disk.fsync(handle, temporary)
            self._disk.rename(temporary, path)
        except BaseException as error:
            self._disk.disk.close(handle)
            if isinstance(error, DiskFull):
                self._disk.unlink(temporary)  # it may have taken the last room there was
            raise
        old, self._handle = self._handle, handle  # from here on the old file has no name
        self._disk.disk.close(old)
        self._name_in_doubt = True
        self._settle_name()
        self._entries += [NEVER_OPENED] * more
        self._current += [0] * more

    def _settle_name(self) -> None:
        """A crash finds the file whose slots are written, and no older one. OutOfResources: it may not."""
        if self._name_in_doubt:
            self._disk.fsync_directory(self._image.path.rpartition("/")[0])
            self._name_in_doubt = False

    def _extended(self, partitions: int) -> bytes:
        """The file as it is, every slot of it, but for the number of entries, and with the new ones."""
        disk, size = self._disk.disk, _HEADER_BYTES + len(self) * _ENTRY_BYTES
        raw = disk.pread(self._handle, size, 0)
        head = _HEADER.pack(0, self._image.created_ms, self._image.cluster_key.bytes, partitions)
        return head + raw[_HEADER_BYTES:] + b"".join(map(_encode_new, range(len(self), partitions)))

    def _write_slot(self, partition_id: int, slot: int, entry: ControlEntry) -> None:
        self._settle_name()
        offset = self._image.slot_offset(partition_id, slot)
        self._disk.pwrite(self._handle, self._image.path, _encode_slot(entry), offset)
        self._disk.fdatasync(self._handle, self._image.path)
        self._current[partition_id], self._entries[partition_id] = slot, entry

    def _copy(self, partition_id: int) -> None:
        """What is durable, over the other slot, which nobody waits for."""
        slot, entry = 1 - self._current[partition_id], self.entry(partition_id)
        try:
            path, offset = self._image.path, self._image.slot_offset(partition_id, slot)
            self._disk.pwrite(self._handle, path, _encode_slot(entry), offset)
        except DiskFull:  # where even what is overwritten takes room; the entry itself is safe
            log.warning("%s: no room to write the entry of partition %d twice", self._image.path, partition_id)

    def close(self) -> None:
        self._disk.disk.close(self._handle)
