"""What a function takes, against what it is given: looked at in the program, before a process is started for it."""
from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from muster._function import name_of
from muster.errors import InvalidArgument

# Since Python 3.14 annotations are evaluated when somebody asks, and may name what type checkers alone import.
_ANNOTATIONS: Dict[str, Any] = {"annotation_format": importlib.import_module("annotationlib").Format.FORWARDREF} if sys.version_info >= (3, 14) else {}


def refuse_what_does_not_fit(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], what: str, hint: str = "") -> None:
    """Raises where the call would be a TypeError. Of classes and of callables that tell no signature nothing is known."""
    signature = _signature_of(function, follow_wrapped=False)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([f"{len(args)} by place", *kwargs])
        raise InvalidArgument(f"{what}: expected the arguments ({', '.join(signature.parameters)}) of '{name_of(function)}', got {given}: {error}; "
                              f"correct them{hint}") from None


def refuse_what_two_take(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Mapping[str, Any], what: str) -> None:
    """Raises where a keyword in `given`, which the executor takes, is also an argument of the function that it is not given."""
    signature = _signature_of(function, follow_wrapped=True)
    if signature is None or not given:
        return
    bound = {**_bound_before(function), **_bound_by(signature, args, kwargs)}
    both = [name for name in given if name in signature.parameters and name not in bound]
    if both:
        name, shown = name_of(function), ", ".join(f"{one}={given[one]!r}" for one in both)
        raise InvalidArgument(f"{what}: expected keywords of its own, got {shown}, which '{name}' takes too; give the function's as "
                              f"functools.partial({name}, {shown}), and leave it out here unless the task's is meant as well")


def _signature_of(function: Callable[..., Any], follow_wrapped: bool) -> Optional[inspect.Signature]:
    """Of a function, a method, or a partial of one."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not isinstance(inner, (types.FunctionType, types.MethodType)):
        return None
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped, **_ANNOTATIONS)
    except Exception:  # a program's own __signature__ may raise anything
        return None


def _bound_before(function: Callable[..., Any]) -> Dict[str, Any]:
    """The keywords of a partial."""
    return {**_bound_before(function.func), **function.keywords} if isinstance(function, functools.partial) else {}


def _bound_by(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
    try:
        return dict(signature.bind_partial(*args, **kwargs).arguments)
    except TypeError:  # a decorator may take others than what it wraps
        return dict(kwargs)
