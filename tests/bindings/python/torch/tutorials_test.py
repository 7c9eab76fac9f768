"""The tutorials with PyTorch, followed as they stand."""

import pathlib
import sys

import pytest

import libstagehand

ROOT = pathlib.Path(__file__).parents[4]
sys.path.insert(0, str(ROOT / "tests/tutorials"))
import page  # noqa: E402


@pytest.mark.parametrize("name", ["five_lines", "two_models"])
def test_a_tutorial(name):
    site = pathlib.Path(libstagehand.__file__).parents[1]
    assert page.follow(ROOT / f"docs/tutorials/{name}.md", ROOT / "build", sys.executable, site) == 1
