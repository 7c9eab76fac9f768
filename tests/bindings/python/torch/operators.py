"""PyTorch's databases of operators and of modules, as calls, and as layers of a model that make these calls."""

import copy
import os
import random
from contextlib import suppress

import numpy
import torch
from torch import nn
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

ENTRIES = [*op_db, *autograd_function_db, *custom_op_db, *module_db]
ALL = bool(os.environ.get("STAGEHAND_TEST_ALL"))
TYPES = (torch.float32, torch.complex64, torch.int64, torch.int16, torch.int32, torch.bool, torch.float8_e4m3fn)

REFUSALS = (RuntimeError, TypeError, ValueError, AssertionError, IndexError)

# PyTorch's tests allow no changes of the flags of its backends, from their import on. Tests of this package change
# them.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True


def seed(number=1):
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def difference(got, want):
    """Says in what two results() of a layer differ, or returns None."""
    if len(got[0]) != len(want[0]) or not all(map(same, got[0], want[0])):
        return "other results"
    names = [str(key) for key, gradient in got[1].items() if not same_gradient(gradient, want[1][key])]
    return f"other gradients of {', '.join(names)}" if names else None


def same_gradient(one, other):
    """A gradient of zeros is none."""
    if one is None or other is None:
        return all(given is None or not given.any() for given in (one, other))
    return same(one, other)


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def same(one, other):
    """Whether two results are the same bit by bit. A NaN is the same as any other."""
    if not (is_tensor(one) and is_tensor(other)):
        return type(one) is type(other) and (one == other or one != one)
    if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
        return False
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if one.is_floating_point():
        one, other = one.float().nan_to_num(7), other.float().nan_to_num(7)
    return torch.equal(one, other)


class Call:
    """A function and its arguments."""

    def __init__(self, name, function, args, kwargs, writes=False):
        self.name, self.function = name, function
        values, self.spec = tree_flatten((args, kwargs))
        copies = {id(one): one.detach().clone().requires_grad_(one.requires_grad) for one in filter(is_tensor, values)}
        self.values = [copies.get(id(value), value) for value in values]
        tensors = {index for index, value in enumerate(self.values) if is_tensor(value)}
        first = set(range(len(tree_leaves(args[:1]))))
        self.first, self.others = tensors & first, tensors - first
        self.written = self.find_written(tensors) | (self.first if writes else set())

    def find_written(self, tensors):
        """The numbers of the tensors that the function writes to."""
        values = [value.clone() if is_tensor(value) else value for value in self.values]
        versions = {index: values[index]._version for index in tensors}
        self(values)
        return {
            index
            for index in tensors
            if values[index]._version != versions[index] or not same(values[index], self.values[index].clone())
        }

    def weights(self, which):
        """The numbers of the tensors that may be weights: the function does not write to them."""
        chosen = {"none": set(), "first": self.first, "others": self.others, "all": self.first | self.others}[which]
        return [index for index in sorted(chosen - self.written) if self.values[index].layout == torch.strided]

    def __call__(self, values, function=None):
        """Returns what comes out, which shares no memory with the arguments."""
        args, kwargs = tree_unflatten(values, self.spec)
        seed()
        outs = tree_leaves((function or self.function)(*args, **kwargs))
        return [one.clone() if is_tensor(one) else one for one in outs]


class Layer(nn.Module):
    """A layer that makes a call. The tensors of these numbers are parameters. The others are inputs, of which each
    forward makes copies, because a function may write to them.
    """

    def __init__(self, call, weights=(), trained=False):
        super().__init__()
        self.call, self.function = call, call.function
        if isinstance(self.function, nn.Module):
            self.function = copy.deepcopy(self.function).requires_grad_(trained)
        self.values, self.weights = list(call.values), {}
        for index in weights:
            value = call.values[index]
            tied = next((name for at, name in self.weights.items() if call.values[at] is value), None)
            self.weights[index] = tied or f"weight_{index}"
            gradient = trained and value.requires_grad
            self.register_parameter(self.weights[index], nn.Parameter(value.detach(), requires_grad=gradient))

    def forward(self):
        values = [value.clone() if is_tensor(value) else value for value in self.values]
        for index, name in self.weights.items():
            values[index] = getattr(self, name)
        return self.call(values, self.function)

    def leaves(self):
        """What gradients come to, by the numbers of the arguments and the names of a module's parameters."""
        found = {index: value for index, value in enumerate(self.values) if is_tensor(value)}
        found.update((index, getattr(self, name)) for index, name in self.weights.items())
        found.update(self.function.named_parameters() if isinstance(self.function, nn.Module) else ())
        return {key: leaf for key, leaf in found.items() if leaf.requires_grad}


def slope(tensor):
    return torch.linspace(0.5, 1.5, tensor.numel()).to(tensor.dtype).reshape(tensor.shape)


def roots_of(outs):
    roots = [one for one in outs if is_tensor(one) and one.requires_grad]
    return [one if one.layout == torch.strided else one.to_dense() for one in roots]


def results(layers, outs, gradients=None, twice=False):
    """Runs the backward. Returns for each layer what came out of it, and the gradients of its leaves, or the gradients
    of these gradients.
    """
    leaves = [layer.leaves() for layer in layers]
    for one in leaves:
        for leaf in one.values():
            leaf.grad = None
    roots, inputs = roots_of(one for out in outs for one in out), [leaf for one in leaves for leaf in one.values()]
    if twice and roots:
        slopes = [slope(one) for one in roots]
        roots = roots_of(torch.autograd.grad(roots, inputs, slopes, create_graph=True, allow_unused=True))
    if roots:
        torch.autograd.backward(roots, [slope(one) for one in roots])
    found = [
        (
            [one.detach() if is_tensor(one) else one for one in out],
            {key: (gradients or {}).get(id(leaf), leaf.grad) for key, leaf in one.items()},
        )
        for out, one in zip(outs, leaves)
    ]
    for one in leaves:
        for leaf in one.values():
            leaf.grad = None
    return found


def types_of(entry):
    known = entry.supported_dtypes("cpu")
    return sorted(known, key=str) if ALL else [one for one in TYPES if one in known][:1]


def arguments_of(entry, dtype):
    """Yields functions with arguments, and whether they write to the first one."""
    seed()
    if isinstance(entry, ModuleInfo):
        for training in (True, False) if entry.train_and_eval_differ else (True,):
            for one in entry.module_inputs_func(entry, "cpu", dtype, dtype.is_floating_point, training):
                made = one.constructor_input
                module = entry.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
                yield module, one.forward_input.args, one.forward_input.kwargs, False
        return
    gradient = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
    for sample in entry.sample_inputs_func(entry, "cpu", dtype, gradient):
        args = (sample.input, *sample.args)
        yield entry.op, args, sample.kwargs, False
        writes = entry.inplace_variant is not None and (entry.supports_inplace_autograd or not gradient)
        if writes and not sample.broadcasts_input:
            yield entry.inplace_variant, args, sample.kwargs, True


def name_of(entry):
    variant = getattr(entry, "variant_test_name", "")
    return f"{entry.name}:{variant}" if variant else entry.name


def calls_of(entry, most=None):
    """Returns what an entry of the databases calls. What PyTorch itself refuses is left out."""
    calls = []
    for dtype in types_of(entry):
        with suppress(*REFUSALS):
            for number, (function, args, kwargs, writes) in enumerate(arguments_of(entry, dtype)):
                if number == most:
                    break
                with suppress(*REFUSALS):
                    calls.append(Call(name_of(entry), function, args, kwargs, writes))
    return calls
