"""Links in a checkpoint folder: nothing is written into what they lead to, and nothing there is deleted."""

import pytest

from loop.checkpoints.tiny import go

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def outside(tmp_path):
    """A folder with a file in it that no run may touch."""
    folder = tmp_path / "outside"
    (folder / "arrays").mkdir(parents=True)
    (folder / "arrays" / "kept").write_text("kept")
    yield folder
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert found == ["arrays", "arrays/kept"]
    assert (folder / "arrays" / "kept").read_text() == "kept"


def numbers(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


@pytest.mark.parametrize("number", [1, 2])
def test_a_link_where_the_next_checkpoint_is_written(tmp_path, outside, number):
    run = tmp_path / "run"
    run.mkdir()
    (run / f"{number}.unfinished").symlink_to(outside)
    go(run, 6, save_every=2)
    assert numbers(run) == [1, 2, 3]
    assert not (run / f"{number}.unfinished").exists()
    assert not any(path.is_symlink() for path in run.iterdir())


def test_a_link_that_appears_while_the_run_goes_on(tmp_path, outside):
    run = tmp_path / "run"

    def plant(event):
        for number in range(1, 9):
            if not (link := run / f"{number}.unfinished").exists():
                link.symlink_to(outside)

    go(run, 6, every=1, hooks=[plant])
    assert numbers(run) == [1]
    assert not (run / "1").is_symlink()


def test_a_link_to_nowhere(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "1.unfinished").symlink_to(tmp_path / "nowhere")
    go(run, 6)
    assert numbers(run) == [1]
    assert not (tmp_path / "nowhere").exists()


def test_a_link_in_place_of_the_next_checkpoint(tmp_path):
    run, empty = tmp_path / "run", tmp_path / "empty"
    run.mkdir()
    empty.mkdir()
    (run / "1").symlink_to(empty)
    go(run, 6)
    assert (run / "1" / "contents.json").is_file()
    assert not (run / "1").is_symlink()
    assert not list(empty.iterdir())


def test_of_an_old_checkpoint_that_is_a_link_the_link_is_removed(tmp_path):
    run, moved = tmp_path / "run", tmp_path / "moved"
    go(run, 2)
    (run / "1").rename(moved)
    (run / "1").symlink_to(moved)
    go(run, 10, save_every=2)  # three are kept
    assert numbers(run) == [3, 4, 5]
    assert (moved / "contents.json").is_file()
    assert not (run / "1").is_symlink()


@pytest.mark.filterwarnings("ignore:checkpoint 1 in")
def test_a_damaged_checkpoint_is_not_set_aside_into_a_link(tmp_path, outside):
    run = tmp_path / "run"
    go(run, 4, save_every=2)
    (run / "2" / "contents.json").write_text("{}")
    (run / "2.damaged").symlink_to(outside)
    with pytest.warns(RuntimeWarning, match="checkpoint 2 in .* is damaged"):
        go(run, 6)
    assert (run / "2.damaged").is_dir()
    assert not (run / "2.damaged").is_symlink()
