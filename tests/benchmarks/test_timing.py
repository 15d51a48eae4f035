"""How benchmarks measure: in turns, as ratios within each turn, with the memory that a call holds."""

import torch

from benchmarks import timing

CPU = torch.device("cpu")


def test_calls_take_turns(monkeypatch):
    order = []
    clock = iter(range(10**6))
    monkeypatch.setattr(timing.time, "process_time", lambda: float(next(clock)))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    calls = {name: (lambda name=name: order.append(name)) for name in ("a", "b", "c")}
    times = timing.take_turns(calls, CPU, repeats=4, seconds=10**6)
    assert order == [*"aabbcc", *"abc" * 4]  # each runs twice beforehand: a tick of the clock is long enough for one
    assert {name: len(each) for name, each in times.items()} == {"a": 4, "b": 4, "c": 4}


def test_there_are_turns_even_without_time():
    assert len(timing.take_turns({"a": lambda: None}, CPU, repeats=99, seconds=0)["a"]) == timing.FEWEST_TURNS


def test_short_calls_are_called_many_times(monkeypatch):
    monkeypatch.setattr(timing.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: 0.0)
    count = 0

    def call():
        nonlocal count
        count += 1

    timing.take_turns({"a": call}, CPU, repeats=3, seconds=1)
    assert count == 2 + 3 * timing.MOST_CALLS


def test_ratios_are_of_the_same_turn():
    times = {"own": [2.0, 30.0, 8.0], "limit": [1.0, 10.0, 2.0]}
    assert timing.ratios(times, "limit") == {"own": 3.0, "limit": 1.0}  # of 2, 3 and 4


def test_the_peak_is_what_is_held_at_once():
    x = torch.zeros(1000)

    def two_copies():
        first = x.clone()
        del first
        return x.clone(), x.double()

    assert timing.peak(x.clone, CPU) == 4000
    assert timing.peak(two_copies, CPU) == 12000
    assert timing.peak(lambda: x.clone().sum(), CPU) == 4004
    assert timing.peak(lambda: x.zero_(), CPU) == 0


def test_the_profiler_leaves_the_error_stream_alone(capfd):
    import sys

    timing.peak(lambda: torch.zeros(3), CPU)
    print("heard", file=sys.stderr)
    assert capfd.readouterr().err == "heard\n"


def test_the_limit_copies_every_tensor_of_a_result():
    result = (torch.arange(3.0), "half", None, torch.ones(2, 4))
    first, second = timing.clone(result)()
    assert torch.equal(first, result[0])
    assert torch.equal(second, result[3])
    assert first.data_ptr() != result[0].data_ptr()


def test_a_setting_names_what_is_installed(monkeypatch):
    monkeypatch.setattr(timing, "PACKAGES", ("torch", "no-such-package"))
    text = timing.setting(CPU)
    assert f"torch {torch.__version__.split('+')[0]}" in text
    assert "no-such-package" not in text
