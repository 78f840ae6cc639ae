"""A model of the files and directories that a power cut may leave.

Tests report every change and every sync to the model. The model assumes no more than POSIX guarantees:

- The bytes and the size of a file are durable when an fsync or fdatasync that began after the change has returned. The
  model has no other metadata of files, so both calls have the same effect.
- A name (created, renamed or removed) is durable when an fsync of its directory has returned. This includes the name of
  a directory, which needs an fsync of the parent directory.
- Changes that a failed fsync covers are lost. A later fsync of the same file does not bring them back.

Before the sync, any part of the changes may survive:

- Each page of 4 KiB keeps the changes up to some moment since the last sync. If the page is torn, some of its sectors
  of 512 bytes keep the changes up to one moment, the others up to another.
- The size does not depend on the pages. A page whose data is lost contains its old bytes, or zeros where the file was
  shorter.
- Changes of names survive in any subset. A rename survives completely or not at all.

A ``Survival`` selects the part that survives: a fixed worst case, or a random one.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

PAGE_SIZE = 4096
SECTOR_SIZE = 512


class Survival(Protocol):
    """Selects the changes that survive a power cut."""

    def keeps_name(self) -> bool:
        """True if the next change of a name survives."""

    def choose_size(self, sizes: Sequence[int]) -> int:
        """Return the size that survives. ``sizes``: at the last sync, and after each change since."""

    def choose_moments(self, page_count: int, sector_count: int, change_count: int) -> list[list[int]]:
        """Return how many of the changes survive in each sector of each changed page.

        ``sector_count`` is the number of sectors of a page. A sector that keeps n changes keeps the first n.
        """


@dataclass(frozen=True)
class WorstCase:
    """A fixed choice. ``keeps_page`` has the index of a changed page and the number of changed pages."""

    name: str
    keeps_names: bool
    keeps_size: bool
    keeps_page: Callable[[int, int], bool]

    def keeps_name(self) -> bool:
        return self.keeps_names

    def choose_size(self, sizes: Sequence[int]) -> int:
        return sizes[-1] if self.keeps_size else sizes[0]

    def choose_moments(self, page_count: int, sector_count: int, change_count: int) -> list[list[int]]:
        return [[change_count if self.keeps_page(page, page_count) else 0] * sector_count for page in range(page_count)]


def _no_page(page: int, count: int) -> bool:
    return False


def _every_page(page: int, count: int) -> bool:
    return True


NOTHING = WorstCase("nothing", False, False, _no_page)
EVERYTHING = WorstCase("everything", True, True, _every_page)
NAMES_ONLY = WorstCase("names only", True, False, _no_page)
CONTENT_ONLY = WorstCase("content without names", False, True, _every_page)
SIZE_ONLY = WorstCase("size without data", True, True, _no_page)
OLD_SIZE = WorstCase("data with the old size", True, False, _every_page)
FIRST_PAGE_LOST = WorstCase("first page lost", True, True, lambda page, count: page > 0)
LAST_PAGE_LOST = WorstCase("last page lost", True, True, lambda page, count: page < count - 1)
ZERO_TAIL = WorstCase("second half of the pages lost", True, True, lambda page, count: page < count // 2)
WORST_CASES = (
    NOTHING,
    EVERYTHING,
    NAMES_ONLY,
    CONTENT_ONLY,
    SIZE_ONLY,
    OLD_SIZE,
    FIRST_PAGE_LOST,
    LAST_PAGE_LOST,
    ZERO_TAIL,
)


class RandomSurvival:
    """A random choice for each file: one of the worst cases, or any subset of pages and sectors with any size."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._name_rate = rng.choice((0.0, 0.5, 0.5, 0.9, 1.0))

    def keeps_name(self) -> bool:
        return self._rng.random() < self._name_rate

    def choose_size(self, sizes: Sequence[int]) -> int:
        between = self._rng.randint(min(sizes), max(sizes))
        return self._rng.choice((sizes[0], sizes[-1], sizes[-1], self._rng.choice(sizes), between))

    def choose_moments(self, page_count: int, sector_count: int, change_count: int) -> list[list[int]]:
        if self._rng.random() < 0.5:
            return self._rng.choice(WORST_CASES).choose_moments(page_count, sector_count, change_count)
        return [self._page_moments(sector_count, change_count) for _ in range(page_count)]

    def _page_moments(self, sector_count: int, change_count: int) -> list[int]:
        moments = [self._rng.choice((0, change_count, self._rng.randint(0, change_count))) for _ in range(2)]
        if self._rng.random() < 0.7:
            return moments[:1] * sector_count
        return self._rng.choices(moments, k=sector_count)


@dataclass(frozen=True, slots=True)
class _Write:
    position: int
    data: bytes

    def size_after(self, size: int) -> int:
        return max(size, self.position + len(self.data))

    def replaced(self, end: int) -> tuple[int, bytes]:
        return self.position, self.data


@dataclass(frozen=True, slots=True)
class _Truncate:
    size: int

    def size_after(self, size: int) -> int:
        return self.size

    def replaced(self, end: int) -> tuple[int, bytes]:
        return self.size, bytes(max(0, end - self.size))


@dataclass(frozen=True, slots=True)
class _Allocate:
    end: int

    def size_after(self, size: int) -> int:
        return max(size, self.end)

    def replaced(self, end: int) -> tuple[int, bytes]:
        return 0, b""


_Change = _Write | _Truncate | _Allocate


@dataclass(frozen=True)
class Remains:
    """The content of a file after a power cut. ``lost`` has start and end of each sector in it that lost a change."""

    content: bytes
    lost: tuple[tuple[int, int], ...] = ()


class ModelFile:
    """A file: its durable content, and the changes since the last sync."""

    def __init__(self, content: bytes = b"", page_size: int = PAGE_SIZE, sector_size: int = SECTOR_SIZE) -> None:
        self._page_size = page_size
        self._sector_size = sector_size
        self._durable = bytearray(content)
        self._current = bytearray(content)
        self._changes: list[_Change] = []
        self._settled_count = 0  # of the changes that are not in the list any more
        self._lost: tuple[tuple[int, int], ...] = ()  # in failed syncs

    @property
    def current(self) -> bytes:
        """The content without a power cut."""
        return bytes(self._current)

    def write(self, position: int, data: bytes) -> None:
        """Write ``data``, as write, pwrite or pwritev do."""
        if data:
            self._change(_Write(position, bytes(data)))

    def truncate(self, size: int) -> None:
        """Set the size, as ftruncate does; new bytes are zeros."""
        self._change(_Truncate(size))

    def allocate(self, end: int) -> None:
        """Reserve the space up to ``end``, as fallocate does: a shorter file is filled with zeros."""
        self._change(_Allocate(end))

    def _change(self, change: _Change) -> None:
        self._changes.append(change)
        _apply(self._current, change)

    def begin_sync(self) -> Callable[[], None]:
        """Begin an fsync or fdatasync; the returned function ends it and makes the changes before it durable."""
        covered = self._settled_count + len(self._changes)
        return lambda: self._settle(covered - self._settled_count)

    def _settle(self, count: int) -> None:
        if count > 0:
            for change in self._changes[:count]:
                _apply(self._durable, change)
            del self._changes[:count]
            self._settled_count += count

    def fail_sync(self, survival: Survival = NOTHING) -> None:
        """Fail an fsync or fdatasync: only the selected part of the changes before it remains, for ever."""
        remains = self.after_power_cut(survival)
        self._durable, self._lost = bytearray(remains.content), remains.lost
        self._settled_count += len(self._changes)
        self._changes.clear()

    def after_power_cut(self, survival: Survival) -> Remains:
        """Return the content that a power cut leaves."""
        if not self._changes:
            return Remains(bytes(self._durable), self._lost)
        sizes = [len(self._durable)]
        for change in self._changes:
            sizes.append(change.size_after(sizes[-1]))
        moments = self._moments(survival, max(sizes))
        content = self._durable.ljust(max(sizes), b"\0")
        lost = set()
        for number, change in enumerate(self._changes):
            start, data = change.replaced(len(content))
            for sector in _parts(start, start + len(data), self._sector_size):
                if number < moments[sector]:
                    first = max(start, sector * self._sector_size)
                    last = min(start + len(data), (sector + 1) * self._sector_size)
                    content[first:last] = data[first - start : last - start]
                else:
                    lost.add(sector)
        size = survival.choose_size(sizes)
        starts = (sector * self._sector_size for sector in sorted(lost))
        ranges = tuple((start, min(size, start + self._sector_size)) for start in starts if start < size)
        return Remains(bytes(content[:size].ljust(size, b"\0")), self._lost + ranges)

    def _moments(self, survival: Survival, end: int) -> dict[int, int]:
        """Return for each changed sector how many of the changes survive in it."""
        pages: set[int] = set()
        for change in self._changes:
            start, data = change.replaced(end)
            pages.update(_parts(start, start + len(data), self._page_size))
        sector_count = self._page_size // self._sector_size
        chosen = survival.choose_moments(len(pages), sector_count, len(self._changes))
        return {
            page * sector_count + index: moment
            for page, moments in zip(sorted(pages), chosen, strict=True)
            for index, moment in enumerate(moments)
        }


def _apply(content: bytearray, change: _Change) -> None:
    size = change.size_after(len(content))
    content.extend(bytes(max(0, size - len(content))))
    start, data = change.replaced(len(content))
    content[start : start + len(data)] = data
    del content[size:]


def _parts(start: int, end: int, size: int) -> range:
    """Return the numbers of the pages or sectors of ``size`` bytes that a range of bytes touches."""
    return range(start // size, -(-end // size)) if end > start else range(0)


class ModelDirectory:
    """A directory. ``DiskModel`` has its entries, because a rename changes two directories at once."""


Node = ModelFile | ModelDirectory
_Place = tuple[ModelDirectory, str]


@dataclass(eq=False)
class _NameChange:
    """One atomic change of entries. ``unsynced`` has the directories that must be synced to make it durable."""

    entries: dict[_Place, Node | None]
    unsynced: set[ModelDirectory] = field(init=False)

    def __post_init__(self) -> None:
        self.unsynced = {directory for directory, _ in self.entries}

    def apply(self, entries: dict[_Place, Node]) -> None:
        for place, node in self.entries.items():
            if node is None:
                entries.pop(place, None)
            else:
                entries[place] = node


@dataclass
class Image:
    """A directory tree, by paths relative to its root.

    ``directories`` has parents before children. ``lost`` has the ranges of each file that lost a change in a power cut.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    lost: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Return the tree in ``directory``."""
        paths = sorted(directory.rglob("*"))  # a directory comes before its entries
        return cls(
            {str(path.relative_to(directory)): path.read_bytes() for path in paths if path.is_file()},
            [str(path.relative_to(directory)) for path in paths if path.is_dir()],
        )

    def write_to(self, target: Path) -> None:
        """Create the tree in ``target``, an existing directory."""
        for path in self.directories:
            (target / path).mkdir()
        for path, content in self.files.items():
            (target / path).write_bytes(content)


class DiskModel:
    """A directory tree and what a power cut leaves of it. Paths are absolute; those outside of the root are ignored."""

    def __init__(self, root: Path, image: Image, page_size: int = PAGE_SIZE, sector_size: int = SECTOR_SIZE) -> None:
        """Create a model of the directory ``root`` with the tree of ``image``, all of it durable."""
        self.root = root
        self._page_size = page_size
        self._sector_size = sector_size
        self.load(image)

    def load(self, image: Image) -> None:
        """Replace everything by the tree of ``image``, all of it durable."""
        self._top = ModelDirectory()
        self._entries: dict[_Place, Node] = {}
        self._changes: list[_NameChange] = []
        for path in image.directories:
            self.make_directory(f"{self.root}/{path}")
        for path, content in image.files.items():
            self._create(f"{self.root}/{path}", content)
        self._durable_entries = dict(self._entries)
        self._changes.clear()

    # Names

    def node(self, path: str) -> Node | None:
        """Return the file or directory at ``path``, or None."""
        if path == str(self.root):
            return self._top
        place = self._place(path)
        return self._entries.get(place) if place is not None else None

    def file(self, path: str) -> ModelFile | None:
        """Return the file at ``path``, or None."""
        node = self.node(path)
        return node if isinstance(node, ModelFile) else None

    def _place(self, path: str) -> _Place | None:
        """Return directory and name of a path; None if the directory is not in the model."""
        if not path.startswith(f"{self.root}/"):
            return None
        *parents, name = path.removeprefix(f"{self.root}/").split("/")
        directory = self._top
        for parent in parents:
            node = self._entries.get((directory, parent))
            if not isinstance(node, ModelDirectory):
                return None
            directory = node
        return directory, name

    def create(self, path: str) -> ModelFile | None:
        """Create a file, or return the existing one; None outside of the root."""
        return self.file(path) or self._create(path)

    def _create(self, path: str, content: bytes = b"") -> ModelFile | None:
        place = self._place(path)
        if place is None:
            return None
        file = ModelFile(content, self._page_size, self._sector_size)
        self._change({place: file})
        return file

    def make_directory(self, path: str) -> None:
        """Create a directory."""
        place = self._place(path)
        if place is not None:
            self._change({place: ModelDirectory()})

    def link(self, path: str, new_path: str) -> None:
        """Give a file a second name."""
        node, place = self.node(path), self._place(new_path)
        if node is not None and place is not None:
            self._change({place: node})

    def remove(self, path: str) -> None:
        """Remove the name of a file, or an empty directory."""
        place = self._place(path)
        if place is not None:
            self._change({place: None})

    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or directory, which replaces an existing one atomically."""
        node, old, new = self.node(path), self._place(path), self._place(new_path)
        if (old is None) != (new is None):
            raise NotImplementedError("a rename into the model or out of it")
        if old is not None and new is not None and old != new:
            self._change({old: None, new: node})

    def _change(self, entries: dict[_Place, Node | None]) -> None:
        change = _NameChange(entries)
        change.apply(self._entries)
        self._changes.append(change)

    # Syncs

    def begin_sync(self, node: Node) -> Callable[[], None]:
        """Begin an fsync or fdatasync of a file or directory; the returned function ends it successfully."""
        if isinstance(node, ModelFile):
            return node.begin_sync()
        covered = [change for change in self._changes if node in change.unsynced]
        return lambda: self._settle(node, covered)

    def _settle(self, directory: ModelDirectory, changes: list[_NameChange]) -> None:
        for change in changes:
            change.unsynced.discard(directory)
        while self._changes and not self._changes[0].unsynced:
            self._changes.pop(0).apply(self._durable_entries)

    # Power cuts

    def present(self) -> Image:
        """Return the tree without a power cut."""
        image = Image()
        for path, node in self._walk(self._entries, self._top):
            if isinstance(node, ModelFile):
                image.files[path] = node.current
            else:
                image.directories.append(path)
        return image

    def after_power_cut(self, survival: Survival) -> Image:
        """Return a tree that a power cut at this moment may leave."""
        entries = dict(self._durable_entries)
        for change in self._changes:
            if not change.unsynced or survival.keeps_name():
                change.apply(entries)
        image = Image()
        for path, node in self._walk(entries, self._top):
            if isinstance(node, ModelFile):
                remains = node.after_power_cut(survival)
                image.files[path] = remains.content
                image.lost[path] = remains.lost
            else:
                image.directories.append(path)
        return image

    def _walk(
        self, entries: dict[_Place, Node], directory: ModelDirectory, prefix: str = ""
    ) -> Iterator[tuple[str, Node]]:
        """Yield every path below a directory, parents first."""
        for (parent, name), node in sorted(entries.items(), key=lambda entry: entry[0][1]):
            if parent is directory:
                yield prefix + name, node
                if isinstance(node, ModelDirectory):
                    yield from self._walk(entries, node, f"{prefix}{name}/")
