"""Kills trainings at random moments, resumes each, and says whether the end is that of an undisturbed run.

``python -m tests.training.kills 10 10 FOLDER`` does so ten times with pictures and ten times with text.
Children are forks of one process, which has imported all that they need.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import sklearn.datasets
import sklearn.model_selection  # noqa: F401 for children not to import
import torch

from mmpos.cli import main

ROOT = Path(__file__).parents[2]
SMALL = ["--model.dim", "16", "--model.depth", "1", "--model.num_heads", "2", "--data.batch_size", "8"]
STEPS = ["--trainer.limit_train_batches", "30", "--last.every_n_train_steps", "4"]
QUICK = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.limit_val_batches", "1"]
DROPOUT = ["--model.drop_path", "0.2", "--model.block", "{attn_drop: 0.1, proj_drop: 0.1}"]


def image(folder):
    return ["image/rope", "--model.positions", "{shift: 0.5, jitter: 1.2}", "--data.max_shift", "1"]


def text(folder):
    words = folder / "words.txt"
    if not words.exists():
        words.write_text("\n".join(f"{number} times {number} is {number**2}" for number in range(3000)))
    files = ["--data.files", f"[{words}]", "--data.cache", str(folder / "cache")]
    return ["text/rope_randomized", *files, "--data.length", "16"]


def start(args):
    """Process number of a fork that trains."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.setpgid(0, 0)
        main(args, base_config=ROOT / "configs" / "base.yaml")
        status = 0
    except SystemExit as exit:
        print(exit.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def finish(pid):
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"a training that nobody killed ended with {status}")


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


def kill_and_resume(case, kills, folder, draws):
    config, *own = case(folder)
    name = config.split("/")[0]
    fit = ["fit", "--config", str(ROOT / "configs" / f"{config}.yaml"), *SMALL, *STEPS, *QUICK, *DROPOUT, *own]
    fit += ["--trainer.max_epochs", str(max(kills, 2))]
    whole, cut = Path("runs", name, "whole"), Path("runs", name, "cut")
    pid = start([*fit, "--run", f"{name}/whole"])
    while not started(whole):
        time.sleep(0.005)
    begin = time.monotonic()
    while not list(whole.rglob("last.ckpt")):
        time.sleep(0.005)
    first = time.monotonic() - begin
    finish(pid)
    rest = time.monotonic() - begin - first
    steps = []
    for _ in range(kills):
        more = ["--ckpt_path", "last"] if any(path.name == "last.ckpt" for path in checkpoints(cut)) else []
        runs = started(cut)
        pid = start([*fit, "--run", f"{name}/cut", *more])
        while started(cut) == runs:
            time.sleep(0.005)
            if os.waitpid(pid, os.WNOHANG)[0]:
                raise SystemExit("a training could not be resumed")
        time.sleep(draws.uniform(0, first + 1.4 * rest / (kills + 1)))
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        steps.append(max((found["global_step"] for found in checkpoints(cut).values()), default=0))
    finish(start([*fit, "--run", f"{name}/cut", "--ckpt_path", "last"]))
    ends = last_of(whole), last_of(cut)
    return {
        "steps": steps,
        "ends": [end["global_step"] for end in ends],
        "whole": 30 * max(kills, 2),
        "equal": all(same(ends[0][key], ends[1][key]) for key in ("state_dict", "optimizer_states", "lr_schedulers")),
        "partial": [path.name for path in Path("runs").rglob("*.partial")],
    }


if __name__ == "__main__":
    *counts, place = sys.argv[1:]
    os.chdir(place)
    draws = random.Random(0)
    cases = zip((image, text), map(int, counts), strict=True)
    print(json.dumps({case.__name__: kill_and_resume(case, kills, Path.cwd(), draws) for case, kills in cases}))
