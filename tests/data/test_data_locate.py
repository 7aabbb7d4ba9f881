"""The order in which places are tried, and what is said when a named folder lacks a file."""

import sys
from pathlib import Path

import pytest

from bilevel.data import DataError, cache_directory, space_ga
from bilevel.data.directories import locate
from bilevel.data.files import read


def write(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(name)


def fake_download(name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"downloaded")


def refuse_download(name: str, path: Path) -> None:
    raise AssertionError(f"{name} was downloaded")


def test_the_named_folder_comes_first(monkeypatch, tmp_path, cache):
    write(cache, "a")
    write(tmp_path / "environment", "a")
    write(tmp_path / "argument", "a")
    monkeypatch.setenv("BILEVEL_DATA", str(tmp_path / "environment"))
    found = locate(["a"], tmp_path / "argument", refuse_download)
    assert found == ([tmp_path / "argument" / "a"], str(tmp_path / "argument"))
    found = locate(["a"], None, refuse_download)
    assert found == ([tmp_path / "environment" / "a"], str(tmp_path / "environment"))


def test_then_the_cache_then_a_download_then_nothing(cache):
    assert locate(["a", "b"], None, None) is None
    write(cache, "a")
    assert locate(["a", "b"], None, None) is None  # half a data set is none
    found = locate(["a", "b"], None, fake_download)
    assert found is not None
    assert [path.read_text() for path in found[0]] == ["a", "downloaded"]
    again = locate(["a", "b"], None, refuse_download)
    assert again == found
    assert str(cache) in found[1]


def test_an_empty_variable_names_no_folder(monkeypatch):
    monkeypatch.setenv("BILEVEL_DATA", "")
    assert locate(["a"], None, None) is None


def test_an_unpacked_file_will_do(tmp_path):
    write(tmp_path, "a", "b.gz", "b")
    found = locate(["a.gz", "b.gz"], tmp_path, None)
    assert found is not None
    assert found[0] == [tmp_path / "a", tmp_path / "b.gz"]


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_named_folder_without_the_file_is_an_error(monkeypatch, tmp_path, cache, how):
    write(cache, "a", "b")
    write(tmp_path / "named", "a")
    if how == "variable":
        monkeypatch.setenv("BILEVEL_DATA", str(tmp_path / "named"))
    with pytest.raises(DataError, match=r"lacks b; put the file there, or leave \w+ unset") as caught:
        locate(["a", "b"], tmp_path / "named" if how == "argument" else None, fake_download)
    assert str(tmp_path / "named") in str(caught.value)
    assert ("BILEVEL_DATA" in str(caught.value)) == (how == "variable")


def test_a_named_folder_that_does_not_exist(tmp_path):
    with pytest.raises(DataError, match=r"nowhere \(named by directory\) does not exist .* expected a in it"):
        locate(["a"], tmp_path / "nowhere", None)


def test_a_folder_in_place_of_a_file_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"^.*: cannot be read"):
        read(tmp_path, at_most=100)


def test_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("BILEVEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "bilevel"
    home = tmp_path / "home"
    monkeypatch.setattr(Path, "home", lambda: home)
    for unset in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setattr(sys, "platform", "linux")
        assert cache_directory() == home / ".cache" / "bilevel"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == home / "Library" / "Caches" / "bilevel"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_directory() == tmp_path / "local" / "bilevel"
    assert not (tmp_path / "bilevel").exists()


def test_a_file_of_terabytes_is_refused_unread(tmp_path):
    with (tmp_path / "space_ga").open("wb") as file:
        try:
            file.truncate(8 * 10**12)  # sparse: it takes no room
        except OSError:
            pytest.skip("no such large files here")
    with pytest.raises(
        DataError, match=r"space_ga: holds 8,000,000,000,000 bytes, expected at most 4,000,000; "
    ):
        space_ga(tmp_path)


def test_the_limit_itself_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read(tmp_path / "file", at_most=5) == b"12345"
    with pytest.raises(DataError, match="holds 5 bytes, expected at most 4"):
        read(tmp_path / "file", at_most=4)
