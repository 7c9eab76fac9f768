"""progress= tells how many bytes are ready while a model is copied or pinned."""

import logging
import sys
import types

import pytest
from models import Net, Pipeline, size_of

import libstagehand.torch as st


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr("libstagehand.torch._progress._GROUP", 40 << 10)


def test_a_function_hears_of_all_bytes(device, net, tokens, small_groups):
    told, want = [], net(tokens)["logits"]
    with st.stream(net, device, budget=size_of(net) // 4, progress=lambda *heard: told.append(heard)) as streamed:
        assert told[0] == (0, told[-1][1]) and told[-1][0] == told[-1][1] >= size_of(net)
        assert len(told) > 4 and told == sorted(told) and len({total for _, total in told}) == 1
        before = list(told)
        assert (net(tokens)["logits"] == want).all()
        assert told == before and len(streamed.blocks()) > len(told)


def test_the_models_of_a_pipeline_are_one_progress(device, small_groups):
    told = []
    pipe = Pipeline(first=Net().requires_grad_(False), second=Net(layers=4).requires_grad_(False), text="text")
    with st.stream(pipe, device, progress=lambda *heard: told.append(heard)):
        all_bytes = sum(size_of(one) for one in (pipe.components["first"], pipe.components["second"]))
        assert told[0] == (0, all_bytes) and told[-1] == (all_bytes, all_bytes)
        assert told == sorted(told) and len(told) > 6


def test_a_bar_of_tqdm(device, net, capsys, small_groups):
    pytest.importorskip("tqdm")
    st.stream(net, device, progress=True).close()
    assert "Streaming: 100%" in capsys.readouterr().err


def test_lines_without_tqdm(device, net, caplog, capsys, monkeypatch, small_groups):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr("libstagehand.torch._progress._PAUSE", 0.0)
    caplog.set_level(logging.INFO, "libstagehand.torch")
    st.stream(net, device, progress=True).close()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) > 4 and lines[-1].split()[0] == lines[-1].split()[2] and "ready to be streamed" in lines[-1]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("progress", [None, False])
def test_nothing_is_shown_by_default(device, net, caplog, capsys, progress):
    caplog.set_level(logging.INFO, "libstagehand.torch")
    st.stream(net, device, progress=progress).close()
    assert not caplog.records and capsys.readouterr() == ("", "")


def test_an_error_of_the_function_ends_streaming(device, net, tokens):
    want = net(tokens)["logits"]

    def stop(done, total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        st.stream(net, device, progress=stop)
    assert (net(tokens)["logits"] == want).all() and device.memory().runtime_count == 0


def test_a_bar_that_is_closed(monkeypatch, device, net):
    shown = []

    class Bar:
        n = 0

        def __init__(self, **options):
            shown.append(options["total"])

        def update(self, more):
            self.n += more

        def close(self):
            shown.append(self.n)

    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    st.stream(Pipeline(first=net, second=Net().requires_grad_(False)), device, progress=True).close()
    assert shown == [2 * size_of(net), 2 * size_of(net)]
