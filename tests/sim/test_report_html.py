"""The page: complete without a network, and drawn by a real browser where there is one."""

import html.parser
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from sim.compare import compare, lesson_rows
from sim.report_html import headline, page
from sim.results import Spread
from sim.run import Setup
from tests.sim.loads import chats

SETUP = Setup(replicas=3, blocks=400)
POLICIES = ("round-robin", "prefix-aware")
CHROMIUM = shutil.which("chromium")

PROBE = """
<script>
addEventListener("error", (event) => { document.documentElement.dataset.fault = event.message; });
addEventListener("load", () => {
  const sizes = ["ttft", "hits", "replicas", "caches", "latencies", "load"].map((id) => {
    const box = document.getElementById(id)?.getBoundingClientRect();
    return box ? `${id}:${Math.round(box.width)}x${Math.round(box.height)}` : `${id}:none`;
  });
  const line = document.querySelector("#ttft polyline").getBoundingClientRect();
  const colours = [...document.querySelectorAll("#ttft polyline")].map((one) => getComputedStyle(one).stroke);
  document.documentElement.dataset.sizes = sizes.join(" ");
  document.documentElement.dataset.line = `${Math.round(line.width)}x${Math.round(line.height)}`;
  document.documentElement.dataset.colours = new Set(colours).size;
  document.documentElement.dataset.overflow = document.documentElement.scrollWidth > innerWidth;
});
</script>
"""


@pytest.fixture(scope="module")
def comparison():
    found = compare(lambda seed: chats(150, seed), POLICIES, SETUP)
    return replace(found, lesson=lesson_rows())


def test_nothing_is_loaded_from_anywhere(comparison):
    told = page(comparison)
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:,|#)[^"']*""", told)
    assert "url(" not in told
    assert "@import" not in told
    assert "http" not in told


def test_every_policy_and_bound_is_in_charts_and_tables(comparison):
    told = page(comparison)
    for name in ("no cache", "one infinite cache", "oracle", *POLICIES):
        assert told.count(name) >= 3, name
    assert len(re.findall(r"<polyline", told)) == 1 + len(POLICIES)
    assert "a salt per user" in told


def test_tags_are_balanced(comparison):
    class Tags(html.parser.HTMLParser):
        void = frozenset({"meta", "link"})

        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attrs):
            if tag not in self.void:
                self.open.append(tag)

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    tags = Tags()
    tags.feed(page(comparison))
    assert tags.open == []


def test_charts_have_words_and_tables_heads(comparison):
    told = page(comparison)
    for svg in re.findall(r"<svg[^>]*>", told):
        assert 'role="img"' in svg
        assert re.search(r'aria-label="[^"]{20,}"', svg)
    assert all("scope=" in head for head in re.findall(r"<th\b[^>]*>", told))
    assert '<html lang="en">' in told


def test_names_are_escaped(comparison):
    assert "<script>alert" not in page(replace(comparison, name="<script>alert(1)</script>"))


def test_lengths_only_have_no_hits_to_draw():
    told = page(compare(lambda _: chats(has_prefixes=False), POLICIES, SETUP))
    assert 'id="hits"' not in told
    assert 'id="caches"' not in told
    assert "lengths only: no prefix analysis" in told


def test_the_headline_says_when_there_is_no_difference(comparison):
    assert "prefix-aware" in headline(comparison)
    row = comparison.rows[0]
    alike = [replace(row.results[0], policy=name, ttft_s=Spread(1.0, 1.0, 1.0, 1.0)) for name in "ab"]
    same = replace(comparison, rows=tuple(replace(row, results=(one,)) for one in alike))
    assert "does not matter" in headline(same)
    assert headline(replace(comparison, rows=comparison.rows[:1])) == ""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
@pytest.mark.parametrize("width", [1200, 420])
def test_a_browser_draws_it_without_a_fault(comparison, tmp_path, width):
    file = tmp_path / "page.html"
    file.write_text(page(comparison).replace("<head>", "<head>" + PROBE), encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--virtual-time-budget=2000"]
    words += [f"--user-data-dir={tmp_path}/profile", "--enable-logging=stderr", "--dump-dom", file.as_uri()]
    done = subprocess.run(  # noqa: S603 -- the browser of this machine on our own page
        [CHROMIUM, *words], capture_output=True, text=True, timeout=60, check=True
    )
    root = re.search(r"<html[^>]*>", done.stdout)[0]
    assert "data-fault" not in root
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    sizes = dict(re.findall(r"(\w+):(\d+x\d+|none)", re.search(r'data-sizes="([^"]*)"', root)[1]))
    assert set(sizes) == {"ttft", "hits", "replicas", "caches", "latencies", "load"}
    for name, size in sizes.items():
        across, down = map(int, size.split("x"))
        assert across > 300, name
        assert down > 60, name
    across, down = map(int, re.search(r'data-line="([^"]*)"', root)[1].split("x"))
    assert across > 20
    assert down > 100
    assert 'data-colours="3"' in root
    assert 'data-overflow="false"' in root
