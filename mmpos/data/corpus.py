"""Text files as three streams of bytes, for training, validation and test, that lie in memory-mapped files."""

import codecs
import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from .samples import SPLIT_SEED

END = 255
"""Stands in front of every document; no byte of UTF-8 has this value."""

PARTS = ("train", "val", "test")
SHARE = 0.05
"""Share of the bytes that validation and test have each."""

FEW_FILES = 20
"""With fewer files than this each is cut in three, for whole files could not be shared out."""

BLOCK = 1 << 24


class Piece(NamedTuple):
    """Bytes ``start`` to ``stop`` of a file: one document."""

    path: Path
    start: int
    stop: int


class Corpus(NamedTuple):
    """One part: its bytes with `END` in front of every document, and where the documents start."""

    tokens: np.ndarray
    starts: np.ndarray


def python_sources() -> list[Path]:
    """The modules of Python's standard library, without their tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "turtledemo"}
    paths = []
    for folder, inside, files in os.walk(root):
        inside[:] = [name for name in inside if name not in skipped]
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(path for path in paths if path.stat().st_size)


def find_texts(names: Sequence[str | Path]) -> list[Path]:
    """The files that are named, and those below the folders that are, in order and without empty ones of a folder.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If a named file is empty, or nothing is found.
    """
    found: list[Path] = []
    for path in map(Path, names):
        if path.is_dir():
            inside = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
            found += sorted(file for file in inside if file.stat().st_size)
        elif not path.exists():
            raise FileNotFoundError(f"files has {path}, which does not exist")
        elif not path.stat().st_size:
            raise ValueError(f"files has {path}, which is empty")
        else:
            found.append(path)
    if not found:
        raise ValueError(f"files ({', '.join(map(str, names)) or 'none'}) has no text")
    return list(dict.fromkeys(found))


def open_corpus(files: Sequence[Path], cache: Path) -> dict[str, Corpus]:
    """The parts, read from the cache; built first where a file is new there or has another size or time.

    Raises:
        ValueError: If a file is no UTF-8 text.
    """
    home = cache / _digest([str(path.absolute()) for path in files])
    folder = home / _digest([[path.stat().st_size, path.stat().st_mtime_ns] for path in files])
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".") as partial:
            for part, pieces in share_out(files).items():
                _write_part(Path(partial) / part, pieces)
            (Path(partial) / "files.json").write_text(json.dumps([str(path) for path in files]))
            try:
                os.rename(partial, folder)
            except OSError:
                if not folder.exists():  # another process was faster
                    raise
            else:
                Path(partial).mkdir()  # for the context to remove
        for old in home.iterdir():
            if old != folder and not old.name.startswith("."):
                shutil.rmtree(old, ignore_errors=True)
    return {part: _read_part(folder / part) for part in PARTS}


def share_out(files: Sequence[Path]) -> dict[str, list[Piece]]:
    """Whole files to each part, the same always; few files are cut at line ends instead, in the same shares."""
    sizes = [path.stat().st_size for path in files]
    if len(files) < FEW_FILES:
        cuts = [_cut(path, size) for path, size in zip(files, sizes, strict=True)]
        return {
            part: [
                Piece(path, *cut[part]) for path, cut in zip(files, cuts, strict=True) if cut[part][1] > cut[part][0]
            ]
            for part in PARTS
        }
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
    parts: dict[str, list[Piece]] = {part: [] for part in PARTS}
    seen, total = 0, sum(sizes)
    for row in order:
        share = seen / total
        part = "test" if share < SHARE else "val" if share < 2 * SHARE else "train"
        parts[part].append(Piece(files[row], 0, sizes[row]))
        seen += sizes[row]
    return parts


def _cut(path: Path, size: int) -> dict[str, tuple[int, int]]:
    marks = [0]
    with path.open("rb") as file:
        for share in (1 - 2 * SHARE, 1 - SHARE):
            file.seek(int(share * size))
            file.readline()
            marks.append(max(file.tell(), marks[-1]))
    return dict(zip(PARTS, zip(marks, [*marks[1:], size], strict=True), strict=True))


def _write_part(stem: Path, pieces: Sequence[Piece]) -> None:
    starts, length = [], 0
    with stem.with_suffix(".bin").open("wb") as out:
        for piece in pieces:
            starts.append(length)
            length += out.write(bytes([END]))
            for block in _blocks(piece):
                length += out.write(block)
    np.save(stem.with_suffix(".npy"), np.array(starts, dtype=np.int64))


def _blocks(piece: Piece) -> Iterator[bytes]:
    """The bytes of a piece, checked to be text."""
    decoder, at = codecs.getincrementaldecoder("utf-8")(), piece.start
    with piece.path.open("rb") as file:
        file.seek(at)
        while at < piece.stop:
            block = file.read(min(BLOCK, piece.stop - at))
            if not block:
                raise ValueError(f"{piece.path} became shorter while it was read")
            if 0 in block:
                raise ValueError(f"{piece.path} is binary: byte {at + block.index(0)} is 0")
            try:
                decoder.decode(block, final=at + len(block) == piece.stop)
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{piece.path} is not UTF-8 text near byte {at + error.start}: {error.reason}"
                ) from error
            at += len(block)
            yield block


def _read_part(stem: Path) -> Corpus:
    path = stem.with_suffix(".bin")
    tokens = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, dtype=np.uint8)
    return Corpus(tokens, np.load(stem.with_suffix(".npy")))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
