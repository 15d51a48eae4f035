"""What is timed: every encoding of the factory, beside packages that make the same."""

import sys

import pytest
import torch

from benchmarks import peers
from benchmarks.__main__ import Left, check, made, main
from benchmarks.cases import CASES, TURNS, alike, call_of, rotation_of
from benchmarks.peers import Peer, Problem
from benchmarks.specs import coords_of, make, shape, spec
from benchmarks.study import read_rows
from mmpos.factory import ENCODINGS

NAMES = sorted(ENCODINGS)
WITH_PEERS = [(label, name) for label, case in CASES.items() for name in case.peers]
CPU = torch.device("cpu")


def test_every_encoding_of_the_factory_is_timed():
    assert {label.partition(",")[0] for label in CASES} == set(NAMES)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_sizes_have_as_many_tokens_and_are_no_squares(axes):
    for tokens in (64, 256, 1024, 4096):
        size = shape(tokens, axes)
        assert len(coords_of(size)) == tokens
        assert len(size) == axes
        assert axes == 1 or size[-2] != size[-1]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_made_on_one_axis(name):
    assert make(spec(name), (64,)).axes == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("label, name", WITH_PEERS)
def test_a_peer_makes_the_same(label, name):
    case = CASES[label]
    size = shape(64, case.axes)
    encoding, coords = case.make(size), case.coords(size)
    want = alike(call_of(encoding, case.kind, coords)())
    try:
        peer = case.peers[name](Problem(encoding, size, coords))
    except ImportError as error:
        pytest.skip(f"needs {name}: {error}")
    for _ in range(2):  # and again, whatever it keeps
        torch.testing.assert_close(peer.alike(peer.call()), want, atol=1e-4, rtol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", TURNS)
def test_a_peer_turns_alike(name):
    make_turn, layout = TURNS[name]
    rotation = rotation_of(layout, 64, CPU)
    x = torch.randn(2, 3, 64, 64)
    try:
        turn = make_turn(rotation)
    except ImportError as error:
        pytest.skip(f"needs {name}: {error}")
    torch.testing.assert_close(turn(x), rotation.apply(x), atol=3e-5, rtol=0)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_pandas_has_the_same_fields(zone):
    pytest.importorskip("pandas", reason="needs pandas")
    from mmpos.calendar import calendar_fields

    seconds = torch.randint(1_800_000_000, (500,))
    peer = peers.pandas_fields(seconds, zone)
    assert torch.equal(peer.alike(peer.call()), calendar_fields(seconds, list(peers.FIELDS), timezone=zone))


def test_what_differs_is_not_timed():
    x = torch.randn(5, 7)
    check("RoPE", "other", x + 1e-5, x, 100)
    with pytest.raises(ValueError, match=r"RoPE: other differs from mmpos by 1\.0e-03"):
        check("RoPE", "other", x + 1e-3, x, 100)
    with pytest.raises(ValueError, match="differs from mmpos by nan"):
        check("RoPE", "other", x * torch.nan, x, 100)
    with pytest.raises(ValueError, match=r"other has shape \(5, 6\), mmpos \(5, 7\)"):
        check("RoPE", "other", x[:, 1:], x, 100)


def test_a_package_that_is_missing_is_left_out_with_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "positional_encodings", None)
    left = Left()
    for label in ("Sinusoidal", "Sinusoidal, 2 axes"):
        ((_, calls),) = made(label, CASES[label], 64, [], ["make"], CPU, left)
        assert list(calls) == ["clone", "mmpos"]
    assert capsys.readouterr().out.count("positional-encodings: left out, ModuleNotFoundError") == 1


def test_a_wrong_peer_stops_the_run():
    wrong = {"other": lambda problem: Peer(lambda: torch.zeros(64, 384), lambda result: result)}
    with pytest.raises(ValueError, match="Sinusoidal: other differs"):
        list(made("Sinusoidal", CASES["Sinusoidal"]._replace(peers=wrong), 64, [], ["make"], CPU, Left()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_command_writes_its_files_and_prints_its_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.costs.report", lambda device, *, quick: "costs of a model")
    arguments = ["--quick", "--encodings", "Sinusoidal", "LogScale", "--tokens", "64", "128", "--dtypes", "float32"]
    main([*arguments, "--output", str(tmp_path)])
    rows = read_rows(tmp_path / "encodings.csv")
    assert {row["tokens"] for row in rows} == {"64", "128"}
    assert {row["what"] for row in rows} == {"make", "add"}
    assert {row["package"] for row in rows} >= {"clone", "mmpos"}
    for row in rows:
        if row["package"] == "clone":
            assert float(row["to_clone"]) == 1
        if row["package"] == row["best_peer"]:
            assert float(row["to_best_peer"]) == 1
    assert (tmp_path / "encodings.png").stat().st_size > 10_000
    out = capsys.readouterr().out
    assert "| LogScale | make | float32 |" in out
    assert "costs of a model" in out
