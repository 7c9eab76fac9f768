"""The state of the optimizers of all blocks as one state dict by the names of the parameters. It does not depend on the
blocks, so it can be loaded after the model was divided by another budget.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Names = Callable[[torch.Tensor], str]


def merged(optimizers: list[tuple[torch.optim.Optimizer, Names]]) -> dict[str, Any]:
    """Returns {"state": {name: ...}, "param_groups": [{..., "params": [name, ...]}, ...]}. Groups of several optimizers
    are one group if they have the same options.
    """
    state: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    for optimizer, name_of in optimizers:
        own = optimizer.state_dict()
        names = _names(optimizer, own, name_of)
        if others := own["state"].keys() - names.keys():
            raise TypeError(
                f"{type(optimizer).__name__} has state that belongs to no parameter ({', '.join(map(repr, others))}), "
                "so it cannot be told by the names of parameters"
            )
        state.update((names[number], value) for number, value in own["state"].items())
        for group in own["param_groups"]:
            _add(groups, _options(group), [names[number] for number in group["params"]])
    return {"state": state, "param_groups": groups}


def divided(optimizers: list[tuple[torch.optim.Optimizer, Names]], saved: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the state dict of each optimizer from what merged() has returned. Everything is checked here, so that a
    failure comes before the first optimizer is loaded.
    """
    if not isinstance(saved, dict) or not {"state", "param_groups"} <= saved.keys():
        raise TypeError("load_optimizer_state() needs what optimizer_state() has returned")
    options = {name: _options(group) for group in saved["param_groups"] for name in group["params"]}
    _check_names(optimizers, options)
    return [_own(optimizer, name_of, options, saved["state"]) for optimizer, name_of in optimizers]


def _names(optimizer: torch.optim.Optimizer, own: dict[str, Any], name_of: Names) -> dict[int, str]:
    """Returns the names of parameters by the numbers that the optimizer's own state dict has for them."""
    return {
        number: name_of(parameter)
        for group, saved in zip(optimizer.param_groups, own["param_groups"])
        for number, parameter in zip(saved["params"], group["params"])
    }


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _add(groups: list[dict[str, Any]], options: dict[str, Any], names: list[str]) -> None:
    for group in groups:
        if _same(_options(group), options):
            group["params"] += names
            return
    groups.append({**options, "params": names})


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    # An option may be a tensor, whose == returns a tensor.
    return one.keys() == other.keys() and all(bool(value == other[key]) for key, value in one.items())


def _check_names(optimizers: list[tuple[torch.optim.Optimizer, Names]], saved: dict[str, Any]) -> None:
    own = {
        name_of(parameter)
        for optimizer, name_of in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    if missing := sorted(own - saved.keys()):
        raise ValueError(f"the saved state has no parameter {', '.join(missing[:8])}, which the model trains")
    if unknown := sorted(saved.keys() - own):
        raise ValueError(f"the saved state has the parameter {', '.join(unknown[:8])}, which the model does not train")


def _own(
    optimizer: torch.optim.Optimizer, name_of: Names, options: dict[str, dict[str, Any]], state: dict[str, Any]
) -> dict[str, Any]:
    """Returns the state dict of one optimizer."""
    own = optimizer.state_dict()
    names = _names(optimizer, own, name_of)
    groups = []
    for group in own["param_groups"]:
        inside = [names[number] for number in group["params"]]
        for name in inside[1:]:
            if not _same(options[name], options[inside[0]]):
                raise ValueError(
                    f"{inside[0]} and {name} have different options in the saved state, but one group of the optimizer: "
                    "make the groups as they were when the state was saved"
                )
        kept = {key: value for key, value in group.items() if key in ("params", "param_names")}
        groups.append({**(options[inside[0]] if inside else _options(group)), **kept})
    return {
        "state": {number: state[name] for number, name in names.items() if name in state},
        "param_groups": groups,
    }
