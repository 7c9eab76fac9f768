"""Every operator and module of PyTorch's databases, and other uses of autograd, in every way in which this package runs
a model. The results are those of PyTorch alone, bit by bit.

Each operator runs once in each way, or with all samples of all types if STAGEHAND_TEST_ALL is set. What differs is
named here, with the reason. Anything else that differs fails, and so does a name that is not needed.
"""

import functools
import gc

import pytest
import torch
from autograd_scopes import PROGRAMS
from operators import ALL, ENTRIES, REFUSALS, Call, calls_of, difference, name_of, seed
from ways import WAYS

PARTS = 32 if ALL else 4
TOGETHER = 32  # layers of a model

# What PyTorch alone does not run here.
NOT_RUN = {
    "it needs a GPU": """
        jiterator_unary jiterator_binary jiterator_4inputs_with_extra_args jiterator_binary_return_by_ref
        jiterator_2inputs_2outputs torch.ops.aten._flash_attention_forward torch.ops.aten._efficient_attention_forward
        nn.functional.batch_norm:without_cudnn
    """,
    "its result has any contents": "empty empty_like empty_strided empty_permuted new_empty new_empty_strided",
}
EVERY = set(WAYS)
STREAMED = {name for name in WAYS if WAYS[name].weights != "none"}
# The reason, the ways, words of the failure, and names.
EXPECTED = [
    (
        "a weight cannot be part of a gradient that is differentiated again, and the error says so",
        STREAMED - {"idle", "idle and trained"},
        "streamed weights do not support a backward that is differentiated again (create_graph=True)",
        "gradients_of_gradients_of_a_weight a_function_that_is_differentiable_once",
    ),
    (
        "in the first step a mode is in force, in which PyTorch computes vectors too that nobody asks for",
        STREAMED,
        "other results",
        "linalg.cond linalg.eigvalsh linalg.svdvals norm:nuc",
    ),
    (
        "casts of weights are not kept, so each use adds to the gradient in the type of the weight",
        STREAMED,
        "other gradients of 1",
        "autocast",
    ),
    (
        "a method that gives the source while no module runs, like clone() and to(), gives no gradient",
        {"idle and trained"},
        "other gradients of",
        """
        NumpyExpMarkDirtyAutogradFunction bfloat16 broadcast_tensors conj contiguous double float half masked.prod
        nn.GaussianNLLLoss nn.functional.gaussian_nll_loss positive real to zero_
        """,
    ),
    (
        "another thread needs the model in its call, to compute a checkpoint again",
        {"checkpointed"},
        "other results",
        "backwards_in_threads",
    ),
    (
        "its declaration says that it changes the statistics, also where it only reads them",
        {"read and trained", "idle and trained"},
        "in place while its block is not held",
        "_native_batch_norm_legit",
    ),
    (
        "PyTorch ends the second forward of a checkpoint before the kernel has filled the noise that is saved",
        {"checkpointed"},
        "other gradients of 0",
        "nn.functional.rrelu",
    ),
    # To be mended.
    (
        "a checkpoint that reads an unheld weight saves it again when it runs again",
        {"read", "read and trained"},
        "CheckpointError",
        "checkpoints_within_checkpoints checkpoints_that_choose",
    ),
    (
        "in the first step a mode is in force, and not when a checkpoint runs again: PyTorch saves other tensors",
        {"checkpointed"},
        "CheckpointError",
        "nn.CTCLoss",
    ),
    (
        "an operator that is written in Python is not found for an unheld weight",
        {"read", "read and trained"},
        "func != nullptr INTERNAL ASSERT FAILED",
        "nn.functional.linear_cross_entropy:chunked nn.functional.linear_cross_entropy:chunked_none",
    ),
]


def entries():
    """Everything that is run, by its name, as functions that return calls."""
    made = {name_of(entry): functools.partial(calls_of, entry, None if ALL else 2) for entry in ENTRIES}
    for name, function in PROGRAMS.items():
        made[name] = functools.partial(program, name, function)
    return {name: make for name, make in made.items() if name not in " ".join(NOT_RUN.values()).split()}


def program(name, function):
    """A call whose second argument may be a weight."""
    seed()
    x, w = torch.randn(4, 6, requires_grad=True), (torch.randn(6, 6) / 3).requires_grad_()
    return [Call(name, function, (x, w), {}, writes=True)]


@functools.lru_cache(maxsize=1)
def calls_in(part):
    """Returns the calls of a part of the entries, by name."""
    made = {name: make() for name, make in list(entries().items())[part::PARTS]}
    gc.collect()
    gc.freeze()  # the many objects of the databases, which each search for tensors would look at
    return made


def failures(way, calls, device):
    """Runs calls as layers of one model. Yields what fails by name, with words that tell how."""
    layers, wants = [], []
    for layer in way.layers(calls):
        try:
            wants.append(way.plainly(layer))
            layers.append(layer)
        except REFUSALS:  # by PyTorch alone
            continue
    if not layers:
        return
    try:
        steps = list(way.run(layers, device))
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    else:
        for results in steps:
            for layer, got, want in zip(layers, results, wants):
                if found := difference(got, want):
                    yield layer.call.name, found
        return
    gc.collect()
    if len(calls) == 1:
        yield calls[0].name, words
    else:
        yield from failures(way, calls[: len(calls) // 2], device)
        yield from failures(way, calls[len(calls) // 2 :], device)


def reason_for(way, name, words):
    return next((one[0] for one in EXPECTED if way in one[1] and one[2] in words and name in one[3].split()), None)


@pytest.mark.filterwarnings("ignore")  # of operators that are deprecated
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", range(PARTS))
def test_results_are_those_of_pytorch_alone(device, way, part):
    number, calls = list(WAYS).index(way), calls_in(part)
    assert all(calls.values()), [name for name, made in calls.items() if not made]
    chosen = [one for made in calls.values() for one in (made if ALL else [made[number % len(made)]])]
    found = {}
    for first in range(0, len(chosen), TOGETHER):
        for name, words in failures(WAYS[way], chosen[first : first + TOGETHER], device):
            found.setdefault(name, words)
    new = {name: words for name, words in found.items() if reason_for(way, name, words) is None}
    assert not new, "\n".join(f"{name}: {words[:400]}" for name, words in new.items())
    told = {name for one in EXPECTED if way in one[1] for name in one[3].split()}
    assert not ALL or not told & set(calls) - set(found), "these do not fail any more"


def test_the_names_here_are_those_of_pytorch():
    known = {name_of(entry) for entry in ENTRIES} | set(PROGRAMS)
    told = set(" ".join([*NOT_RUN.values(), *(one[3] for one in EXPECTED)]).split())
    assert told <= known, told - known
    assert len(known) > 800 and all(one[1] <= EVERY for one in EXPECTED)
