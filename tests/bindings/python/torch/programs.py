"""Random programs that autograd differentiates. The same seed makes the same program, whatever its tensors hold."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Saves(torch.autograd.Function):
    """Saves its input, its output, a view of it, or nothing."""

    @staticmethod
    def forward(ctx, x, kind):
        y = x * 3
        ctx.save_for_backward(*{0: (x,), 1: (y,), 2: (x, y), 3: (y.reshape(-1)[: y.numel() // 2],), 4: ()}[kind])
        return y

    @staticmethod
    def backward(ctx, gradient):
        factor = sum((one.sum() for one in ctx.saved_tensors), start=torch.zeros(()))
        return gradient * factor.to(gradient.dtype) * 3, None


class Writes(torch.autograd.Function):
    """Writes to its input by a kernel that PyTorch does not know, as Triton's are."""

    @staticmethod
    def forward(ctx, x, kind):
        x.detach().numpy()[...] *= 1.5
        if kind == 2:
            ctx.mark_dirty(x)
        ctx.save_for_backward(x.detach() if kind == 0 else x)
        return x.sum(-1) if kind == 3 else x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient.reshape(x.shape) * x if gradient.shape == x.shape else gradient.unsqueeze(-1) * x, None


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


UNARY = [
    torch.sin, torch.exp, torch.tanh, torch.sigmoid, torch.relu, torch.neg, torch.square, torch.abs, F.gelu, F.silu,
    torch.clone, lambda x: x * 2.5, lambda x: 1.5 - x, lambda x: x / 3, lambda x: x.clamp(-1, 0.5), F.softplus,
    lambda x: F.softmax(x, -1), lambda x: F.log_softmax(x, -1), lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: x.to(torch.float64), lambda x: x.to(torch.bfloat16), lambda x: x.float(), lambda x: x.contiguous(),
    lambda x: F.dropout(x, 0.3), lambda x: torch.native_dropout(x, 0.3, True)[0], lambda x: x.cumsum(-1),
    lambda x: x.sort(-1)[0], lambda x: x.mean(-1, keepdim=True), lambda x: x.sum(0), lambda x: x.var(-1, keepdim=True),
    lambda x: x.amax(-1), lambda x: F.elu(x), lambda x: F.leaky_relu(x), lambda x: x.pow(3), lambda x: F.glu(x, -1),
    lambda x: x.tril() if x.dim() > 1 else x.flip(0), lambda x: torch.where(x > 0, x, x * 0.5),
    lambda x: x.masked_fill(x > 0.5, 0.25), lambda x: torch.cat((x, x * 2), -1), lambda x: torch.stack((x, x.sin())),
    lambda x: F.rms_norm(x, x.shape[-1:]), lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)], lambda x: x.prod(-1),
    lambda x: torch.logsumexp(x, -1), lambda x: torch.view_as_real(torch.view_as_complex(x.float().view(-1, 2)).exp()),
    lambda x: torch.complex(x.float(), x.float().sin()), lambda x: (x.conj() * x).abs(), lambda x: x.real.contiguous(),
    lambda x: x.imag, lambda x: torch._foreach_mul([x, x.sin()], 2.0)[1], lambda x: x.norm(dim=-1),
    lambda x: F.conv1d(x.reshape(1, 1, -1), torch.ones(2, 1, 3, dtype=x.dtype), padding=1),
    lambda x: F.max_pool1d(x.reshape(1, 1, -1), 2),
    lambda x: F.batch_norm(x.reshape(2, -1), None, None, training=True),
    lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), x.reshape(-1)[:2], (2,)).to_dense(),
    lambda x: F.silu(x.clone(), inplace=True), lambda x: F.hardtanh(x * 1, inplace=True),
]  # fmt: skip
VIEWS = [
    lambda x: x.chunk(2, -1)[-1], lambda x: x.chunk(2)[0], lambda x: x.split(1)[0], lambda x: x.unbind(0)[-1],
    lambda x: x.select(-1, 0), lambda x: x[1:], lambda x: x[..., ::2], lambda x: x.transpose(0, -1), lambda x: x.mT,
    lambda x: x.detach(), lambda x: x.view(-1), lambda x: x.reshape(2, -1), lambda x: x.unsqueeze(0),
    lambda x: x.unsqueeze(-1), lambda x: x.squeeze(), lambda x: x.expand(2, *x.shape), lambda x: x.unfold(-1, 2, 1),
    lambda x: x.as_strided((2, 2), (1, 1), x.storage_offset()), lambda x: x.diagonal(), lambda x: x[None, 0],
    lambda x: x.as_strided((2,), (2,), 0), lambda x: torch.view_as_real(x), lambda x: x[:0], lambda x: x.view_as(x),
    lambda x: x.reshape(-1)[0], lambda x: x.view(torch.int32).view(x.dtype), lambda x: x.flatten(),
]  # fmt: skip
INPLACE = [
    lambda x: x.sigmoid_(), lambda x: x.tanh_(), lambda x: x.add_(1), lambda x: x.mul_(0.5), lambda x: x.relu_(),
    lambda x: x.exp_(), lambda x: x.zero_(), lambda x: x.copy_(x.detach().flip(0)), lambda x: x.sin_(),
    lambda x: x.clamp_(-0.5, 0.5), lambda x: x.masked_fill_(x.detach() > 0, 0.5), lambda x: x.index_fill_(0, I0, 2.0),
    lambda x: x.__setitem__(0, 1.0), lambda x: x.__setitem__((..., 0), x[..., 0] * 2), lambda x: Doubles.apply(x),
    lambda x: F.dropout(x, 0.3, inplace=True), lambda x: torch._foreach_add_([x], 1.0), lambda x: x.t_(),
    lambda x: x.unsqueeze_(0), lambda x: torch.mul(x.detach(), 2, out=x.detach()), lambda x: x.normal_(),
]  # fmt: skip
BINARY = [
    torch.add, torch.mul, torch.sub, torch.maximum, torch.matmul, lambda x, y: torch.addcmul(x, x, y),
    lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.where(x > y, x, y), lambda x, y: x / (y.abs() + 1),
    lambda x, y: torch.cat((x, y)), lambda x, y: F.linear(x, y), lambda x, y: x.add_(y), lambda x, y: x.mul_(y),
    lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]), torch.atan2, torch.hypot,
]  # fmt: skip
I0 = torch.tensor([0])


class Program:
    """One random program with its parameters. `trace` has what happened, and `values` what came out."""

    def __init__(self, seed, length, away=lambda: None):
        self.random, self.seed, self.length, self.away = random.Random(seed), seed, length, away
        torch.manual_seed(seed)
        self.model = nn.Module()
        for name, shape in (("one", (4, 6)), ("two", (6, 4)), ("three", (6,)), ("four", (2, 4, 6))):
            self.model.register_parameter(name, nn.Parameter(torch.randn(shape)))
        self.model.register_buffer("scale", torch.rand(6))
        self.inputs = [torch.randn(4, 6), torch.randn(4, 6, requires_grad=True), torch.randn(2, 4, 6).transpose(0, 1)]
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, foreach=bool(seed % 2))
        self.trace, self.values, self.alive = [], [], []

    def attempt(self, name, function, *args):
        """Calls a function that PyTorch may refuse, in every run alike."""
        try:
            result = function(*args)
        except (RuntimeError, IndexError, ValueError, NotImplementedError, TypeError) as error:
            self.trace.append((name, type(error).__name__, str(error)))
            return None
        self.trace.append((name, "", ""))
        return result

    def pick(self, pool):
        return pool[-1 - min(int(self.random.expovariate(0.35)), len(pool) - 1)]

    def step(self, number):
        """Runs the forward and its backwards. `number` makes the program."""
        self.random = random.Random(number)
        torch.manual_seed(number)
        self.model.zero_grad(set_to_none=True)
        parameters = [*self.model.parameters()]
        pool = [*parameters, *self.inputs, self.model.scale]
        pool += [parameters[0] * self.inputs[0], self.inputs[1] @ parameters[1], parameters[3].exp()]
        for _ in range(self.length):
            self.operation(pool)
            if self.random.random() < 0.1:
                self.away()
        self.values += [one.detach().clone() for one in pool[-6:]]
        self.backwards(pool, [*parameters, self.inputs[1]])
        if self.random.random() < 0.5:
            self.optimizer.step()
        if self.random.random() < 0.5:
            self.alive = []

    def operation(self, pool):
        kind = self.random.choices(range(len(KINDS)), WEIGHTS)[0]
        made = getattr(self, KINDS[kind])(pool)
        for one in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(one, torch.Tensor) and one.numel() <= 512 and one.layout == torch.strided:
                pool.append(one)

    # Operations.

    def unary(self, pool):
        at = self.random.randrange(len(UNARY))
        return self.attempt(f"unary {at}", UNARY[at], self.pick(pool))

    def view(self, pool):
        at = self.random.randrange(len(VIEWS))
        return self.attempt(f"view {at}", VIEWS[at], self.pick(pool))

    def binary(self, pool):
        at, x, y = self.random.randrange(len(BINARY)), self.pick(pool), self.pick(pool)
        if BINARY[at].__name__ == "<lambda>" and not writable(x):
            return None
        return self.attempt(f"binary {at}", BINARY[at], x, y)

    def inplace(self, pool):
        at, x = self.random.randrange(len(INPLACE)), self.pick(pool)
        if self.random.random() < 0.5 and x.requires_grad:
            x = self.attempt("copy", torch.clone, x)
        if x is None or not writable(x):
            return None
        self.attempt(f"inplace {at}", INPLACE[at], x)
        return x

    def parts(self, pool):
        """Parts of fresh memory with versions of their own."""
        x = self.pick(pool)
        if x.dim() == 0 or not x.is_floating_point():
            return None
        dim = self.random.choice((0, -1))
        split = self.random.choice((lambda x: x.unsafe_chunk(2, dim), lambda x: x.unsafe_split(2, dim)))
        parts = self.attempt("parts", lambda: split(x * 2 if self.random.random() < 0.7 else x.clone()))
        for part in parts or ():
            if self.random.random() < 0.6:
                self.attempt("parts", self.random.choice(INPLACE[:10]), part)
        return parts

    def function(self, pool):
        kind, x = self.random.randrange(5), self.pick(pool)
        return self.attempt(f"function {kind}", Saves.apply, x, kind)

    def kernel(self, pool):
        kind, x = self.random.randrange(4), self.pick(pool)
        if x.dtype != torch.float32 or x.dim() == 0:
            return None
        return self.attempt(f"kernel {kind}", lambda: Writes.apply(x.exp() * 3, kind))

    def recomputed(self, pool):
        x, functions = self.pick(pool), [self.random.choice(UNARY[:20]) for _ in range(3)]
        reentrant = self.random.random() < 0.5

        def forward(x):
            for function in functions:
                x = function(x)
            return x

        return self.attempt("checkpoint", lambda: checkpoint(forward, x, use_reentrant=reentrant))

    def autocast(self, pool):
        x, y = self.pick(pool), self.pick(pool)

        def forward():
            with torch.autocast("cpu", torch.bfloat16):
                return [x @ self.model.two, F.gelu(x @ self.model.two), x @ y.mT]

        return self.attempt("autocast", forward)

    def ungraded(self, pool):
        x, at = self.pick(pool), self.random.randrange(len(UNARY))
        mode = self.random.choice((torch.no_grad, torch.inference_mode, torch.enable_grad))

        def forward():
            with mode():
                return UNARY[at](x)

        return self.attempt("ungraded", forward)

    def forgotten(self, pool):
        """Gives a tensor up, so that its memory is used again."""
        if len(pool) > 12:
            del pool[self.random.randrange(9, len(pool))]

    def hooked(self, pool):
        x = self.pick(pool)
        if x.requires_grad:
            self.attempt("hook", x.register_hook, lambda gradient: gradient * 2)

    def out(self, pool):
        x = self.pick(pool).detach()
        result = torch.empty(0, dtype=x.dtype)
        self.attempt("out", lambda: torch.sin(x, out=result))
        return result

    def storage(self, pool):
        """Memory of a storage that is given up and taken again."""
        x = torch.rand(4, 6)
        kept = x * self.model.one
        self.alive.append(kept)
        self.away()
        del x
        again = torch.rand(4, 6)
        return [again * self.model.one, again.set_(torch.rand(4, 6)) * self.model.one]

    # Backwards.

    def backwards(self, pool, leaves):
        for _ in range(self.random.randrange(1, 4)):
            some = [one for one in (self.pick(pool) for _ in range(4)) if one.requires_grad]
            if not some:
                continue
            how = self.random.choice(("backward", "grad", "twice", "double", "drop"))
            loss = self.attempt("loss", loss_of, some)
            if loss is None:
                continue
            if self.random.random() < 0.5:
                self.away()
            if how == "drop":
                self.alive.append(loss)
                continue
            if not self.differentiate(how, loss, leaves):
                return

    def differentiate(self, how, loss, leaves):
        def backward():
            if how == "grad":
                return torch.autograd.grad(
                    loss, leaves[self.random.randrange(3) :], allow_unused=True, retain_graph=True
                )
            if how == "double":
                slopes = torch.autograd.grad(loss, leaves, allow_unused=True, create_graph=True)
                slope = sum(one.square().sum() for one in slopes if one is not None)
                if slope.requires_grad:
                    slope.backward(retain_graph=True)
                return slopes
            for _ in range(2 if how == "twice" else 1):
                loss.backward(retain_graph=True)
            return ()

        found = self.attempt(f"backward {how}", backward)
        if found is None:
            return False
        self.values += [one.detach().clone() for one in found if one is not None]
        self.values += [one.grad.clone() for one in leaves if one.grad is not None]
        return True


def loss_of(tensors):
    return sum((torch.view_as_real(one) if one.is_complex() else one).float().sum().sin() for one in tensors)


def writable(x):
    """Whether no two elements of a tensor share memory, so that an operation in place has one meaning."""
    try:
        return not (x.is_leaf and x.requires_grad) and torch._debug_has_internal_overlap(x) == 0
    except RuntimeError:  # PyTorch refuses to look at a view whose base was changed in a forbidden way
        return False


KINDS = {
    "unary": 30, "view": 14, "binary": 16, "inplace": 9, "parts": 5, "function": 4, "kernel": 2, "recomputed": 2,
    "autocast": 3, "ungraded": 2, "forgotten": 3, "hooked": 2, "out": 1, "storage": 1,
}  # fmt: skip
KINDS, WEIGHTS = list(KINDS), list(KINDS.values())
