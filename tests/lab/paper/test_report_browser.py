"""The report in a real browser, at the width of a desk and of a phone. Skipped only where there is no browser."""

import shutil
import subprocess

import pytest

from bilevel.lab.paper.report import write_report

pytestmark = pytest.mark.slow

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",  # so that the wrapper may look into the frame
    "--virtual-time-budget=8000",
)
# A browser window cannot be as narrow as a phone, a frame can. The script runs in the frame's page.
WRAPPER = """<!doctype html><body style="margin:0">
<iframe id="frame" src="report.html" style="width:{width}px;height:20000px;border:0"></iframe><pre id="found"></pre>
<script>
document.getElementById("frame").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const pictures = [...page.images];
  const wide = [...page.querySelectorAll("body *")].filter(
    (e) => e.getBoundingClientRect().right > {width} + 1 && !e.closest(".scroll"));
  const overlap = (a, b) => a.right > b.left + 1 && b.right > a.left + 1
    && a.bottom > b.top + 1 && b.bottom > a.top + 1;
  const boxes = [...page.querySelectorAll("figure, .claims tr, h2, .scroll, dl")].map((e) => e.getBoundingClientRect())
    .filter((box) => box.height > 0);
  let collisions = 0;
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {{ collisions += overlap(a, b); }}));
  document.getElementById("found").textContent = [
    "width=" + root.scrollWidth, "pictures=" + pictures.length,
    "loaded=" + pictures.filter((p) => p.complete && p.naturalWidth > 0).length,
    "narrowest=" + Math.round(Math.min(...pictures.map((p) => p.getBoundingClientRect().width))),
    "wide=" + wide.length, "collisions=" + collisions, "rows=" + page.querySelectorAll(".claims tbody tr").length,
  ].join(" ");
}};
</script></body>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, fill):
    folder = tmp_path_factory.mktemp("browser")
    fill(folder)
    write_report(folder, ("svg",))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("width", "narrowest"), [(360, 300), (1280, 450)])
def test_page_fits_its_window(folder, tmp_path, width, narrowest):
    wrapper = folder / f"wrapper-{width}.html"
    wrapper.write_text(WRAPPER.format(width=width))
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path}", "--dump-dom", wrapper.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    report = shown.split('<pre id="found">')[1].split("</pre>")[0]
    assert report, "the page did not load"
    found = {name: int(value) for name, value in (part.split("=") for part in report.split())}
    assert found["width"] <= width  # no sideways scrolling of the page
    assert found["wide"] == 0
    assert found["pictures"] == found["loaded"] == 8
    assert found["narrowest"] >= narrowest
    assert found["collisions"] == 0
    assert found["rows"] == 19


def test_page_prints(folder, tmp_path):
    target = tmp_path / "report.pdf"
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={target}"]
    subprocess.run(
        [*command, (folder / "report.html").as_uri()], capture_output=True, timeout=120, check=True
    )
    assert target.read_bytes().startswith(b"%PDF")
