"""Files are found once each, and those that cannot be read are named."""

import os
import socket
from pathlib import Path

import pytest
from programs import PROGRAMS
from test_migrate_cli import contents, git

from rnncells.migrate.cli import main
from rnncells.migrate.migration import migrate

OLD = PROGRAMS["setup"]
NEW = migrate(OLD.encode()).data.decode()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with one old file in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup.py").write_text(OLD)
    return tmp_path


@pytest.mark.parametrize("given", [["locked", "setup.py"], ["."]])
def test_unreadable_folders_are_named(given, folder, monkeypatch, capsys):
    (folder / "locked").mkdir()
    scandir = os.scandir

    # The superuser can read every folder.
    def refuse(path):
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert main(["migrate", "locked", "--check"]) == 2
    assert main(["migrate", *given, "--write"]) == 2
    lines = capsys.readouterr().err.splitlines()
    named = [line.removeprefix("./") for line in lines if "locked" in line]
    assert named == 2 * ["locked: not searched: Permission denied"]
    assert "1 of 1 files changed" in lines
    assert (folder / "setup.py").read_text() == NEW


@pytest.mark.parametrize(
    "given",
    [
        ["."],
        ["setup.py", "{here}/setup.py"],
        ["a.py", "setup.py"],
        ["a.py"],
        ["{here}/inner/to_here/setup.py", "./inner/../setup.py"],
    ],
)
def test_a_file_with_several_names_is_rewritten_once(given, folder, capsysbinary):
    (folder / "inner").mkdir()
    (folder / "a.py").symlink_to("setup.py")
    (folder / "inner" / "b.py").symlink_to("../setup.py")
    (folder / "inner" / "to_here").symlink_to("..")
    assert main(["migrate", *(name.format(here=folder) for name in given)]) == 0
    output = capsysbinary.readouterr()
    assert b"1 of 1 files would change" in output.err
    git("init")
    git("apply", input=output.out)
    assert (folder / "setup.py").read_text() == NEW
    assert (folder / "a.py").is_symlink()


def test_a_file_is_listed_under_its_own_name_not_a_link(folder, capsys):
    (folder / "a.py").symlink_to("setup.py")
    assert main(["migrate", ".", "--check"]) == 1
    assert "setup.py: would change" in capsys.readouterr().err.splitlines()


def test_folders_are_searched_for_regular_files_only(folder, capsys):
    """Hidden files, broken links (such as locks of editors) and sockets are skipped."""
    (folder / ".hidden.py").write_text(OLD)
    (folder / ".#lock.py").symlink_to("user@host.1:2")
    (folder / "broken.py").symlink_to("nowhere.py")
    (folder / "folder.py").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.py")
        assert main(["migrate", ".", "--write"]) == 0
    assert "1 of 1 files changed" in capsys.readouterr().err
    assert (folder / ".hidden.py").read_text() == OLD


def test_hidden_files_can_be_given_by_name(folder, capsys):
    (folder / ".hidden.py").write_text(OLD)
    (folder / "broken.py").symlink_to("nowhere.py")
    assert main(["migrate", ".hidden.py", "--write"]) == 0
    assert (folder / ".hidden.py").read_text() == NEW
    assert main(["migrate", "broken.py"]) == 2
    assert "no such file or folder: broken.py" in capsys.readouterr().err


def test_circular_links_are_named(folder, capsys):
    (folder / "loop.py").symlink_to("loop.py")
    assert main(["migrate", ".", "--write"]) == 2
    output = capsys.readouterr().err
    assert "loop.py: not rewritten: OSError: " in output
    assert "1 of 2 files changed" in output


@pytest.mark.parametrize("encoding", ["rot13", "hex", "undefined", "no_such"])
def test_unknown_encodings_are_named(encoding, folder, capsys):
    (folder / "odd.py").write_text(f"# coding: {encoding}\n{OLD}")
    before = contents(folder)
    assert main(["migrate", ".", "--check"]) == 2
    output = capsys.readouterr().err
    assert "odd.py: not rewritten: not Python: " in output and encoding in output
    assert "setup.py: would change" in output
    assert contents(folder) == before
