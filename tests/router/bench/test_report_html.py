"""The page: complete without a network, every figure in it, and drawn by a real browser where there is one."""

import re
from dataclasses import replace

import pytest

from router.bench.phases import Plan
from router.bench.report import Report, cells
from router.bench.report_html import bars, page
from router.bench.results import Target
from router.usage import Usage
from tests.answers import OTHER, SIDE, answer, phase
from tests.browser import CHROMIUM, browser


@pytest.fixture
def report():
    answers = [answer(number, usage=Usage(10, 5, 3)) for number in range(9)]
    slow = [answer(number, ttft=0.4, error="cut" if number == 3 else "") for number in range(9)]
    phases = [
        phase(*answers),
        phase(*answers, name="warm"),
        phase(*slow, side=OTHER),
        phase(*slow, side=OTHER, name="warm"),
    ]
    plan = Plan("r", (2.0,), 8, None, 1, 64, interleaved=True)
    return Report("2026-01-01", (SIDE, OTHER), plan, Target(0.2), tuple(phases), {"max_tokens": 32, "file": None})


def test_nothing_is_loaded_from_anywhere(report):
    told = page(report)
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:,|#)[^"']*""", told)
    assert "url(" not in told
    assert "@import" not in told
    assert "<script" not in told


def test_every_figure_of_the_table_is_there(report):
    told = page(report)
    for row in report.rows:
        for cell in cells(row.figures, report.target):
            assert f'<td class="n">{cell}</td>' in told
    assert told.count("<tr>") == 2 + 4 + 2
    assert "Note: B unique 2/s cold: failed: 1 cut." in told
    assert "<dt>max tokens</dt><dd>32</dd>" in told
    assert "4.000 (4.000 to 4.000)" in told


def test_bars_are_on_one_axis_and_absent_where_nothing_was_seen(report):
    fractions = [bar.p95_fraction for bar in bars(report.rows)]
    assert fractions == pytest.approx([0.25, 0.25, 1, 1])
    silent = replace(report, phases=(phase(answer(0, ttft=None)),))
    assert bars(silent.rows) == ()
    assert "<svg" not in page(silent)


def test_names_of_the_user_cannot_become_markup(report):
    assert "<b>" not in page(replace(report, prompt_version="<b>bold</b>"))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
async def test_a_browser_draws_it_without_a_complaint(report, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page(report))
    async with browser(tmp_path / "profile") as tab:
        for width in (1200, 400):
            await tab.open(file.as_uri(), width=width, dark=width < 600)
            sizes = await tab.value(
                "['ttft','figures','ratios'].map(id => document.getElementById(id).getBoundingClientRect().height > 40)"
            )
            assert sizes == [True, True, True]
            assert await tab.value("document.documentElement.scrollWidth > innerWidth") is False
        assert tab.faults == []
        assert set(tab.loaded) <= {file.as_uri(), "data:,"}
