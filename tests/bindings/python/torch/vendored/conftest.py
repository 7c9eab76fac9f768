"""Runs each of PyTorch's own tests of autograd several times: plainly, and in each surrounding of `autograd_hooks.py`.

A test that fails plainly is skipped: it is of another version of PyTorch than the one that is installed, or needs what
is not here. Of the others exactly those of `expected.py` fail in a surrounding, with the words that are written there.
"""

import importlib.util
import os
import pathlib
import sys

import pytest
from _pytest.runner import runtestprotocol

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "pytorch")]
os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cpu")  # the surroundings stream on the CPU
# test_autograd.py imports the tests in autograd/. All of them need a package of PyTorch's own tests.
collect_ignore_glob = ["pytorch/autograd/*" if importlib.util.find_spec("expecttest") else "pytorch/*"]

from autograd_hooks import SURROUNDINGS
from expected import EXPECTED, MAY_PASS, TOO_LONG


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents and item.name in TOO_LONG:
            item.add_marker(pytest.mark.skip(reason=TOO_LONG[item.name]))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    item.surrounding = None
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    called = next((one for one in reports if one.when == "call"), None)
    if called is not None and called.failed:
        called.outcome, called.longrepr = "skipped", (str(item.path), 0, "fails without streaming, too")
    elif called is not None and called.passed:
        for name in SURROUNDINGS:
            item.surrounding = name
            again = runtestprotocol(item, nextitem=nextitem, log=False)
            judge(item, name, again)
            reports = [one for one in reports if one.passed] + [one for one in again if not one.passed]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    name = getattr(item, "surrounding", None)
    if name is not None:
        run = item.runtest
        item.runtest = lambda: SURROUNDINGS[name](run)
    try:
        return (yield)
    finally:
        vars(item).pop("runtest", None)


def judge(item, name, reports):
    """Compares the result with what is expected, and writes into the reports what is wrong."""
    reason, words = EXPECTED[name].get(item.name, (None, None))
    for report in (one for one in reports if one.when == "call"):
        if report.failed and words is not None and words in str(report.longrepr):
            report.outcome = "passed"
        elif report.failed:
            report.sections.append((f"in the surrounding {name!r}", "the test passes without streaming"))
        elif report.passed and words is not None and item.name not in MAY_PASS:
            report.outcome = "failed"
            report.longrepr = f"passes in the surrounding {name!r}, but expected.py says: {reason}"
