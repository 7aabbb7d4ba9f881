"""Open every page of the built site in a browser, as wide as a desktop and as a phone: `look.py SITE`.

No page may be wider than the window. On the desktop, no block of code and no table may need scrolling.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESK, PHONE = 1280, 390

# Every page is loaded once, with its scripts, in a frame that then changes its width.
LOOK = """<!doctype html><meta charset="utf-8"><body><script>
const pages = PAGES, found = [];
const frame = document.body.appendChild(document.createElement("iframe"));
frame.style.cssText = "border: 0; height: 900px";
const load = page => new Promise(done => { frame.onload = done; frame.src = page; });
const wide = box => box.scrollWidth > box.clientWidth + 1;
const words = box => box.textContent.trim().replace(/\\s+/g, " ").slice(0, 60);
(async () => {
  for (const page of pages) {
    frame.style.width = "DESKpx";
    await load(page);
    const seen = frame.contentDocument;
    for (const width of [DESK, PHONE]) {
      frame.style.width = width + "px";
      for (const box of seen.querySelectorAll("html, body, main, main div:has(article), article"))
        if (box.scrollWidth > Math.min(width, box.clientWidth + 1))
          found.push(`${page}: ${box.tagName} is ${box.scrollWidth} px wide in a window of ${width}`);
      if (width === DESK)
        for (const box of seen.querySelectorAll("article pre, article .pst-scrollable-table-container, article table"))
          if (wide(box)) found.push(`${page}: ${box.scrollWidth - box.clientWidth} px hidden of: ${words(box)}`);
    }
  }
  document.body.innerHTML = "";
  document.body.appendChild(document.createElement("pre")).textContent = JSON.stringify([pages.length, found]);
})();
</script></body>"""


def look(site: Path) -> list[str]:
    pages = sorted(
        str(page.relative_to(site)) for page in site.rglob("*.html") if "_static" not in page.parts
    )
    script = LOOK.replace("PAGES", json.dumps(pages)).replace("DESK", str(DESK)).replace("PHONE", str(PHONE))
    (site / "look.html").write_text(script)
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"),
                *("--allow-file-access-from-files", "--virtual-time-budget=600000", "--dump-dom"),
                (site / "look.html").resolve().as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
    (site / "look.html").unlink()
    count, found = json.loads(unescape(re.search(r"<pre>(.*)</pre>", done.stdout, re.DOTALL)[1]))
    assert count == len(pages) > 0
    print(f"{count} pages at {DESK} and {PHONE} px: {len(found)} faults")
    return found


if __name__ == "__main__":
    faults = look(Path(sys.argv[1]))
    sys.exit("\n".join(faults) or None)
