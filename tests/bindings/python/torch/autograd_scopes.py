"""Programs that change how autograd works in a scope or in a thread: modes, hooks for saved tensors, checkpoints."""

import threading

import torch
from autograd_programs import PROGRAMS, error_of, program, slopes
from torch import autograd
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints

__all__ = ["PROGRAMS"]


# Modes.


class Tangent(autograd.Function):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0]


@program
def gradients_that_are_on_and_off(x, w):
    def parts():
        with torch.no_grad():
            yield x @ w
        yield x * 2

    first, second = parts()
    with torch.set_grad_enabled(False):
        third = x.exp()
    with torch.inference_mode():
        fourth = (x @ w).exp() + 1
    refused = error_of(lambda: (fourth * x).sum())
    return [first.requires_grad, second, third.requires_grad, fourth.clone(), refused]


@program
def autocast(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        y = F.gelu(x @ w) @ w
    return [y, *slopes(y.float(), x)]


@program
def dual_numbers(x, w):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.detach().cos())
        y = Tangent.apply(dual @ w).tanh()
        value, tangent = forward_ad.unpack_dual(y)
        return [value + 0, tangent + 0, *slopes(value, x)]


@program
def derivatives_of_a_function(x, w):
    inner, v = x.detach(), torch.linspace(-1, 1, x.numel()).view(x.shape)

    def function(y):
        return (y.exp() * y).tanh()

    def total(y):
        return function(y).sum()

    kinds = autograd.functional
    return [
        kinds.jacobian(function, inner),
        kinds.jacobian(function, inner, vectorize=True),
        kinds.hessian(total, inner),
        *kinds.vjp(function, inner, v),
        *kinds.jvp(function, inner, v),
        *kinds.hvp(total, inner, v),
        *kinds.vhp(total, inner, v),
    ]


@program
def derivatives_of_a_layer(x, w):
    inner = x.detach()
    return [
        autograd.functional.jacobian(lambda y: (y @ w).tanh(), inner),
        *autograd.functional.vjp(lambda y: (y @ w).tanh(), inner, inner.cos()),
    ]


@program
def a_check_of_gradients(x, w):
    inner = x.detach()[:2, :2].double().requires_grad_()
    return [autograd.gradcheck(lambda y: y.exp().tanh(), inner), autograd.gradgradcheck(torch.sin, inner)]


# Hooks for saved tensors, and checkpoints.


@program
def hooks_for_saved_tensors_within_hooks(x, w):
    seen = []
    with saved_tensors_hooks(lambda tensor: tensor * 1, lambda tensor: tensor):
        y = (x @ w).exp()
        with saved_tensors_hooks(lambda tensor: seen.append(tensor.shape) or tensor.double(), lambda one: one.float()):
            z = y.sin()
        with autograd.graph.save_on_cpu():
            z = z.tanh()
    return [z, *slopes(z, x), *seen]


@program
def hooks_that_raise(x, w):
    def fail(tensor):
        raise ZeroDivisionError

    def pack():
        with saved_tensors_hooks(fail, fail):
            (x @ w).exp()

    with saved_tensors_hooks(lambda tensor: tensor, fail):
        y = x.exp()
    return [error_of(pack), error_of(lambda: y.sum().backward()), x.sin()]


@program
def a_scope_without_hooks(x, w):
    def hooked():
        with saved_tensors_hooks(fine, fine):
            pass

    def fine(tensor):
        return tensor

    def refusing():
        with autograd.graph.disable_saved_tensors_hooks("not here"):
            hooked()

    return [error_of(refusing), error_of(hooked), x @ w]


def cheap(x, w):
    return F.gelu(x @ w).sin() @ w


@program
def checkpoints_within_checkpoints(x, w):
    def outer(x):
        return checkpoints.checkpoint(cheap, cheap(x, w), w, use_reentrant=False).exp()

    y = checkpoints.checkpoint(outer, x, use_reentrant=False)
    with checkpoints.set_checkpoint_early_stop(False):
        z = checkpoints.checkpoint(outer, x, use_reentrant=False)
    return [y, z, *slopes(y * z, x)]


@program
def checkpoints_of_both_kinds(x, w):
    y = checkpoints.checkpoint(cheap, x, w, use_reentrant=True)
    return [y, checkpoints.checkpoint_sequential([torch.sin, torch.exp, torch.tanh], 2, y, use_reentrant=False)]


@program
def checkpoints_that_choose(x, w):
    def choose(ctx, operator, *args, **kwargs):
        kinds = checkpoints.CheckpointPolicy
        return kinds.MUST_SAVE if operator is torch.ops.aten.mm.default else kinds.PREFER_RECOMPUTE

    def contexts():
        return checkpoints.create_selective_checkpoint_contexts(choose)

    y = checkpoints.checkpoint(cheap, x, w, use_reentrant=False, context_fn=contexts)
    return [y.detach().clone(), *slopes(y, x)]


@program
def a_checkpoint_whose_forward_fails(x, w):
    def fails(x):
        x.exp().sin()
        raise ZeroDivisionError

    return [error_of(lambda: checkpoints.checkpoint(fails, x, use_reentrant=False)), x @ w]


# Threads.


def in_threads(function, count):
    """What a function gives in several threads, or words of its errors."""
    found = [None] * count

    def run(number):
        words = error_of(lambda: found.__setitem__(number, function(number)))
        found[number] = words if found[number] is None else found[number]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@program
def backwards_in_threads(x, w):
    y = x.detach().requires_grad_()
    z = (y * 2).exp()
    return in_threads(lambda number: slopes(z.sin() * number, y)[0], 3)


@program
def graphs_of_threads(x, w):
    def forward(number):
        y = (x.detach() * number).requires_grad_()
        return slopes(y.exp().tanh(), y)[0]

    with autograd.set_multithreading_enabled(False):
        return in_threads(forward, 3)
