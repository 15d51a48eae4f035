import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
KILLS = [int(count) for count in os.environ.get("MMPOS_KILLS", "1 1").split()]
"""How often the training with pictures and the one with text are killed."""


def test_a_run_that_is_killed_at_any_moment_ends_as_one_that_is_not(tmp_path):
    command = [sys.executable, "-m", "tests.training.kills", *map(str, KILLS), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    for (name, result), kills in zip(json.loads(done.stdout).items(), KILLS, strict=True):
        assert len(result["steps"]) == kills, name
        assert result["ends"] == 2 * [result["whole"]], name
        assert result["equal"], name
