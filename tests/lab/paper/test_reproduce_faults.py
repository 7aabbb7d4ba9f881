"""`bilevel reproduce` when the disk is full, the folder goes away, somebody stops it, or its manifests are damaged."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from toys import OF_EACH_KIND, WRITES, play
from typer.testing import CliRunner

from bilevel.cli import app
from bilevel.lab.paper import registry
from bilevel.lab.paper.manifest import digest_of_manifest
from bilevel.lab.paper.plots import DRAWINGS
from bilevel.lab.paper.report.content import CAPTIONS

TABLES = {"one.csv": b"x\n0\n1\n2\n", "two.csv": b"x\n0\n2\n4\n"}


def said(result) -> str:
    """Its complaints, without the blank lines that older versions of rich leave behind a progress bar."""
    return "".join(line for line in result.stderr.splitlines(keepends=True) if line.strip())


@pytest.fixture
def toys(monkeypatch):
    kept = [(table, dict(table)) for table in (registry.EXPERIMENTS, registry.GROUPS, DRAWINGS, CAPTIONS)]
    yield play()
    for table, content in kept:
        table.clear()
        table |= content


@pytest.fixture
def call(toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["reproduce", *arguments, "--out", "here"])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def tables(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name.endswith(".csv")}


def at_write(monkeypatch, number: int, happens) -> None:
    """Something happens when the bytes of the file with this number are about to reach the disk."""
    count, real = iter(range(1000)), os.fsync

    def fsync(descriptor):
        if next(count) == number:
            happens()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(WRITES))
def test_a_full_disk_leaves_no_part_of_a_file_and_loses_nothing(call, tmp_path, monkeypatch, number):
    with monkeypatch.context() as patch:
        at_write(patch, number, full)
        result = call()
    assert result.exit_code == 3, result.output
    (line,) = result.stderr.strip().splitlines()
    assert "could not save here/" in line
    assert "(No space left on device)" in line
    found = contents(tmp_path / "here")
    assert all(found.values())
    assert not [name for name in found if name.endswith(".part")]
    for name, content in TABLES.items():  # what was computed is in the folder or on the screen
        printed = f"# {name}\n{content.decode()}" in result.stdout
        assert tables(tmp_path / "here").get(name) == content or printed or (name == "two.csv" and number < 2)
    assert ("one" in line.split("saved in here: ")[1]) == (number >= 2)
    again = call()
    assert again.exit_code == 0
    assert again.stdout.count("already there") == min(number, 4) // 2
    assert tables(tmp_path / "here") == TABLES


@pytest.mark.parametrize("number", OF_EACH_KIND)
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_what_was_finished_is_not_run_again(
    call, tmp_path, monkeypatch, number, sent, status
):
    with monkeypatch.context() as patch:
        at_write(patch, number, lambda: os.kill(os.getpid(), sent))
        result = call()
    assert result.exit_code == status, result.output
    assert said(result).endswith("stopped; what was finished is in here and will not be run again\n")
    found = contents(tmp_path / "here")
    assert all(found.values())
    assert not [name for name in found if name.endswith(".part")]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    again = call()
    assert again.exit_code == 0
    assert again.stdout.count("already there") == min(number, 4) // 2
    assert tables(tmp_path / "here") == TABLES


def mounted(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize(("size", "status"), [("8k", 3), ("4k", 2)])
def test_a_disk_that_is_really_full(call, tmp_path, size, status):
    (tmp_path / "here").mkdir()
    if not mounted(tmp_path / "here", f"size={size}"):
        pytest.skip("mounting is not allowed here")
    try:
        if size == "4k":
            (tmp_path / "here" / "other").write_bytes(bytes(4096))
        result = call()
        assert result.exit_code == status, result.output
        assert "No space left on device" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
        assert all(contents(tmp_path / "here").values())
    finally:
        subprocess.run(["umount", str(tmp_path / "here")], check=True)


def test_a_folder_that_is_really_read_only(call, tmp_path):
    (tmp_path / "here").mkdir()
    if not mounted(tmp_path / "here", "ro"):
        pytest.skip("mounting is not allowed here")
    try:
        result = call()
    finally:
        subprocess.run(["umount", str(tmp_path / "here")], check=True)
    assert result.exit_code == 2
    assert said(result) == (
        "bilevel: cannot write into here (Read-only file system): name another folder with --out\n"
    )


def test_a_folder_that_is_deleted_meanwhile_is_made_again_and_the_loss_is_told(call, toys, tmp_path):
    def run(settings, inputs, report):
        shutil.rmtree(tmp_path / "here")
        return {"two.csv": {"x": [0.0, 2.0, 4.0]}}

    toys["two"] = dataclasses.replace(toys["two"], run=run)
    result = call()
    assert result.exit_code == 3
    assert said(result) == (
        "bilevel: one could not be kept: here was changed meanwhile, and the report has what is left\n"
    )
    assert tables(tmp_path / "here") == {"two.csv": TABLES["two.csv"]}
    assert "Not run: one." in (tmp_path / "here" / "report.md").read_text()


def test_a_folder_in_the_place_of_a_manifest(call, tmp_path):
    (tmp_path / "here" / "one.json").mkdir(parents=True)
    result = call()
    assert result.exit_code == 3
    assert "could not save here/one.json (" in result.stderr
    assert result.stderr.strip().endswith("saved in here: nothing")


def without(*names):
    def damage(manifest):
        where = manifest
        for name in names[:-1]:
            where = where[name]
        del where[names[-1]]
        return manifest

    return damage


def forged(change):
    """A digest that fits, for who damages a manifest with care."""

    def damage(manifest):
        change(manifest)
        return manifest | {"digest": digest_of_manifest(manifest)}

    return damage


DAMAGES = {
    "empty": "",
    "binary": bytes(range(256)),
    "nested": "[" * 200_000,
    "nested and closed": "[" * 100_000 + "]" * 100_000,
    "huge": " " * 1_000_001,
    "huge number": '{"seconds": ' + "9" * 10_000 + "}",
    "a list": [1],
    "nothing": {},
    "no origin": without("origin"),
    "no settings": without("origin", "settings"),
    "no seconds": without("seconds"),
    "no digest": without("digest"),
    "other seconds": lambda manifest: manifest | {"seconds": 7.0},
    "seconds in words": lambda manifest: manifest | {"seconds": "few"},
    "tables a number": lambda manifest: manifest | {"tables": 3},
    "forged seconds": forged(lambda manifest: manifest.update(seconds="few")),
    "forged origin": forged(lambda manifest: manifest.update(origin=[])),
    "forged settings": forged(lambda manifest: manifest["origin"].update(settings=None)),
    "forged tables": forged(lambda manifest: manifest.update(tables=None)),
    "forged code": forged(lambda manifest: manifest["origin"].update(code="other")),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_manifest_counts_as_absent_and_is_told(call, tmp_path, damage):
    assert call("one").exit_code == 0
    path = tmp_path / "here" / "one.json"
    made = damage(json.loads(path.read_text())) if callable(damage) else damage
    if isinstance(made, bytes):
        path.write_bytes(made)
    else:
        path.write_text(made if isinstance(made, str) else json.dumps(made))
    other = call("two")
    assert other.exit_code == 0, other.output
    assert other.stderr.startswith("bilevel: warning: here/one.json is ")
    assert said(other).endswith("; one counts as not run\n")
    assert len(said(other).splitlines()) == 1
    assert "Not run: one." in (tmp_path / "here" / "report.md").read_text()
    same = call("one")
    assert same.exit_code == 0
    assert "already there" not in same.stdout
    assert said(same) == said(other)  # told once more, and mended
    assert tables(tmp_path / "here") == TABLES


@pytest.mark.parametrize(
    ("name", "told"),
    [("one.json", "here/one.json is damaged"), ("one.csv", "here/one.csv is missing or was changed")],
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(call, tmp_path, name, told):
    call("one")
    (tmp_path / "here" / name).unlink()
    os.mkfifo(tmp_path / "here" / name)
    assert said(call("two")) == f"bilevel: warning: {told}; one counts as not run\n"
    assert call("one").exit_code == 0
    assert tables(tmp_path / "here") == TABLES


def test_a_table_that_was_changed_is_told(call, tmp_path):
    call("one")
    (tmp_path / "here" / "one.csv").write_text("x\n7\n")
    assert said(call("two")) == (
        "bilevel: warning: here/one.csv is missing or was changed; one counts as not run\n"
    )


@pytest.mark.slow
def test_killed_while_it_writes_it_ends_with_the_same_tables(tmp_path):
    """SIGKILL while a file of each kind is being written, then a start without; no lock and no part is left behind."""
    script = Path(__file__).with_name("kill_reproduce.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for number in OF_EACH_KIND:
        folder = tmp_path / str(number)
        assert tables(folder) == TABLES
        assert {path.suffix for path in folder.iterdir()} == {".csv", ".json", ".png", ".svg", ".md", ".html"}


def test_a_trial_does_not_replace_the_full_reproduction_unless_told_to(call, tmp_path):
    assert call().exit_code == 0
    full = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    trial = "two", "--quick", "--seeds", "3"
    refused = call(*trial)
    assert refused.exit_code == 2
    assert "here has two of the full protocol, which --quick would replace: name another" in refused.stderr
    assert full == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert call(*trial, "--force").exit_code == 0
    assert call(*trial).exit_code == 0  # now it has the trial's
    assert (
        "two was run with other settings than the full protocol: seeds"
        in (tmp_path / "here/report.md").read_text()
    )
