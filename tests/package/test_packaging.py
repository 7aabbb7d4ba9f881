"""The metadata agree with the package. `.ci/package.py` builds and checks the distributions."""

import re
import tomllib
from pathlib import Path

import pytest

import bilevel as bl

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


@pytest.mark.parametrize(
    ("where", "pattern"),
    [
        ("pyproject.toml", r'^version = "(.*)"$'),
        ("CITATION.cff", r"^version: (.*)$"),
        ("docs/about/cite.md", r"version = \{(.*)\}"),
        ("CHANGELOG.md", r"\A# Changelog\n\n## (\S+)"),
    ],
)
def test_one_version_everywhere(where, pattern):
    assert re.findall(pattern, (ROOT / where).read_text(), re.MULTILINE) == [bl.__version__]


def test_the_versions_of_python_are_those_that_may_install_it():
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert named == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_the_licenses_are_those_of_all_that_is_bundled():
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])
    bundled = ROOT / "src/bilevel/data/bundled"
    told = (bundled / "README.md").read_text()
    assert all(f"`{path.name}`" in told for path in bundled.iterdir() if path.name != "README.md")
    addresses = re.findall(r"creativecommons\.org/(?:licenses|publicdomain)/([a-z-]+)/([\d.]+)/", told)
    creative = {
        f"CC0-{number}" if name == "zero" else f"CC-{name.upper()}-{number}" for name, number in addresses
    }
    assert {*PROJECT["license"].split(" AND ")} == {"Apache-2.0", "BSD-3-Clause", *creative}


def test_a_package_index_shows_the_readme_s_code_and_no_link_that_leads_nowhere():
    readme = (ROOT / "README.md").read_text()
    shown = readme
    for rule in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(rule["pattern"], rule["replacement"], shown)
    assert "](docs/" in readme
    assert not re.findall(r"\]\((?!https?://|#)|(?:src|href)=\"(?!https?://|#)", shown)
    code = lambda text: re.findall(r"```.*?```", text, re.DOTALL)
    assert code(shown) == code(readme)


def test_the_wheel_has_every_file_of_the_package():
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    packed = {one.distribution_path for one in builder.recurse_included_files()}
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert {"bilevel_command.py", "bilevel/py.typed", "bilevel/data/bundled/README.md"} <= packed
