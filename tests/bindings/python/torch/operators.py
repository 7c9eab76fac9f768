"""PyTorch's database of operations, with arguments that they take."""

import torch
from torch.testing._internal.common_methods_invocations import op_db

__all__ = ["op_db"]

# PyTorch's tests allow no changes of the flags of its backends, from their import on. Tests of this package change
# them.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True
