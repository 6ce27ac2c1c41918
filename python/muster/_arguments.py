"""What a function takes, against what it is given: looked at in the program, before a process is started for it."""
from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence

from muster._function import name_of
from muster.errors import InvalidArgument

# Since Python 3.14 annotations are evaluated when somebody asks, and may name what type checkers alone import.
_ANNOTATIONS: Dict[str, Any] = {"annotation_format": importlib.import_module("annotationlib").Format.FORWARDREF} if sys.version_info >= (3, 14) else {}


_DEEPEST = 100  # wrappers of wrappers; one may name itself


def refuse_what_does_not_fit(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], what: str, hint: str = "") -> None:
    """Raises where the call would be a TypeError, as far as that is known."""
    signature = _signature(_with(function, _bare))
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        given = ", ".join([f"{len(args)} by place", *kwargs])
        raise InvalidArgument(f"{what}: expected the arguments ({', '.join(signature.parameters)}) of '{name_of(function)}', got {given}: {error}; "
                              f"correct them{hint}") from None


def refuse_what_two_take(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Mapping[str, Any], what: str) -> None:
    """Raises where a keyword in `given`, which the executor takes, is also an argument of the function that it is not given. A
    wrapper passes on to what it wraps, unless it has no place for the keyword."""
    called = _signature(_with(function, _bare))
    if called is None or not given:
        return
    free = {name for signature in _signatures(function) for name in _free_names(signature, function, args, kwargs)}
    both = [name for name in given if name in free and _takes(called, name)]
    if both:
        name, shown = name_of(function), ", ".join(f"{one}={given[one]!r}" for one in both)
        raise InvalidArgument(f"{what}: expected keywords of its own, got {shown}, which '{name}' takes too; give the function's as "
                              f"functools.partial({name}, {shown}), and leave it out here unless the task's is meant as well")


def _with(function: Callable[..., Any], other: Callable[[Any], Optional[Callable[..., Any]]]) -> Optional[Callable[..., Any]]:
    """What `other` gives for the function; of a partial or a method, one of that."""
    if isinstance(function, functools.partial):
        inner = _with(function.func, other)
        return None if inner is None else functools.partial(inner, *function.args, **function.keywords)
    if isinstance(function, types.MethodType):
        inner = _with(function.__func__, other)
        return None if inner is None else types.MethodType(inner, function.__self__)
    return other(function)


def _bare(function: Any) -> Optional[Callable[..., Any]]:
    """What really runs, without what decorators show in its place (__signature__, __wrapped__) and without annotations. None: it is
    not known, as of classes and of what is compiled."""
    if not isinstance(function, types.FunctionType):
        return None
    bare = types.FunctionType(function.__code__, {}, function.__name__, function.__defaults__, function.__closure__)
    bare.__kwdefaults__ = function.__kwdefaults__
    return bare


def _wrapped(function: Any) -> Optional[Callable[..., Any]]:
    inner = getattr(function, "__wrapped__", None)
    return inner if callable(inner) else None


def _signatures(function: Callable[..., Any]) -> Iterator[inspect.Signature]:
    """What the function shows, and what it and all that it wraps really take."""
    told = [_signature(function)]
    inner: Optional[Callable[..., Any]] = function
    for _ in range(_DEEPEST):
        if inner is None:
            break
        told.append(_signature(_with(inner, _bare)))
        inner = _with(inner, _wrapped)
    return (signature for signature in told if signature is not None)


def _signature(function: Optional[Callable[..., Any]]) -> Optional[inspect.Signature]:
    """None: it tells none."""
    if function is None:
        return None
    try:
        return inspect.signature(function, **_ANNOTATIONS)
    except Exception:  # a program's own __signature__ may raise anything
        return None


def _free_names(signature: inspect.Signature, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[str]:
    """The arguments that the call, or a partial, has not given."""
    bound = {**_bound_before(function), **_bound_by(signature, args, kwargs)}
    return [name for name in signature.parameters if name not in bound]


def _takes(signature: inspect.Signature, keyword: str) -> bool:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(one.kind is inspect.Parameter.VAR_KEYWORD or (name == keyword and one.kind in named) for name, one in signature.parameters.items())


def _bound_before(function: Callable[..., Any]) -> Dict[str, Any]:
    """The keywords of a partial."""
    return {**_bound_before(function.func), **function.keywords} if isinstance(function, functools.partial) else {}


def _bound_by(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Dict[str, Any]:
    try:
        return dict(signature.bind_partial(*args, **kwargs).arguments)
    except TypeError:  # a decorator may take others than what it wraps
        return dict(kwargs)
