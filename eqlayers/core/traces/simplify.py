"""Makes graphs smaller: nodes that compute the same become one; constants are computed; unused ones and checks go.

Of gradients, forms whose results are added become one, and what ends in float32 is computed in it.
"""

from __future__ import annotations

import operator
from collections.abc import Set
from typing import Any

import torch
from torch import Tensor, fx

from ..forms.description import describe
from ..torch_internals import always_alike
from .trace import fake_of, is_operator

FORM = "eqlayers.form.default"
#: Operators whose result is their operand, without autograd and for constants.
ALIASES = ("detach", "alias", "lift_fresh_copy")
#: Operators whose results depend on the dtype and the device of their operand alone, if sizes are numbers.
FILLED = tuple(f"aten.new_{kind}.default" for kind in ("ones", "zeros", "full", "empty"))
#: Operators whose results depend on numbers of Python alone.
MADE = ("aten.scalar_tensor", "aten.arange")
#: Operators of which gradients of networks in float64 consist, and which take any dtype.
OF_GRADIENTS = (FORM, "aten.mm.default", "aten.t.default", "aten.view.default")
#: Most numbers of constants that become one if their numbers are equal.
SMALL = 64


def simplify(module: fx.GraphModule) -> None:
    """Remove what a program without autograd does not need; the caller checks values before the program runs."""
    graph = module.graph
    for node in list(graph.nodes):
        if is_operator(node, "aten._assert_async.msg"):
            graph.erase_node(node)
        elif _keeps(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()
    _compute_constants(module)
    _unite_equal(graph)
    graph.eliminate_dead_code()
    module.recompile()


def _keeps(node: fx.Node) -> bool:
    """Whether the result of a node is its operand: the same numbers with the same dtype, device and strides."""
    if not is_operator(node, "aten._to_copy.default"):
        return any(is_operator(node, f"aten.{name}.default") for name in ALIASES)
    before, after = (fake_of(one) for one in (node.args[0], node))  # type: ignore[arg-type]
    alike = (before.dtype, before.device) == (after.dtype, after.device)
    return alike and str(before.stride()) == str(after.stride())  # sizes are symbols


def _compute_constants(module: fx.GraphModule) -> None:
    """Replace nodes that depend on constants alone by their values."""
    values, places = dict[fx.Node, Any](), dict[Any, fx.Node]()
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            values[node] = value = getattr(module, node.target)
            same = value.data_ptr() if value.numel() > SMALL else repr(value.tolist())
            place = same, value.dtype, value.device, value.shape, value.stride()
            if value.numel() and (earlier := places.setdefault(place, node)) is not node:
                node.replace_all_uses_with(earlier)
        inputs = node.all_input_nodes
        made = inputs or str(node.target).startswith(MADE)
        if node.op != "call_function" or not (made and always_alike(node.target)):
            continue
        known = values
        filled = str(node.target) in FILLED and ("empty" not in str(node.target) or fake_of(node).shape == (0,))
        if filled and len(inputs) == 1 and not any(user.op == "output" for user in node.users):
            like = fake_of(inputs[0])
            known = {inputs[0]: torch.empty(0, dtype=like.dtype, device=like.device)}
        if all(one in known for one in inputs):
            args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            values[node] = value = node.target(*args, **kwargs)
            if isinstance(value, Tensor):
                name = f"computed_{len(dict(module.named_buffers()))}"  # a graph may have been simplified before
                module.register_buffer(name, value, persistent=False)
                with module.graph.inserting_before(node):
                    constant = module.graph.get_attr(name)
                constant.meta, values[constant] = node.meta, value
                node.replace_all_uses_with(constant)


def _unite_equal(graph: fx.Graph) -> None:
    """Replace each node by an earlier one with the same operator and arguments."""
    known = dict[Any, fx.Node]()
    for node in list(graph.nodes):
        if node.op != "call_function" or not always_alike(node.target):
            continue
        key = node.target, _hashable(node.args), _hashable(node.kwargs)
        if (earlier := known.setdefault(key, node)) is not node:
            node.replace_all_uses_with(earlier)
            graph.erase_node(node)


def _hashable(value: Any) -> Any:
    """Arguments of a node, with types, as 1 equals 1.0."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((name, _hashable(one)) for name, one in value.items())
    return type(value), value


# ---- gradients ------------------------------------------------------------------------------------------------------


def join_gradients(graph: fx.Graph) -> None:
    """Let one form compute the gradients of a form and of its gradients by the same operands, if these are added.

    The gradient of a form's gradients g(o) along tangents t is the derivative of g along t, and g is linear in the
    cotangent, so the sum of both is the derivative of g along t and the cotangent: one kernel in place of two and sums.
    """
    calls = {node: str(node.args[5]).split("/") for node in graph.nodes if is_operator(node, FORM)}
    firsts = {_differentiated(node, steps, 1): node for node, steps in calls.items()}
    seconds = [(node, _differentiated(node, steps, 2)) for node, steps in calls.items()]
    for second, form in seconds:
        if form is not None and (first := firsts.get(form)) is not None:
            _join(first, calls[first], second, calls[second])
    graph.eliminate_dead_code()


def _differentiated(call: fx.Node, steps: list[str], depth: int) -> Any:
    """The form whose gradient of some depth a call is, with operands and sizes; None if it is no such gradient."""
    if any(step[0] != "g" for step in steps[-depth:]):
        return None
    key = "/".join(steps[:-depth])
    operands: Any = call.args[0]
    count = len(describe(key).form.operands)
    return key, steps[-depth].partition(":")[0], tuple(operands[:count]), str((*call.args[1:5], *call.args[6:]))


def _numbers(flags: str) -> list[int]:
    return [number for number, flag in enumerate(flags) if flag == "1"]


def _gradients(call: fx.Node, step: str) -> dict[int, fx.Node]:
    """The used results of a call whose last step is a gradient, by the numbers of operands."""
    numbers = _numbers(step.partition(":")[2])
    return {numbers[int(user.args[1])]: user for user in call.users if user.users}  # type: ignore[arg-type]


def _join(first: fx.Node, first_steps: list[str], second: fx.Node, second_steps: list[str]) -> None:
    mine, theirs = _gradients(first, first_steps[-1]), _gradients(second, second_steps[-1])
    operands, cotangents = list(second.args[0]), list(first.args[0])  # type: ignore[arg-type]
    has, _, requested = first_steps[-1][1:].partition(":")
    count = len(cotangents) - has.count("1")  # of the operands of the form
    common = [number for number in theirs if number < count]
    order = {node: number for number, node in enumerate(first.graph.nodes)}
    late = any(order[one] > order[first] for one in operands)
    if late or not common or any(n not in mine or _sum_of(mine[n]) is not _sum_of(theirs[n]) for n in common):
        return
    along = _numbers(second_steps[-1][1:].partition(":")[0])  # of the requested operands of the gradient
    moving = {_numbers(second_steps[-2].partition(":")[2])[number] for number in along}
    flags = "".join("01"[number in moving] for number in range(count)) + "1" * has.count("1")
    results = {_numbers(requested).index(number): one for number, one in mine.items()}
    _replace(first, [*operands, *cotangents[count:]], [*first_steps, f"a{flags}"], results)
    for number in common:
        total = next(iter(theirs[number].users))
        total.replace_all_uses_with(next(one for one in total.all_input_nodes if one is not theirs[number]))
        first.graph.erase_node(total)
        first.graph.erase_node(theirs[number])
    if rest := sorted(set(theirs).difference(common)):
        wanted = "".join("01"[number in rest] for number in range(len(operands) - len(along)))
        step = f"{second_steps[-1].partition(':')[0]}:{wanted}"
        _replace(second, operands, [*second_steps[:-1], step], {at: theirs[number] for at, number in enumerate(rest)})


def _replace(call: fx.Node, operands: list[Any], steps: list[str], results: dict[int, fx.Node]) -> None:
    """Let results, by their numbers, come from a call of another form with the same sizes."""
    with call.graph.inserting_before(call):
        other = call.graph.call_function(call.target, (operands, *call.args[1:5], "/".join(steps), *call.args[6:]))  # type: ignore[arg-type]
        other.meta = dict(call.meta)
        for number, result in results.items():
            taken = call.graph.call_function(operator.getitem, (other, number))
            taken.meta = result.meta
            result.replace_all_uses_with(taken)
            call.graph.erase_node(result)


def _sum_of(node: fx.Node) -> fx.Node:
    """The last sum that a node is part of, and nothing else."""
    while len(node.users) == 1:
        user = next(iter(node.users))
        same = is_operator(user, "aten.add.Tensor") and not user.kwargs and len(user.all_input_nodes) == 2
        if not same or any(fake_of(one).shape != fake_of(user).shape for one in user.all_input_nodes):
            break
        node = user
    return node


def narrow_gradients(graph: fx.Graph, exact: Set[fx.Node]) -> None:
    """Let nodes in float64 have float32, if all that depends on them is float32; but not ``exact`` ones."""
    narrowed, rounding = set[fx.Node](), None
    for node in reversed(graph.nodes):
        if _rounds(node):
            rounding = node
        usual = node.target is operator.getitem or str(node.target) in OF_GRADIENTS
        users = all(user in narrowed or _rounds(user) for user in node.users)
        if usual and users and node not in exact and torch.float64 in _dtypes(node):
            narrowed.add(node)
    rounded = dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node in narrowed:
            for one in node.all_input_nodes:
                if one not in narrowed and torch.float64 in _dtypes(one):
                    if one not in rounded:
                        rounded[one] = _float32(one, node, rounding)
                    node.replace_input_with(one, rounded[one])
            value = fake_of(node)
            node.meta["val"] = [v.float() for v in value] if isinstance(value, list) else value.float()


def _float32(node: fx.Node, before: fx.Node, rounding: Any) -> fx.Node:
    """A node in float32: what it was copied from, or a copy by the operator of another one."""
    source: Any = node.args[0] if is_operator(node, "aten._to_copy.default") else None
    if source is not None and torch.float32 in _dtypes(source):
        return source
    with node.graph.inserting_before(before):
        copy = node.graph.call_function(rounding.target, (node,), dict(rounding.kwargs))
    copy.meta = {**node.meta, "val": fake_of(node).float()}
    return copy


def _dtypes(node: fx.Node) -> list[torch.dtype]:
    """The dtypes of a node's tensor, or of its tensors."""
    value = node.meta.get("val")
    return [one.dtype for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, Tensor)]


def _rounds(node: fx.Node) -> bool:
    """Whether a node is a copy in float32 of a tensor of the same device in float64."""
    if not is_operator(node, "aten._to_copy.default") or torch.float32 not in _dtypes(node):
        return False
    before = fake_of(node.args[0])  # type: ignore[arg-type]
    return bool(before.dtype is torch.float64 and before.device == fake_of(node).device)
