"""Models whose gradients others add up: those of several processes, or of several devices."""

import copy

import pytest
import torch
from models import Net, equal, gradients, loss_of, same_state, size_of, with_lora
from torch import nn

import libstagehand.torch as st


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Of one process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_distributed_training_of_streamed_weights(device, tokens, group):
    net = Net()
    plain = copy.deepcopy(net)
    optimizer = momentum(plain.parameters())
    parallel = nn.parallel.DistributedDataParallel(net)
    refused = pytest.raises(
        RuntimeError, match="DistributedDataParallel adds up gradients at the end of a backward, after the steps"
    )
    with st.stream(net, device, budget=size_of(net) // 4, optimizer=momentum) as streamed:
        for _ in range(3):
            with refused:
                parallel(tokens)
            want = loss_of(plain(tokens))
            want.backward()
            optimizer.step()
            optimizer.zero_grad()
            with streamed.accumulate():
                loss = loss_of(parallel(tokens))
                loss.backward()
            streamed.optimize()
            assert torch.equal(loss, want)
        assert same_state(net, plain)
        with streamed.accumulate():
            loss = loss_of(parallel(tokens))
        with refused:
            loss.backward()
        assert same_state(net, plain)
        net.zero_grad()


def test_distributed_training_of_adapters_over_a_streamed_base(device, tokens, group):
    net = with_lora(Net())
    want = gradients(net, tokens)
    net.zero_grad(set_to_none=True)
    with st.stream(net, device, budget=size_of(net) // 4):
        parallel = nn.parallel.DistributedDataParallel(net)
        for _ in range(2):
            assert equal(gradients(net, tokens, call=parallel), want)


def test_replicas_on_several_devices_are_refused(device, net, tokens):
    with st.stream(net, device):
        replica = net._replicate_for_data_parallel()
        replica._former_parameters = {}
        with torch.no_grad(), pytest.raises(RuntimeError, match="DataParallel copies the model to several devices"):
            replica(tokens)
        with torch.no_grad():
            net(tokens)
