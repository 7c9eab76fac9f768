"""Which files of a folder are read: those of its index, if it has one."""

import json
import re

import pytest
import torch
from model_files import write_safetensors
from torch import nn

import libstagehand.torch as st

INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
STALE = 9.0


class Parts(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.parts = nn.ParameterDict(
            {name: nn.Parameter(torch.empty(64, 64, device="meta"), requires_grad=False) for name in names}
        )

    def forward(self, x):
        return [float((x * part)[0, 0]) for part in self.parts.values()]


def write(path, **values):
    """A file whose tensors have one value each."""
    path.parent.mkdir(exist_ok=True)
    write_safetensors(
        path,
        {
            f"parts.{name}": ("F32", [64, 64], torch.full((64, 64), value).numpy().tobytes())
            for name, value in values.items()
        },
    )


def write_index(folder, name=INDEX, **files):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(
        json.dumps({"metadata": {}, "weight_map": {f"parts.{part}": file for part, file in files.items()}})
    )


def sharded(folder, index=INDEX, one=ONE, two=TWO):
    write(folder / one, a=1.0, b=2.0)
    write(folder / two, c=3.0)
    write_index(folder, index, a=one, b=one, c=two)


def streamed(files, device, names="abc", **options):
    model = Parts(names)
    with st.stream(model, device, files=files, **options), torch.inference_mode():
        return model(torch.ones(64, 64))


def refused(error, says, files, device, names="abc"):
    """`strict` is about tensors that the module does not have, and changes nothing here."""
    for strict in (True, False):
        with pytest.raises(error, match=says):
            streamed(files, device, names, strict=strict)


@pytest.mark.parametrize(
    ("index", "one", "two"),
    [
        (INDEX, ONE, TWO),
        ("diffusion_pytorch_model.safetensors.index.json", "a/one.safetensors", "two.safetensors"),
        ("diffusion_pytorch_model.safetensors.index.fp16.json", ONE, TWO),
    ],
)
def test_the_index_says_which_files_are_read(device, tmp_path, index, one, two):
    (tmp_path / "m").mkdir()
    sharded(tmp_path / "m", index, one, two)
    write(tmp_path / "m/consolidated.safetensors", a=STALE, b=STALE, c=STALE, d=STALE)
    (tmp_path / "m/broken.safetensors").write_bytes(b"no header")
    for files in (tmp_path / "m", str(tmp_path / "m") + "/", tmp_path / "m" / index):
        assert streamed(files, device) == [1, 2, 3]


def test_a_folder_beside_other_files(device, tmp_path):
    sharded(tmp_path / "m")
    sharded(tmp_path / "n", "other.safetensors.index.json")
    write(tmp_path / "more.safetensors", d=4.0)
    assert streamed([tmp_path / "more.safetensors", tmp_path / "m"], device, "abcd") == [1, 2, 3, 4]
    refused(ValueError, r"n/.*'parts\..': is also in '.*m/", [tmp_path / "m", tmp_path / "n"], device)
    assert streamed([tmp_path / "m" / TWO, tmp_path / "more.safetensors"], device, "cd") == [3, 4]


def test_what_the_index_names_must_be_there(device, tmp_path):
    folder = tmp_path / "m"
    sharded(folder)
    write(folder / "old.safetensors", a=STALE, b=STALE, c=STALE)
    (folder / TWO).unlink()
    refused(FileNotFoundError, re.escape(TWO), folder, device)
    refused(FileNotFoundError, re.escape(TWO), folder, device, "ab")  # whoever asks for its tensors
    write(folder / TWO, d=4.0)
    refused(ValueError, rf"{TWO}: tensor 'parts\.d': is not in the index", folder, device)
    write_index(folder, a=ONE, b=ONE, c=TWO, d=TWO)
    refused(ValueError, rf"{INDEX}: weight_map: 'parts\.c': is not in '{TWO}', nor in any other", folder, device)
    write_index(folder, a=ONE, b=TWO, d=TWO)
    refused(ValueError, rf"'parts\.b': is not in '{TWO}', but in '{ONE}'", folder, device)
    (folder / INDEX).write_text('{"weight_map": {"parts.a": "../old.safetensors"}}')
    refused(ValueError, r"'parts\.a': the file name .* leads out", folder, device)


def test_unasked_tensors_of_the_index_are_a_matter_of_strict(device, tmp_path):
    sharded(tmp_path / "m")
    with pytest.raises(ValueError, match=r"tensors that Parts does not have: parts\.c\. Pass strict=False"):
        streamed(tmp_path / "m", device, "ab")
    assert streamed(tmp_path / "m", device, "ab", strict=False) == [1, 2]


def test_several_models_in_a_folder_are_a_choice(device, tmp_path):
    folder = tmp_path / "m"
    sharded(folder)
    sharded(folder, "model.safetensors.index.fp16.json", "fp16-1.safetensors", "fp16-2.safetensors")
    assert streamed(folder, device) == [1, 2, 3]  # as without variant= in transformers and diffusers
    write_index(folder, "other.safetensors.index.json", a=ONE, b=ONE, c=TWO)
    refused(ValueError, rf"folder: holds several models \('{INDEX}', 'other\.", folder, device)
    assert streamed(folder / INDEX, device) == [1, 2, 3]


@pytest.mark.parametrize("name", ["model.safetensors", "diffusion_pytorch_model.safetensors"])
def test_the_one_file_of_a_folder(device, tmp_path, name):
    write(tmp_path / name, a=1.0)
    write(tmp_path / "adapter_model.safetensors", b=STALE)
    write(tmp_path / "model.fp16.safetensors", a=STALE)
    assert streamed(tmp_path, device, "a") == [1]


def test_all_files_of_a_folder_without_index(device, tmp_path):
    write(tmp_path / "x.safetensors", a=1.0)
    write(tmp_path / "y.safetensors", b=2.0, c=3.0)
    assert streamed(tmp_path, device) == [1, 2, 3]


def test_names_of_files_that_are_no_text(device, tmp_path):
    folder = tmp_path / "m\udcff"
    write(folder / "model.safetensors", a=1.0)
    assert streamed(folder, device, "a") == [1]
    with pytest.raises(FileNotFoundError, match=r"m\\xff/absent\.safetensors"):
        streamed(folder / "absent.safetensors", device, "a")
