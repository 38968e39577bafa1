"""Optimizers that take no step on gradients that cannot be trusted"""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Hashable, NamedTuple

import torch

_MARK = "_gradwire_guards"


class _Guard(NamedTuple):
    check: Callable[[], None]
    is_over: Callable[[], bool]


def guard(optimizer: torch.optim.Optimizer, key: Hashable, check: Callable[[], None],
          is_over: Callable[[], bool]) -> None:
    """Makes every step of an optimizer call `check` first, and again after each call of a closure; it raises if gradients
    cannot be trusted. Several guards of an optimizer are all asked. One takes the place of that with the same key, and of
    those that are over: what they look at exchanges nothing any more."""
    guards = optimizer.__dict__.get(_MARK)
    if guards is None:
        guards = optimizer.__dict__[_MARK] = {}
        _wrap(optimizer, guards)
    for other in [other for other, known in guards.items() if known.is_over()]:
        del guards[other]
    guards[key] = _Guard(check, is_over)


def _wrap(optimizer: torch.optim.Optimizer, guards: dict[Hashable, _Guard]) -> None:
    step = optimizer.step

    def check_all() -> None:
        for known in list(guards.values()):
            known.check()

    def checked(_optimizer: torch.optim.Optimizer, closure: Any = None, *arguments: Any, **keywords: Any) -> Any:
        check_all()
        if closure is None:
            return step(*arguments, **keywords)

        def checked_closure() -> Any:
            loss = closure()
            check_all()
            return loss
        return step(checked_closure, *arguments, **keywords)

    functools.update_wrapper(checked, step)  # schedulers look for marks on it, and want a method
    optimizer.step = types.MethodType(checked, optimizer)  # type: ignore[method-assign]
