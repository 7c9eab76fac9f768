"""On a GPU, where there is one: pipelines and loaded models compute there, and go back to the host at the end."""

import pytest
import torch
from models import equal, size_of
from pipelines_test import flux, image, modules, stable_diffusion
from zoo import first, made

import libstagehand.torch as st

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("parts", [None, ["vae"]])
@pytest.mark.parametrize("make", [stable_diffusion, flux])
def test_a_pipeline_computes_on_the_gpu(make, parts):
    torch.manual_seed(5)
    want = image(make().to("cuda"))
    torch.manual_seed(5)
    pipe = make()
    with st.stream(pipe, "cuda:0", budget=256 << 20, parts=parts) as streamed:
        assert list(streamed.parts) == (parts or list(modules(pipe)))
        assert pipe.device == pipe._execution_device == torch.device("cuda", 0)
        for _ in range(3):
            got = image(pipe)
            assert got.is_cuda
            torch.testing.assert_close(got, want)
    assert all(one.device.type == "cpu" for module in modules(pipe).values() for one in module.parameters())


def test_a_pipeline_that_is_on_the_gpu_already():
    torch.manual_seed(5)
    pipe = stable_diffusion().to("cuda")
    want = image(pipe)
    with st.stream(pipe, "cuda:0", budget=256 << 20):
        torch.testing.assert_close(image(pipe), want)
    assert pipe.device.type == "cuda"
    torch.testing.assert_close(image(pipe), want)


def test_a_model_from_files(tmp_path):
    model, inputs = made("LlamaForCausalLM", 8)
    model.save_pretrained(tmp_path)
    inputs = {name: one.cuda() for name, one in inputs.items()}
    with torch.no_grad():
        want = first(type(model).from_pretrained(tmp_path).to("cuda")(**inputs))
        told = []
        with st.from_pretrained(
            tmp_path, type(model), "cuda:0", budget=64 << 20, progress=lambda *heard: told.append(heard)
        ) as streamed:
            assert all(weight.mapped for weight in streamed._weights) and told[-1][0] == told[-1][1] >= size_of(model)
            for _ in range(3):
                assert equal([first(streamed.module(**inputs))], [want])
