"""The same in processes of their own, with real signals and disks; `benchmarks/reliability.py` does it at length."""

import pytest
from faults import disks, kills

pytestmark = pytest.mark.slow
STEPS = 400


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


def test_killed_again_and_again(tmp_path):
    runs = kills.kill_runs(1, at_once=1, seed=1, steps=STEPS)
    assert sum(run.kills for run in runs) >= 1  # some may come after its end
    assert all(run.same for run in runs)


def test_a_disk_that_fills_up(tmp_path, cache):
    expected = kills.undisturbed(tmp_path / "plain", cache, STEPS)
    with disks.small_disk(tmp_path / "disk", "400k") as disk:
        if disk is None:
            pytest.skip("mounting is not allowed here")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "checkpoints").symlink_to(disk)
        status, steps, digest, said, errors = disks.run_with(tmp_path / "run", cache, STEPS, disks.fill(disk))
    assert (status, steps, digest) == (0, STEPS, expected)
    assert "Not every checkpoint could be saved" in said
    assert "No space left on device" in said
    assert "RuntimeWarning" in errors
    assert "Traceback" not in errors
