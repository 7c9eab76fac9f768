"""Functions that torch.compile passes over: their calls break a graph, and their code is never compiled."""

import torch
from compile_test import with_compiler

from libstagehand.torch._uncompiled import uncompiled

compiling = torch._C._dynamo.eval_frame.get_eval_frame_callback
seen = []


def noted(x):
    seen.append((torch.compiler.is_dynamo_compiling(), type(x), compiling()))
    return inner(x)


def inner(x):
    seen.append((torch.compiler.is_dynamo_compiling(), type(x), compiling()))
    return x + 1


class Called:
    def __call__(self, x):
        return noted(x)


def with_calls(call):
    """Returns a function that calls `call` between operations, and what a compiler of it counts."""
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    return torch.compile(lambda x: call(x * 2) * 3, backend=backend), graphs


def test_calls_outside_of_compiled_code():
    seen.clear()
    made = uncompiled(noted)
    assert torch.equal(made(torch.ones(2)), torch.full((2,), 2.0))
    assert made.__name__ == "noted" and made._torchdynamo_disable
    assert [one[0] for one in seen] == [False, False]


@with_compiler
def test_compiled_code_does_not_contain_it():
    kind = type("Kind", (Called,), {"__call__": uncompiled(Called.__call__)})
    for call in (uncompiled(noted), kind()):
        torch.compiler.reset()
        seen.clear()
        compiled, graphs = with_calls(call)
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 9.0))
        # Each call ran by itself, with the compiler off for all that it called.
        assert seen == [(False, torch.Tensor, None)] * 6
        assert len(graphs) == 2  # before the call, and after it
    torch.compiler.reset()
