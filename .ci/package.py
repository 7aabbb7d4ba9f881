"""Build the source distribution and the wheel, and fail unless both are complete.

python .ci/package.py folder    (with the extra `release`; the folder must be new)

The source distribution has exactly the files that git tracks. The wheel built from it equals the wheel built from the
tree, byte for byte, and has every file of the package and every license. A package index accepts both and shows no
dead link.
"""

import re
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

from readme_renderer.markdown import render

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"{PROJECT['name']}-{PROJECT['version']}"


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    tracked = tracked_files() if (ROOT / ".git").exists() else None
    build("--outdir", folder)  # the wheel from the source distribution
    build("--outdir", folder / "tree", "--wheel")
    sdist, wheel = folder / f"{NAME}.tar.gz", folder / f"{NAME}-py3-none-any.whl"
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)

    packed = contents(sdist)
    if tracked is None:
        print("no git checkout: the source distribution is not compared with the tracked files")
    else:
        same(packed, tracked | {"PKG-INFO"}, sdist.name)
    if wheel.read_bytes() != (folder / "tree" / wheel.name).read_bytes():
        sys.exit("the wheel built from the source distribution differs from the wheel built from the tree")
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = message_from_bytes(archive.read(f"{NAME}.dist-info/METADATA"))
    package = {name.removeprefix("src/") for name in packed if name.startswith("src/")}
    licenses = {f"{NAME}.dist-info/licenses/{name}" for name in PROJECT["license-files"]}
    own = {f"{NAME}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    same(names, package | licenses | own, wheel.name)
    check_description(str(metadata.get_payload(decode=True), "utf-8"))
    print(f"{sdist.name}: {len(packed)} files; {wheel.name}: {len(names)}, of the package {len(package)}")


def check_description(text: str) -> None:
    """Fail unless a package index shows the code of the README, and only links that work there."""
    page = render(text)
    if page is None:
        sys.exit("the long description cannot be rendered")
    if dead := re.findall(r'(?:href|src)="(?!https?://|#)([^"]*)"', page):
        sys.exit(f"the long description has links that lead nowhere from a package index: {', '.join(dead)}")
    code = lambda text: re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE)
    if code(text) != code((ROOT / "README.md").read_text()):
        sys.exit(
            "the long description has other code blocks than README.md: see substitutions in pyproject.toml"
        )


def tracked_files() -> set[str]:
    """Return the tracked files. Fail if git neither tracks nor ignores a file, which would get into the package."""
    git = "git", "-c", "safe.directory=*"  # the checkout may be another user's
    list_of = lambda *options: run(*git, "ls-files", "-z", *options, quiet=True).split("\0")[:-1]
    if stray := list_of("--others", "--exclude-standard"):
        sys.exit(f"not tracked by git, and not ignored: {', '.join(stray)}")
    return set(list_of())


def contents(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        return {one.name.removeprefix(f"{NAME}/") for one in archive if not one.isdir()}


def same(found: set[str], expected: set[str], where: str) -> None:
    if lacking := sorted(expected - found):
        sys.exit(f"{where} lacks {', '.join(lacking)}")
    if surplus := sorted(found - expected):
        sys.exit(f"{where} has {', '.join(surplus)}, which does not belong there")


def build(*options: str | Path) -> None:
    run(sys.executable, "-m", "build", *options, quiet=True)


def run(*command: str | Path, quiet: bool = False) -> str:
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=quiet, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed\n{done.stdout or ''}{done.stderr or ''}")
    return done.stdout if quiet else ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve())
