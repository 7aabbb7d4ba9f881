"""A checkpoint whose contents were changed and sealed again: the one before it is used, or a sentence says why not."""

import json
import shutil
import warnings
import zlib

import pytest

import bilevel as bl
from bilevel.loop.checkpoints.contents import check_contents
from bilevel.loop.checkpoints.folder import Damaged, orbax
from loop.checkpoints.tiny import go

ODD = ["a", -1, 1.5, None, True, [], {}, [["a"]], {"a": 1}, 1e400]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("types") / "run"
    go(folder, 4, save_every=2, on_divergence="halve")
    return folder


def contents_of(folder):
    return json.loads(json.loads((folder / "2" / "contents.json").read_text())["text"])


def seal(folder, contents):
    text = json.dumps(contents)
    sealed = {"text": text, "checksum": zlib.crc32(text.encode())}
    (folder / "2" / "contents.json").write_text(json.dumps(sealed))


def changed(contents):
    """The contents with one field of another type, for every field and every odd value."""
    for name in contents:
        for odd in ODD:
            if odd != contents[name]:
                yield name, odd, contents | {name: odd}
    for name in contents["origin"]:
        for odd in ODD:
            if odd != contents["origin"][name]:
                yield f"origin.{name}", odd, contents | {"origin": contents["origin"] | {name: odd}}


def outcome(call):
    """What a caller sees: the steps of the result and the warnings, or the sentence that refuses it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            steps = call().steps
        except ValueError as error:
            return str(error)
    return f"{steps} steps, {len(told)} warnings"


def test_any_field_of_another_type_is_damage_or_refused_in_a_sentence(saved, tmp_path):
    """Read without arrays first, so that hundreds are tried; what passes is read as a run."""
    folder, passed = shutil.copytree(saved, tmp_path / "run"), []
    for name, odd, contents in changed(contents_of(saved)):
        try:
            check_contents(folder, contents)
        except Damaged:
            continue
        except ValueError:  # written by another version, as it says
            assert name == "format", (name, odd)
            continue
        passed.append((name, odd, contents))
    assert orbax()
    for name, odd, contents in passed:
        seal(folder, contents)
        seen = outcome(lambda: bl.load(folder))
        assert seen in ("4 steps, 0 warnings", "2 steps, 1 warnings"), (name, odd, seen)
    assert len(passed) < 40, [(name, odd) for name, odd, _ in passed]


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": "a"},
        {"halvings": [[0, "a", 1.0]]},
        {"status": {"code": "completed", "message": 3, "variable": None, "step": None}},
        {"fingerprint": [["x"]]},
    ],
    ids=str,
)
def test_a_run_goes_on_from_the_one_before(saved, tmp_path, change):
    folder = shutil.copytree(saved, tmp_path / "run")
    seal(folder, contents_of(folder) | change)
    field = next(iter(change))
    with pytest.warns(RuntimeWarning, match=f"checkpoint 2 .* is damaged .'{field}' in its contents has"):
        assert go(folder, 6, on_divergence="halve").steps == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numbers", "reads", "start", "data", "seed", "stops", "outline"])
def test_of_the_origin_too(saved, tmp_path, name):
    folder = shutil.copytree(saved, tmp_path / "run")
    contents = contents_of(folder)
    contents["origin"][name] = [["a"]]
    seal(folder, contents)
    with pytest.warns(RuntimeWarning, match="checkpoint 2 .* is damaged"):
        assert go(folder, 6, on_divergence="halve").steps == 6
