"""What programs do with autograd beyond a forward and a backward. Each is a function of an activation and a weight."""

import copy
import gc
import io

import torch
from torch import autograd, nn
from torch.nn import functional as F

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def error_of(function):
    """The type of what a function raises, with the first words."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split()[:4])}"
    return "no error"


def slopes(out, *leaves, **options):
    return autograd.grad(out.square().sum(), leaves, retain_graph=True, **options)


# Hooks.


@program
def hooks_of_tensors(x, w):
    seen, y = [], x @ w
    y.retain_grad()
    handle = y.register_hook(lambda gradient: gradient * 2)
    y.register_hook(lambda gradient: seen.append(gradient.clone()))
    z = y.exp()
    slopes(z, y)
    handle.remove()
    return [z, *seen, *slopes(z, y)]


@program
def hooks_of_nodes(x, w):
    seen, y = [], (x @ w).exp()
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 3,))
    y.grad_fn.register_hook(lambda inner, outer: seen.extend((inner[0].clone(), outer[0].clone())))
    y.grad_fn.register_hook(lambda inner, outer: (inner[0] + 1,))
    return [y, *slopes(y.sin(), x), *seen]


@program
def hooks_of_leaves(x, w):
    seen, leaf = [], x.detach().clone().requires_grad_()
    leaf.register_hook(lambda gradient: gradient + 1)
    leaf.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    for _ in range(2):
        (leaf @ w).exp().sum().backward(inputs=[leaf])
    return [*seen, leaf.grad]


@program
def hooks_of_several_gradients(x, w):
    seen, y, z = [], x @ w, x.exp()
    for mode in ("all", "any"):
        add = seen.extend if mode == "all" else seen.append
        autograd.graph.register_multi_grad_hook((y, z), add, mode=mode)
    return [*slopes(y * z.sin(), x), *seen]


@program
def hooks_of_modules(x, w):
    seen, module = [], nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    module.register_full_backward_pre_hook(lambda module, outer: (outer[0] * 2,))
    module[1].register_full_backward_hook(lambda module, inner, outer: seen.extend((inner[0].clone(), outer[0])))
    y = module(x @ w)
    return [y, *slopes(y, x, *module.parameters()), *seen]


@program
def a_callback_at_the_end_of_a_backward(x, w):
    seen, y = [], (x @ w).tanh()
    y.register_hook(lambda gradient: autograd.Variable._execution_engine.queue_callback(lambda: seen.append("end")))
    found = slopes(y, x)
    return [*found, *seen]


# Functions.


class Saves(autograd.Function):
    """Saves an input, an intermediate result and its own result, and gives a second result without a gradient."""

    @staticmethod
    def forward(ctx, x, w, unused):
        inner = x.sin()
        out = inner @ w
        ctx.save_for_backward(x, inner, w, out)
        ctx.set_materialize_grads(False)
        count = (x > 0).sum()
        ctx.mark_non_differentiable(count)
        return out, count

    @staticmethod
    def backward(ctx, gradient, nothing):
        x, inner, w, out = ctx.saved_tensors
        assert nothing is None and ctx.needs_input_grad[0]
        gradient = gradient * out.sign()
        return gradient @ w.mT * x.cos(), inner.mT @ gradient if ctx.needs_input_grad[1] else None, None


class Once(autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].exp()


class Within(autograd.Function):
    """Differentiates in its forward, and again in its backward."""

    @staticmethod
    def forward(ctx, x, depth):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = (ctx.x.sin() if depth == 0 else Within.apply(ctx.x, depth - 1)).exp()
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            return autograd.grad((ctx.y * gradient).sum(), ctx.x, retain_graph=True)[0], None


@program
def a_function_that_saves_all_kinds(x, w):
    out, count = Saves.apply(x, w, None)
    return [out, count, *slopes(out, x)]


@program
def a_function_that_is_differentiable_once(x, w):
    y = Once.apply(x @ w)
    (slope,) = slopes(y, x, create_graph=True)
    return [slope.detach(), error_of(lambda: slope.sum().backward())]


@program
def backwards_within_backwards(x, w):
    y = Within.apply(x @ w, 5)
    return [y, *slopes(y, x)]


@program
def an_error_in_a_backward(x, w):
    y = (x @ w).exp()
    handle = y.register_hook(lambda gradient: 1 / 0)
    words = error_of(lambda: slopes(y.sin(), x))
    handle.remove()
    return [words, *slopes(y.sin(), x)]


# Graphs.


@program
def a_graph_that_is_kept(x, w):
    y = (x @ w).exp().tanh()
    return [*slopes(y, x), *slopes(y.sin(), x), y]


@program
def a_graph_that_is_used_up(x, w):
    y = (x.detach().requires_grad_() @ w.detach()).exp()
    y.sum().backward()
    return [error_of(y.sum().backward)]


@program
def gradients_of_gradients(x, w):
    y = (x * 2).exp().tanh()
    (slope,) = slopes(y, x, create_graph=True)
    (curve,) = slopes(slope.sin(), x, create_graph=True)
    return [slope, curve, *slopes(curve, x)]


@program
def gradients_of_gradients_of_a_weight(x, w):
    (slope,) = slopes((x @ w).exp().tanh(), x, create_graph=True)
    return [slope, *slopes(slope.sin(), x)]


@program
def complex_numbers(x, w):
    y = torch.view_as_complex((x @ w).reshape(-1, 2).contiguous())
    z = (y * y.conj()).exp() * y
    return [torch.view_as_real(z.conj().resolve_conj()), *slopes(torch.view_as_real(z) * y.abs().sum(), x)]


@program
def products_with_numbers(x, w):
    scale = torch.tensor(3.0, requires_grad=True)
    y = (x * scale) * (x * 2)
    return [y, *slopes(y.exp() * y, x, scale)]


@program
def gradients_of_intermediate_results(x, w):
    y = x @ w
    z = y.exp()
    edges = [autograd.graph.get_gradient_edge(one) for one in (y, z)]
    total = (z.sin() * y).sum()
    return [*autograd.grad(total, edges, retain_graph=True), *autograd.grad(total, [y, z], retain_graph=True)]


@program
def gradients_of_many_slopes_at_once(x, w):
    y = (x @ w).tanh()
    return autograd.grad(y, x, torch.eye(y.numel()).view(-1, *y.shape), retain_graph=True, is_grads_batched=True)


@program
def gradients_that_nothing_reaches(x, w):
    other = x.detach().requires_grad_()
    y = (x @ w).exp()
    return [
        slopes(y, other, allow_unused=True)[0] is None,
        *slopes(y, other, materialize_grads=True),
        error_of(lambda: slopes(y, other)),
    ]


@program
def a_long_graph_that_is_dropped(x, w):
    gc.collect()
    y = x
    for _ in range(3000):
        y = y * 1.0001
    del y
    return [x + 1]


@program
def a_look_at_the_graph(x, w):
    y = x.exp()
    z = y @ w
    node = z.grad_fn
    return [node.name(), node.next_functions[0][0].name(), y.grad_fn._saved_result + 0]


@program
def sparse_gradients(x, w):
    table = torch.randn(9, 6, requires_grad=True)
    y = F.embedding(torch.tensor([[1, 3, 3], [8, 1, 0]]), table, sparse=True) @ w
    return autograd.grad(y.exp().sum(), table, retain_graph=True)


@program
def anomaly_mode(x, w):
    def wrong():
        with autograd.detect_anomaly():
            y = (x.detach() * 0).requires_grad_()
            (y / y * w.detach().sum()).sum().backward()

    with autograd.detect_anomaly(check_nan=False):
        y = (x @ w).tanh()
        found = slopes(y, x)
    return [*found, error_of(wrong)]


@program
def a_profiler(x, w):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with torch.profiler.record_function("forward"):
            y = (x @ w).exp()
        found = slopes(y, x)
    return [*found, "forward" in {one.key for one in profiler.key_averages()}]


@program
def copies_of_tensors(x, w):
    y = (x @ w).exp()
    stored = io.BytesIO()
    torch.save(y.detach(), stored)
    stored.seek(0)
    return [copy.deepcopy(x.detach()), torch.load(stored), y.sin()]


# Changes in place.


@program
def changes_of_views(x, w):
    y = x @ w
    y[:, 1:3].mul_(2)
    y[0] = x[0].sin()
    part = y.view(-1)[2:9]
    part.mul_(3).add_(1)
    z = y.t()
    z.tanh_()
    return [y, *slopes(y, x), part, *slopes(part, x)]


@program
def changes_that_are_allowed(x, w):
    with autograd.graph.allow_mutation_on_saved_tensors():
        y = (x @ w).clone()
        z = y.square()
        y.mul_(3)
        return [z.detach().clone(), *slopes(z, x)]


@program
def changes_that_are_refused(x, w):
    leaf = x.detach().requires_grad_()
    first, _ = (x @ w).split(3, -1)
    return [
        error_of(lambda: leaf.add_(1)),
        error_of(lambda: first.add_(1)),
        error_of(lambda: first.requires_grad_(False)),
    ]


@program
def versions(x, w):
    y = x * 2
    view = y[1:]
    before = y._version
    view.add_(1), y.detach().mul_(2)
    with torch.no_grad():
        y.zero_()
    return [y._version - before, view._version - before, y]


@program
def detached_in_place(x, w):
    y = x @ w
    z = y.exp()
    y.detach_()
    return [z, y.requires_grad, *slopes(z, x)]
