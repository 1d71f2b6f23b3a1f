"""Every notebook by *Run All Cells* in a real JupyterLab: no error in any cell."""

import pytest

from c3lib.files import ROOT

NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def address(lab):
    return lab()


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_by_run_all(address, opened, shots, name):
    page = opened(address, name)
    page.screenshot(path=shots / f"{name}.png")
    wrong = page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']")
    assert wrong.all_inner_texts() == []
    assert page.locator(".jp-OutputArea-output").count() > 0
