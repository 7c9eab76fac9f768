"""What leaves, as it is written: sizes, and the JSON of Stagehand's activation settings."""

import json

import pytest
import torch
from models import equal
from spilling import made, spilling, step

import libstagehand as sh
import libstagehand.torch as st
from libstagehand.torch._spill_config import options_of, read_config

MIB = 1 << 20
DOCUMENT = {
    "memory": {
        "strategy": "stagehand",
        "stagehand": {
            "activation_stagehand": {
                "enabled": True,
                "vram_high_watermark_mb": 16000,
                "vram_low_watermark_mb": 12000,
                "pinned_pool_classes_mb": [1, 4, 16, 64, 256],
                "slabs_per_class": [512, 2, 2, 2, 2],
                "max_inflight_d2h": 1,
                "max_inflight_h2d": 1,
                "debug_checksums": False,
                "telemetry_enabled": True,
                "telemetry_file": "activation_telemetry.jsonl",
            }
        },
    }
}
INNER = DOCUMENT["memory"]["stagehand"]["activation_stagehand"]


def test_the_document_as_it_stands(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DOCUMENT))
    for config in (DOCUMENT, DOCUMENT["memory"], DOCUMENT["memory"]["stagehand"], INNER, path, str(path)):
        options = read_config(config)
        assert (options.high_bytes, options.low_bytes) == (16000 * MIB, 12000 * MIB)
        assert options.classes == ((MIB, 512), (4 * MIB, 2), (16 * MIB, 2), (64 * MIB, 2), (256 * MIB, 2))
        assert (options.to_host_copies, options.to_device_copies) == (1, 1)
        assert options.enabled and not options.checksums and options.keep_bytes is None
        assert options.telemetry == "activation_telemetry.jsonl"


def test_defaults_of_the_document():
    options = read_config({})
    assert (options.high_bytes, options.low_bytes) == (20000 * MIB, 16000 * MIB)
    assert sum(size * count for size, count in options.classes) == (512 + 8 + 32 + 128 + 512) * MIB
    assert read_config({"telemetry_enabled": False}).telemetry is None
    assert read_config({"slabs_per_class": 3}).classes[-1] == (256 * MIB, 3)
    assert read_config({"vram_high_watermark_mb": 0, "vram_low_watermark_mb": 0}).keep_bytes == 0
    assert read_config({"recompute_threshold_bytes": 0}) == read_config({})
    assert read_config({"recompute_threshold_bytes": 9}).recompute_below == 9


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        ({"vram_high_watermark": 1}, ValueError, "vram_high_watermark is unknown; did you mean vram_high_watermark_mb"),
        ({"enabled": 1}, TypeError, "enabled=1 must be true or false"),
        ({"vram_high_watermark_mb": "16000"}, TypeError, "vram_high_watermark_mb='16000' must be an integer"),
        ({"vram_high_watermark_mb": -1}, ValueError, "vram_high_watermark_mb=-1 must be at least 0"),
        ({"vram_low_watermark_mb": 30000}, ValueError, "30000 is above vram_high_watermark_mb=20000"),
        ({"pinned_pool_classes_mb": [4, 1, 16, 64, 256]}, ValueError, "must grow"),
        ({"slabs_per_class": [1, 2]}, ValueError, "slabs_per_class has 2 numbers.* 5 sizes"),
        ({"slabs_per_class": []}, ValueError, "slabs_per_class is empty"),
        ({"max_inflight_d2h": 0}, ValueError, "max_inflight_d2h=0 must be at least 1"),
        ({"telemetry_file": 3}, TypeError, "telemetry_file=3 must be the name of a file"),
        ({"memory": {"strategy": "stagehand"}}, ValueError, "strategy has no activation_stagehand"),
        ({"activation_stagehand": 3}, ValueError, "activation_stagehand is a int"),
    ],
)
def test_what_is_wrong_is_named(config, error, text):
    with pytest.raises(error, match=text):
        read_config(config)


def test_files_that_are_not_there_or_not_json(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_config(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="bad.json is not JSON"):
        read_config(tmp_path / "bad.json")


def arguments(**given):
    names = ("keep", "peak", "watermarks", "config", "checksums", "pack", "telemetry")
    return options_of(*[given.get(name, False if name in ("checksums", "pack") else None) for name in names])


def test_sizes():
    assert arguments().keep_bytes == arguments(keep=0).keep_bytes == arguments(peak=0).keep_bytes == 0
    assert arguments(keep="8GiB").keep_bytes == arguments(keep=8 << 30).keep_bytes == 8 << 30
    assert arguments(keep="500MB").keep_bytes == 500_000_000 and arguments(keep=5e8).keep_bytes == 500_000_000
    assert arguments(watermarks=("2GiB", "1GiB")).high_bytes == 2 << 30
    peak = arguments(peak="8GiB")
    assert peak.high_bytes == peak.low_bytes == (8 << 30) - (128 << 20) and peak.keep_bytes is None
    for wrong, error, text in (
        ({"keep": "much"}, ValueError, "keep='much' is not a size"),
        ({"keep": -1}, ValueError, "keep=-1 is negative"),
        ({"keep": True}, TypeError, "keep=True is not a size"),
        ({"keep": [1]}, TypeError, "is not a size"),
        ({"watermarks": (1, 2)}, ValueError, "not above the first"),
        ({"watermarks": "20"}, ValueError, "not a pair"),
        ({"keep": 0, "peak": 0}, ValueError, "keep= and peak= contradict"),
        ({"watermarks": (2, 1), "config": {}}, ValueError, "watermarks= and config= contradict"),
    ):
        with pytest.raises(error, match=text):
            arguments(**wrong)


def test_devices_are_checked(device):
    with pytest.raises(ValueError, match="twice"):
        st.spill_activations(device=[device, device])
    with pytest.raises(ValueError, match="no device"):
        st.spill_activations(device=[])
    with pytest.raises(ValueError, match="not a device"):
        st.spill_activations(device="tpu")


def test_a_configuration_at_work(device, tmp_path):
    model, x = made("blocks")
    want = step(model, x)
    config = {
        **INNER,
        "vram_high_watermark_mb": 0,
        "vram_low_watermark_mb": 0,
        "pinned_pool_classes_mb": [1],
        "slabs_per_class": [4],
        "telemetry_file": str(tmp_path / "steps.jsonl"),
    }
    with spilling(model, device, config=config) as spilled:
        for _ in range(3):
            assert equal(step(model, x), want)
        assert spilled.stats().spilled == spilled.stats().saved > 0
    spilled.close()
    lines = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    fields = (
        "step activations_saved activations_kept activations_spilled activations_restored spill_bytes restore_bytes "
        "stall_time_ms stall_count pool_hits pool_misses vram_peak_mb"
    )
    assert len(lines) == 3 and all(set(fields.split()) <= set(line) for line in lines)
    assert [line["step"] for line in lines] == [1, 2, 3]


def test_small_results_are_computed_again(device):
    model, x = made("mlp")
    want = step(model, x)
    size = 16 * 64 * 4  # of the norm's result and of four activations
    least = {"vram_high_watermark_mb": 0, "vram_low_watermark_mb": 0, "telemetry_enabled": False}
    least |= {"pinned_pool_classes_mb": [1], "slabs_per_class": [1]}
    for threshold, computed in ((0, None), (size, 0), (size + 1, 1)):
        config = {**least, "recompute_threshold_bytes": threshold}
        with spilling(model, device, config=config) as spilled:
            assert equal(step(model, x), want)
        stats = spilled.recompute_stats()
        assert (stats is None) if computed is None else (stats.tensors >= computed and bool(stats.bytes) == computed)
    with spilling(model, device, config=config, recompute=False) as spilled:
        assert equal(step(model, x), want) and spilled.recompute_stats() is None


def test_a_configuration_that_is_off():
    model, x = made("mlp")
    with st.spill_activations(model, device="cuda:7", config={"enabled": False}) as spilled:
        spilled.begin_step(1)
        with spilled.managed_forward(), spilled.managed_backward():
            step(model, x)
        spilled.end_step()
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    spilled.close()


def test_a_file_of_telemetry_that_cannot_be_written(device, tmp_path):
    with pytest.raises(sh.OperationError):
        spilling(None, device, telemetry=tmp_path / "no" / "file")
