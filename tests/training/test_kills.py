"""Trainings that are killed at random moments and resumed end as undisturbed ones do."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from tests import forks

ROOT = Path(__file__).parents[2]
SMALL = ["--model.dim", "16", "--model.depth", "1", "--model.num_heads", "2", "--data.batch_size", "8"]
STEPS = ["--trainer.limit_train_batches", "30", "--last.every_n_train_steps", "4"]
QUICK = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.limit_val_batches", "1"]
DROPOUT = ["--model.drop_path", "0.2", "--model.block", "{attn_drop: 0.1, proj_drop: 0.1}"]
KILLS = dict(zip(("image", "text"), map(int, os.environ.get("MMPOS_KILLS", "1 1").split()), strict=True))
"""How often the training with pictures and the one with text are killed."""


def image(folder):
    return ["image/rope", "--model.positions", "{shift: 0.5, jitter: 1.2}", "--data.max_shift", "1"]


def text(folder):
    words = folder / "words.txt"
    if not words.exists():
        words.write_text("\n".join(f"{number} times {number} is {number**2}" for number in range(3000)))
    files = ["--data.files", f"[{words}]", "--data.cache", str(folder / "cache")]
    return ["text/rope_randomized", *files, "--data.length", "16"]


def start(args):
    """A process that trains, and the file in which it prints."""
    log = Path(f"log{time.monotonic_ns()}")
    return forks.command(log, args), log


def finish(process, log):
    process.join()
    assert process.exitcode == 0, log.read_text()


def started(folder):
    return len(list(folder.glob("version_*/config.yaml")))


def checkpoints(folder):
    """All checkpoints that bear the name of one; each must be whole."""
    paths = sorted(folder.glob("version_*/checkpoints/*.ckpt"), key=lambda path: int(path.parts[-3][8:]))
    return {path: torch.load(path, weights_only=True) for path in paths}


def last_of(folder):
    return [found for path, found in checkpoints(folder).items() if path.name == "last.ckpt"][-1]


def same(one, other):
    """Whether weights, optimiser and schedule are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("case", [image, text], ids=lambda case: case.__name__)
def test_a_run_that_is_killed_at_any_moment_ends_as_one_that_is_not(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, *own = case(tmp_path)
    kills, draws = KILLS[case.__name__], random.Random(0)
    fit = ["fit", "--config", str(ROOT / "configs" / f"{config}.yaml"), *SMALL, *STEPS, *QUICK, *DROPOUT, *own]
    fit += ["--trainer.max_epochs", str(max(kills, 2))]
    whole, cut = Path("runs", "whole"), Path("runs", "cut")

    process, log = start([*fit, "--run", "whole"])
    while not started(whole) and process.is_alive():
        time.sleep(0.005)
    begin = time.monotonic()
    while not list(whole.rglob("last.ckpt")) and process.is_alive():
        time.sleep(0.005)
    first = time.monotonic() - begin
    finish(process, log)
    rest = time.monotonic() - begin - first

    def resume():
        known = any(path.name == "last.ckpt" for path in checkpoints(cut))
        return start([*fit, "--run", "cut", *(["--ckpt_path", "last"] if known else [])])

    for _ in range(kills):
        runs = started(cut)
        process, log = resume()
        while started(cut) == runs:
            time.sleep(0.005)
            assert process.is_alive(), log.read_text()
        time.sleep(draws.uniform(0, first + 1.4 * rest / (kills + 1)))
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    finish(*resume())
    ends = last_of(whole), last_of(cut)
    assert [end["global_step"] for end in ends] == 2 * [30 * max(kills, 2)]
    for key in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert same(ends[0][key], ends[1][key]), key
