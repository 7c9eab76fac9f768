"""Weights begin at the alignment that they have without streaming, because kernels may sum up in another order where a
tensor begins at another one.
"""

import pytest
import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")


class Addresses(nn.Module):
    """Two weights in one storage, at odd offsets."""

    def __init__(self, first, second, device="cpu"):
        super().__init__()
        storage = torch.randn(300 * 200 + 64, device=device)
        self.one = nn.Parameter(storage[first:][: 100 * 200].view(100, 200), requires_grad=False)
        self.two = nn.Parameter(storage[100 * 200 + second :][: 200 * 200].view(200, 200), requires_grad=False)
        self.seen = []

    def forward(self, x):
        self.seen.append((self.one.data_ptr(), self.two.data_ptr()))
        return torch.mv(self.one, x), torch.mv(self.two, x)


@pytest.mark.parametrize("offsets", [(0, 0), (1, 2), (5, 16), (3, 63)])
@pytest.mark.parametrize("options", [{}, {"pack": True}, {"pin": False}], ids=str)
def test_on_the_host_as_in_host_memory(device, offsets, options):
    model, x = Addresses(*offsets), torch.randn(200)
    with torch.no_grad():
        want = model(x)
        with st.stream(model, device, **options):
            for _ in range(3):
                assert all(map(torch.equal, model(x), want))
    assert len({tuple(address % 64 for address in addresses) for addresses in model.seen}) == 1


@pytest.mark.xdist_group("gpu")
@needs_gpu
@pytest.mark.parametrize("offsets", [(0, 0), (1, 2), (5, 16), (3, 63)])
@pytest.mark.parametrize("begun", ["cpu", "cuda"])
def test_on_a_gpu_as_to_gives(offsets, begun):
    """Models of host memory as `.to()` puts them there; models of the GPU as they are."""
    model, x = Addresses(*offsets, device=begun), torch.randn(200, device="cuda")
    plain = Addresses(*offsets, device=begun)
    plain.load_state_dict(model.state_dict())
    with torch.no_grad(), sh.Device("cuda:0", budget_bytes=64 << 20) as device:
        want = plain.to("cuda")(x)
        with st.stream(model, device):
            for _ in range(3):
                assert all(map(torch.equal, model(x), want))
    assert [address % 256 for address in model.seen[-1]] == [address % 256 for address in plain.seen[0]]
