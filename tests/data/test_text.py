"""Text as bytes: what is in a part, in a window, in the cache."""

import os

import numpy as np
import pytest
import torch

from mmpos.data import corpus
from mmpos.data.text import END, TextBytes, Windows


@pytest.fixture
def make(tmp_path):
    """A data module of texts, whose cache lies in the test's folder."""

    def build(texts, **arguments):
        folder = tmp_path / "texts"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        data = TextBytes(**{"files": [str(folder)], "length": 8, "cache": str(tmp_path / "cache"), **arguments})
        data.prepare_data()
        data.setup()
        return data

    return build


MANY = {f"{name:02}.txt": f"file {name}, {'é' * name} and some more text\n" * 5 for name in range(60)}


def documents(part):
    """The documents of a part, cut at their starts."""
    return [piece[1:].tobytes().decode() for piece in np.split(np.asarray(part.tokens), part.starts)[1:]]


def test_whole_files_are_shared_out_and_all_are_there(make):
    data = make(MANY)
    found = {part: documents(data.parts[part]) for part in corpus.PARTS}
    assert sorted(text for texts in found.values() for text in texts) == sorted(MANY.values())
    sizes = {part: sum(len(text.encode()) for text in texts) for part, texts in found.items()}
    total = sum(sizes.values())
    for part in ("val", "test"):
        assert 0.04 < sizes[part] / total < 0.09
    torch.manual_seed(123)
    again = make(MANY)
    assert {part: documents(again.parts[part]) for part in corpus.PARTS} == found


def test_few_files_are_cut_at_line_ends(make):
    texts = {name: "".join(f"line {number} of {name}\n" for number in range(400)) for name in ("a.txt", "b.txt")}
    data = make(texts)
    for name, text in zip(
        texts, zip(*(documents(data.parts[part]) for part in corpus.PARTS), strict=True), strict=True
    ):
        assert "".join(text) == texts[name]
        assert all(piece.endswith("\n") for piece in text)
        assert [round(len(piece) / len(texts[name]), 2) for piece in text] == [0.9, 0.05, 0.05]


def test_windows_follow_each_other_and_share_the_byte_that_is_target_and_input(make):
    data = make(MANY, batch_size=7)
    batches = list(data.val_dataloader())
    rows = torch.cat(batches)
    stream = torch.from_numpy(np.asarray(data.parts["val"].tokens).astype(np.int64))
    assert rows.dtype == torch.int64
    assert rows.shape == ((len(stream) - 1) // 8, 9)
    assert [len(batch) for batch in batches[:-1]] == [7] * (len(batches) - 1)
    assert torch.equal(torch.cat([rows[:, :-1].flatten(), rows[-1:, -1]]), stream[: 8 * len(rows) + 1])
    assert rows[0, 0] == END
    assert (rows == END).sum() >= len(data.parts["val"].starts) - 1


def test_training_windows_are_shuffled_and_all_come(make):
    data = make(MANY)
    torch.manual_seed(1)
    first = torch.cat(list(data.train_dataloader()))
    second = torch.cat(list(data.train_dataloader()))
    assert not torch.equal(first, second)
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert len(first) == (len(data.parts["train"].tokens) - 1) // 8


def test_a_limit_spreads_windows_over_the_part(make):
    data = make(MANY, limit=5)
    some, every = data.test_dataloader().dataset, Windows(data.parts["test"], 8)
    count = len(every)
    assert len(some) == 5
    assert [int(number * 5 / count) for number in some.numbers] == [0, 1, 2, 3, 4]
    assert torch.equal(some.__getitems__([1, 3]), every.__getitems__([some.numbers[1], some.numbers[3]]))


def test_stretches_of_documents(make):
    texts = {f"{name:02}.txt": f"{name:02}" * (4 if name % 2 else 80) for name in range(100)}
    data = make(texts)
    got = data.documents("test", 60)
    long = [text for text in documents(data.parts["test"]) if len(text) >= 60]
    text = [[byte for byte in row if byte != END] for row in got.tolist()]
    assert [bytes(row).decode() for row in text[::2]] == [text[:60] for text in long]
    assert [bytes(row).decode() for row in text[1::2]] == [text[59:120] for text in long]
    assert (got[::2, 0] == END).all()
    assert (got == END).sum() == len(long)
    assert torch.equal(data.documents("test", 60, limit=1), got[len(got) // 2, None])
    with pytest.raises(ValueError, match="no document of the test part has more than 161 bytes"):
        data.documents("test", 161)


def test_the_cache_is_used_until_a_file_changes(make, tmp_path, monkeypatch):
    make(MANY)
    built = []
    real = corpus._write_part
    monkeypatch.setattr(corpus, "_write_part", lambda stem, pieces: (built.append(stem.name), real(stem, pieces))[1])
    path = tmp_path / "texts" / "07.txt"
    data = TextBytes(files=[str(tmp_path / "texts")], length=8, cache=str(tmp_path / "cache"))
    data.setup()
    assert built == []
    before = path.stat()
    path.write_text(MANY["07.txt"].replace("more", "less"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    data = TextBytes(files=[str(tmp_path / "texts")], length=8, cache=str(tmp_path / "cache"))
    data.setup()
    assert built == list(corpus.PARTS)
    assert any("less" in text for part in corpus.PARTS for text in documents(data.parts[part]))
    (home,) = (tmp_path / "cache").iterdir()
    assert len(list(home.iterdir())) == 1  # what is out of date is gone, and nothing half made is left


def test_a_cache_that_could_not_be_finished_leaves_nothing(tmp_path):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("good text\n" * 100)
    bad.write_bytes(b"text\n" * 100 + b"\0")
    data = TextBytes(files=[str(good), str(bad)], length=8, cache=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"bad.txt is binary: byte 500 is 0"):
        data.prepare_data()
    assert [list(home.iterdir()) for home in (tmp_path / "cache").iterdir()] == [[]]


def test_a_part_is_mapped_and_not_loaded(make):
    tokens = make(MANY).parts["train"].tokens
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == np.uint8


def test_characters_may_lie_across_blocks(make, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK", 7)
    text = "äöü€ and 𝄞\n" * 200
    data = make({"a.txt": text}, length=4)
    assert "".join(documents(data.parts[part])[0] for part in corpus.PARTS) == text


@pytest.mark.parametrize(
    "content, message",
    [
        (b"text\n" * 50 + b"\xff\xfe", r"a.txt is not UTF-8 text near byte 250"),
        ("Zürich\n".encode("latin-1") * 50, r"a.txt is not UTF-8 text near byte 1"),
        (b"", r"a.txt, which is empty"),
        (b"short", r"the train part has \d+ bytes, too few for windows of 8 \+ 1"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path, content, message):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    data = TextBytes(files=[str(path)], length=8, cache=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=message):
        data.setup()


def test_folders_skip_what_is_empty_or_hidden(make, tmp_path):
    make(MANY | {"empty.txt": "", ".hidden": "no text for a model\n" * 50})
    paths = corpus.find_texts([tmp_path / "texts", tmp_path / "texts" / "00.txt"])
    assert [path.name for path in paths] == list(MANY)


def test_what_does_not_exist_and_numbers_out_of_range(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"files has .*missing.txt, which does not exist"):
        TextBytes(files=[str(tmp_path / "missing.txt")]).setup()
    with pytest.raises(ValueError, match="has no text"):
        TextBytes(files=[str(tmp_path)]).setup()
    for name in ("length", "batch_size", "limit"):
        with pytest.raises(ValueError, match=rf"{name} \(0\) must be at least 1"):
            TextBytes(**{name: 0})


def test_the_standard_library_needs_no_files(tmp_path):
    data = TextBytes(cache=str(tmp_path))
    data.setup()
    names = {path.name for path in corpus.python_sources()}
    assert {"argparse.py", "json"} & names == {"argparse.py"}
    assert len(data.parts["train"].tokens) > 2_000_000
    text = documents(data.parts["train"])
    assert any(line.startswith("class ") for line in text[0].splitlines() + text[1].splitlines() + text[2].splitlines())


def test_two_processes_may_build_the_same_cache(make, monkeypatch, tmp_path):
    write, faster = corpus._write_part, TextBytes([str(tmp_path / "texts")], length=8, cache=str(tmp_path / "cache"))

    def write_last(stem, pieces):
        write(stem, pieces)
        if stem.name == corpus.PARTS[-1]:  # the parts are about to get their name, and another process is faster
            monkeypatch.setattr(corpus, "_write_part", write)
            faster.setup()

    monkeypatch.setattr(corpus, "_write_part", write_last)
    data = make(MANY)
    for part in corpus.PARTS:
        assert data.parts[part].tokens.tolist() == faster.parts[part].tokens.tolist()
    (home,) = (tmp_path / "cache").iterdir()
    assert len(list(home.iterdir())) == 1
