"""Files appear whole or not at all, with the permissions that any new file would have."""

import errno
import os
import stat

import pytest

from bilevel.atomic_files import Unsaved, new_part, remove_parts, write


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt(), MemoryError()]
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(monkeypatch, tmp_path, failure):
    path = tmp_path / "file"
    write(path, b"old")

    def fail(descriptor):
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Unsaved if isinstance(failure, OSError) else type(failure)) as caught:
        write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(failure, OSError):
        assert str(caught.value) == f"{path} (No space left on device)"
        assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_permissions_are_those_of_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_the_folder_is_made_and_made_again(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    assert write(path, b"1") == path
    path.unlink()
    path.parent.rmdir()
    write(path, b"2")
    assert path.read_bytes() == b"2"


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_a_name_that_no_file_can_have(tmp_path, name):
    with pytest.raises(Unsaved):
        write(tmp_path / name, b"")
    assert list(tmp_path.iterdir()) == []


def test_only_what_was_left_unfinished_is_removed(tmp_path):
    kept = [tmp_path / name for name in ("a.part", ".hidden", ".a.0123.part", "table.csv")]
    for path in [*kept, new_part(tmp_path / "table.csv"), new_part(tmp_path / "b")]:
        path.touch()
    remove_parts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
