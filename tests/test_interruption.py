"""Runs that are killed, interrupted or stopped by the disk go on from where they were.

Each run that is interrupted is a process of its own.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pytest
from levels import by_level

from experiments import cli
from experiments.runs.checkpoint import saved_steps
from experiments.runs.folder import CHECKPOINTS, METRICS, RESULT, WEIGHTS

pytestmark = pytest.mark.default

ROOT = Path(__file__).resolve().parent.parent
# Commands whose runs take some seconds, with at least ten chunks; `--out` is added.
COMMANDS = {
    "temporal-order-6a": "run temporal-order-6a --trials 3 --test-sequences 64 "
    "--learning.max-sequences 9_000 --task.positions 1 2 4 5 --task.lengths 7 8",
    "pixels": "run pixels --seeds 2 --model.features 3 --task.order rows "
    "--training.updates 40 --training.chunk 2 --training.evaluate-every 20 "
    "--optimizer.warmup 10 "
    "--training.batch 8",
}
# What differs between equal runs.
VOLATILE = {"seconds"}

# The command line, with a checkpoint after every chunk.
PROGRAM = """
import sys
from experiments.runs import checkpoint
from experiments.cli import main

checkpoint.SECONDS_BETWEEN_CHECKPOINTS = 0.0
sys.exit(main())
"""


class Command:
    """A command of `COMMANDS`."""

    def __init__(self, name, folder):
        self.random = random.Random(7)
        self.words, self.folder = COMMANDS[name].split(), folder

    @cached_property
    def uninterrupted(self):
        """The folder of an uninterrupted run, and how long it took."""
        started = time.monotonic()
        self.finish(self.folder / "whole")
        return self.folder / "whole", time.monotonic() - started

    def start(self, out, *before):
        return subprocess.Popen(
            [sys.executable, *(before or ("-c", PROGRAM)), *self.words, "--out", out],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, out):
        """Trains to the end, in this process, which starts no other."""
        assert cli.main([*self.words, "--out", str(out)]) == 0

    def start_and_train(self, out):
        """Returns a process that has saved at least one more checkpoint."""
        before = saved_steps(out / CHECKPOINTS)[-1:]
        process = self.start(out)
        while saved_steps(out / CHECKPOINTS)[-1:] == before:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        return process

    def assert_equals_whole(self, out):
        whole, _ = self.uninterrupted
        ours, expected = (
            json.loads((folder / RESULT).read_text()) for folder in (out, whole)
        )
        assert {**ours, **dict.fromkeys(VOLATILE)} == {
            **expected,
            **dict.fromkeys(VOLATILE),
        }
        assert (out / METRICS).read_bytes() == (whole / METRICS).read_bytes()
        if (whole / WEIGHTS).exists():
            ours, expected = np.load(out / WEIGHTS), np.load(whole / WEIGHTS)
            for name in expected:
                np.testing.assert_array_equal(ours[name], expected[name])


@pytest.fixture(scope="module")
def commands():
    """Commands by name, each made once, in whatever order tests need them."""
    return {}


@pytest.fixture
def command(request, commands, tmp_path_factory):
    name = request.param
    if name not in commands:
        commands[name] = Command(name, tmp_path_factory.mktemp(name))
    return commands[name]


def kill_at_any_time(command, out):
    process = command.start(out)
    time.sleep(command.random.uniform(0, command.uninterrupted[1]))
    process.kill()
    process.communicate()


def kill_between_checkpoints(command, out):
    process = command.start_and_train(out)
    time.sleep(command.random.uniform(0, 0.2))
    process.kill()
    process.communicate()


def send_signal(command, out, number=signal.SIGTERM):
    """Ends a run, which saves and says how to go on."""
    process = command.start_and_train(out)
    process.send_signal(number)
    _, error = process.communicate()
    assert process.returncode == 128 + number, error
    line = (
        r"interrupted: saved at (\w+) ([\d,]+) in (.*)\. Repeat the command to go on\."
    )
    _, step, folder = re.fullmatch(line, error.splitlines()[-1]).groups()
    assert folder == str(out)
    assert int(step.replace(",", "")) == saved_steps(out / CHECKPOINTS)[-1]


def damage_newest(out):
    """Damages the newest checkpoint; returns the warning of the next process."""
    steps = saved_steps(out / CHECKPOINTS)
    assert len(steps) == 2
    path = out / CHECKPOINTS / str(steps[-1]) / "default" / "_METADATA"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    return f"warning: {path} is damaged: its checksum differs. "


def fill_disk(command, out):
    """Lets no file of a run grow; the run ends with one line. Returns all lines."""
    if not IS_LINUX:
        pytest.skip("Only Linux has prlimit.")
    import resource

    process = command.start_and_train(out)
    # No file can grow any more: the error of a full disk but for its number.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100, 100))
    _, error = process.communicate()
    assert process.returncode == 2
    *_, line = [line for line in error.splitlines() if "sequences" not in line]
    assert re.match(f"error: cannot write (the checkpoint )?{out}/", line)
    assert "File too large. Repeat the command to go on" in line
    assert "Traceback" not in error
    return error


def damage_checkpoint_and_fill_disk(command, out):
    """Fills the disk of the process that warns of the damage."""
    send_signal(command, out)
    warning = damage_newest(out)
    assert fill_disk(command, out).startswith(warning)


IS_LINUX = sys.platform == "linux"
INTERRUPTIONS = {
    "damage and full disk": [kill_between_checkpoints, damage_checkpoint_and_fill_disk],
    "kills": [kill_at_any_time, kill_between_checkpoints] * 10,
    "SIGTERM": [send_signal],
    "SIGINT": [partial(send_signal, number=signal.SIGINT)],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("interruptions", INTERRUPTIONS)
@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_interrupted_run_equals_an_uninterrupted_one(interruptions, command, tmp_path):
    for interrupt in INTERRUPTIONS[interruptions]:
        interrupt(command, tmp_path)
        if (tmp_path / RESULT).exists():
            # It had already finished.
            command.assert_equals_whole(tmp_path)
            shutil.rmtree(tmp_path)
    command.finish(tmp_path)
    command.assert_equals_whole(tmp_path)


def catches(process, number):
    """Says whether a process has a handler for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = int(re.search(r"SigCgt:\s*(\w+)", status).group(1), 16)
    return bool(mask >> (number - 1) & 1)


@pytest.mark.exhaustive
@pytest.mark.skipif(not IS_LINUX, reason="only Linux has /proc")
@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_signal_before_training_ends_the_run(number, share, command, tmp_path):
    process = command.start(tmp_path, "-m", "experiments")
    # Python has a handler for SIGINT from its start, but none for SIGTERM.
    while not catches(process, signal.SIGTERM):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(share)
    process.send_signal(number)
    _, error = process.communicate()
    assert process.returncode == 128 + number, error
    assert "interrupted" in error.splitlines()[-1] and "Traceback" not in error


# Root may write everywhere, unless it gives that power up.
WITHOUT_POWER = """
import ctypes, os, sys
CAP_DAC_OVERRIDE, PR_CAPBSET_DROP = 1, 24
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "experiments", *sys.argv[1:]])
"""


@pytest.mark.parametrize("command", by_level(COMMANDS, 1), indirect=True)
def test_folder_without_write_permission_is_one_line(command, tmp_path):
    out = tmp_path / "run"
    os.chmod(tmp_path, 0o555)
    process = command.start(out, "-c", WITHOUT_POWER)
    _, error = process.communicate()
    assert process.returncode == 2
    (line,) = error.splitlines()
    assert line.startswith("error: ") and "Permission denied" in line
    assert str(out) in line


LOOP = """
import hashlib, sys, time
from experiments.runs.interruption import Interrupted, Interruption

try:
    with Interruption(at_once="at once" in sys.argv) as interruption:
        print("ready", flush=True)
        if "in C" in sys.argv:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        while interruption.requested is None:
            time.sleep(0.001)
        if "slow" in sys.argv:
            print("saving", flush=True)
            time.sleep(1000)
        if "forgets" not in sys.argv:
            raise Interrupted(interruption.requested, "saved")
except Interrupted as interrupted:
    print(interrupted)
    sys.exit(interrupted.status)
"""


def loop(*words):
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_requested(number):
    process = loop()
    process.send_signal(number)
    assert process.communicate() == ("saved\n", "")
    assert process.returncode == 128 + number


def test_signal_that_the_loop_did_not_read_is_not_lost():
    process = loop("forgets")
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("the last steps were not saved\n", "")
    assert process.returncode == 130


def test_second_signal_of_a_kind_ends_the_process():
    process = loop("slow")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "saving\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert "interrupted" in process.communicate()[1]
    assert process.returncode == 143


def test_signal_ends_a_process_that_computes():
    process = loop("at once", "in C")
    process.send_signal(signal.SIGINT)
    output, error = process.communicate()
    assert (output, error) == ("", "interrupted. Repeat the command to go on.\n")
    assert process.returncode == 130
