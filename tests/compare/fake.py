#!/usr/bin/env python3
"""Stands for Python in a cell: takes the place of a training run, and does what the cell's arguments say.

Its result is a table that depends on the seed and on ``--level``; it notes each start in ``--starts``.
"""

import os
import sys
import time
from pathlib import Path

given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
with open(given["starts"], "a") as file:
    file.write(f"{given['level']} {given['seed_everything']} {os.getpid()} {os.environ['OMP_NUM_THREADS']}\n")
print("begins")
if given.get("fail") == given["seed_everything"]:
    sys.exit("a first line\nRuntimeError: this run was told to fail")
if given.get("sleep"):
    sys.stdout.flush()
    from threading import Thread

    Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    time.sleep(float(given["sleep"]))
folder = Path(given["trainer.default_root_dir"], "run", "version_0")
folder.mkdir(parents=True)
score = float(given["level"]) + int(given["seed_everything"])
(folder / "sizes.csv").write_text(f"size,how,score\n8,plain,{score}\n16,plain,{score / 2}\n16,other,{score / 4}\n")
(folder / "metrics.csv").write_text(f"epoch,val_loss,test_score\n0,1.0,\n1,,{score}\n")
