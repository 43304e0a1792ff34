"""Orders the statements of a formula so that few values are alive at once.

Chains of sums are taken apart: their terms may come in any order, each as soon as it is there, into one accumulator. A
value that few statements use (a coefficient) is loaded once, and all its statements follow it; what depends on values
of many uses alone comes as late as possible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...forms.formula import Formula, Operand

#: A component of a result: (number of the result, number of the component).
Slot = tuple[int, int]
#: What is summed in a slot: a node, and where in the formula it is added (the number of the sum, or its own).
Term = tuple[int, int]
#: Statements that use a value of few uses, at most; the orders of several bounds are compared, None is as written.
FEW = (8, 0, None)


class Step(NamedTuple):
    """One statement: what it does, to which node or slot, from which nodes."""

    #: 'load' a node, 'make' it of its arguments, 'add' a value or a product of two to the sum of a node, 'total' the
    #: same to the sum of a slot, 'store' that sum.
    kind: str
    node: int  # number of the node; -1 where a slot is meant
    slot: Slot  # that is summed; (-1, -1) where a node is meant
    args: tuple[int, ...]  # numbers of nodes
    rank: int = -1  # puts it behind those that it depends on; of a 'total', where the formula adds its term
    follows: bool = False  # whether an 'add' or 'total' has one before it


class Order(NamedTuple):
    """Statements in their order."""

    steps: tuple[Step, ...]
    alive: int  # most values at once; with sums that outlive the order, and what is loaded before it
    accesses: int  # loads and stores

    @property
    def operations(self) -> int:
        """Statements but loads and stores."""
        return sum(step.kind not in ("load", "store") for step in self.steps)


def terms_of(base: Formula, slots: Collection[Slot]) -> dict[Slot, tuple[Term, ...]]:
    """The terms of components of results; what is no sum, or used elsewhere as well, is one term."""
    outputs = {slot: _output(base, slot) for slot in slots}
    uses = _uses(base, outputs.values())
    sums = _sums(base, uses)
    return {
        slot: tuple(sums[node]) if node in sums and uses[node] == 1 else ((node, node),)
        for slot, node in outputs.items()
    }


def schedule(
    base: Formula,
    terms: Mapping[Slot, Sequence[Term]],
    stay: bool = False,
    kept: Collection[int] = (),
    popular: Sequence[int] | None = None,
) -> Order:
    """The best order found for some terms of components of the results.

    ``terms`` are as of :func:`terms_of`, or some of these. If the sums ``stay``, they outlive the order, which a loop
    repeats; else each is stored as soon as it is complete. Operands that are ``kept`` are loaded once, before the loop.
    ``popular`` says how many nodes use each node of the formula (:func:`popularity`).
    """
    actions = _actions(base, terms)
    orders = [_walk(base, one, stay, kept) for one in _sorted(base, actions, popular or popularity(base))]
    return min(orders, key=lambda order: order.alive)  # the first of the best


def popularity(base: Formula) -> list[int]:
    """How many nodes use each node."""
    count = [0] * len(base.nodes)
    for node in base.nodes:
        for arg in node.args if node.kind not in ("load", "constant") else ():
            count[arg] += 1
    return count


def _output(base: Formula, slot: Slot) -> int:
    node = base.outputs[slot[0]][slot[1]]
    assert node is not None  # the caller leaves out what is zero
    return node


def _uses(base: Formula, outputs: Iterable[int]) -> dict[int, int]:
    """How often each node is needed."""
    uses: dict[int, int] = defaultdict(int)
    for node in outputs:
        uses[node] += 1
    for number in range(len(base.nodes) - 1, -1, -1):
        if number in uses and base.nodes[number].kind not in ("load", "constant"):
            for arg in base.nodes[number].args:
                uses[arg] += 1
    return dict(uses)


def _sums(base: Formula, uses: Mapping[int, int]) -> dict[int, list[Term]]:
    """The terms of every sum that is no part of another alone."""
    terms: dict[int, list[Term]] = defaultdict(list)
    owner: dict[int, int] = {}
    for number in range(len(base.nodes) - 1, -1, -1):
        if number in uses and base.nodes[number].kind == "add":
            root = owner.setdefault(number, number)
            for arg in base.nodes[number].args:
                if base.nodes[arg].kind == "add" and uses[arg] == 1:
                    owner[arg] = root
                else:
                    terms[root].append((arg, number))
    return terms


def _actions(base: Formula, terms: Mapping[Slot, Sequence[Term]]) -> list[Step]:
    """Statements of all but loads and stores, in no order that matters."""
    uses = _uses(base, (node for parts in terms.values() for node, _ in parts))
    spent: set[int] = set()  # that no statement of their own makes
    out: list[Step] = []

    def term(kind: str, node: int, slot: Slot, value: int, rank: int) -> None:
        args: tuple[int, ...] = (value,)
        if base.nodes[value].kind == "multiply" and uses[value] == 1:
            spent.add(value)
            args = base.nodes[value].args
        out.append(Step(kind, node, slot, args, rank))

    for slot, parts in terms.items():
        for value, rank in parts:
            term("total", -1, slot, value, rank)
    for root, chain in _sums(base, uses).items():
        for value, rank in chain:
            term("add", root, (-1, -1), value, rank)
    for number in uses:
        node = base.nodes[number]
        if node.kind not in ("load", "constant", "add") and number not in spent:
            out.append(Step("make", number, (-1, -1), node.args, number))
    return out


def _sorted(base: Formula, actions: list[Step], popular: Sequence[int]) -> Iterable[list[Step]]:
    """The orders that are compared."""
    consumers: dict[int, list[Step]] = defaultdict(list)
    makers: dict[int, list[Step]] = defaultdict(list)
    for action in actions:
        for arg in set(action.args):
            consumers[arg].append(action)
        if action.node >= 0:
            makers[action.node].append(action)
    values = sorted({*makers, *consumers})
    seen = set()
    for few in FEW:
        if few is None:
            keys = {id(action): 0 for action in actions}
        else:
            keys = _keys(base, actions, values, consumers, makers, _places(base, consumers, popular, few))
        order = sorted(actions, key=lambda a: (keys[id(a)], a.rank, a.node < 0))
        if (text := tuple(map(id, order))) not in seen:
            seen.add(text)
            yield order


def _places(
    base: Formula, consumers: Mapping[int, list[Step]], popular: Sequence[int], few: int
) -> dict[tuple[Operand, int], int]:
    """The places of loads of few uses: components of operands alike (a value, its tangent, its cotangent) together."""
    places: dict[tuple[Operand, int], int] = {}
    for number, found in consumers.items():
        if base.nodes[number].kind == "load" and popular[number] <= few:
            key = _alike(base, number)
            first = min(action.rank for action in found)
            places[key] = min(places.get(key, first), first)
    return places


def _alike(base: Formula, number: int) -> tuple[Operand, int]:
    operand, component = base.nodes[number].args
    return base.operands[operand]._replace(name=""), component


def _keys(
    base: Formula,
    actions: list[Step],
    values: list[int],
    consumers: dict[int, list[Step]],
    makers: dict[int, list[Step]],
    places: dict[tuple[Operand, int], int],
) -> dict[int, int]:
    """The place of each statement: no earlier than its loads of few uses; without such, no earlier than it must."""
    early: dict[int, int] = {}
    for number in values:
        if base.nodes[number].kind == "load":
            # one of many uses is loaded by the first of them
            early[number] = places.get(_alike(base, number), -1)
        else:
            early[number] = max((early.get(arg, -1) for a in makers[number] for arg in a.args), default=-1)
    keys: dict[int, int] = {}
    for action in actions:
        keys[id(action)] = max(early.get(arg, -1) for arg in action.args)
    late = dict(early)

    def final(action: Step) -> int:
        if keys[id(action)] < 0:
            keys[id(action)] = late[action.node] if action.node >= 0 else action.rank
        return keys[id(action)]

    for number in reversed(values):
        if late[number] < 0 and consumers[number]:
            late[number] = min(final(action) for action in consumers[number])
    for action in actions:
        final(action)
    return keys


def _walk(base: Formula, order: Sequence[Step], stay: bool, kept: Collection[int]) -> Order:
    """The statements with loads and stores, and what is alive meanwhile."""
    left: dict[int, int] = defaultdict(int)
    terms: dict[Slot, int] = defaultdict(int)
    for step in order:
        for arg in set(step.args):
            left[arg] += 1
        terms[step.slot] += 1
    terms.pop((-1, -1), None)
    first = {n: None for n in sorted(left) if base.nodes[n].kind == "load" and base.nodes[n].args[0] in kept}
    alive: set[int | Slot] = {*first, *(terms if stay else ())}
    loaded, opened = set(first), set[int | Slot](terms if stay else ())
    out = [Step("load", n, (-1, -1), ()) for n in first]
    most = len(alive)
    for step in order:
        for arg in step.args:
            if base.nodes[arg].kind == "load" and arg not in loaded:
                out.append(Step("load", arg, (-1, -1), ()))
                loaded.add(arg)
                alive.add(arg)
        most = max(most, len(alive))
        for arg in set(step.args):
            left[arg] -= 1
            if not left[arg] and arg not in first:
                alive.discard(arg)
        target = step.slot if step.kind == "total" else step.node
        out.append(step._replace(follows=target in opened))
        opened.add(target)
        alive.add(target)
        most = max(most, len(alive))
        if step.kind == "total" and not stay:
            terms[step.slot] -= 1
            if not terms[step.slot]:
                out.append(Step("store", -1, step.slot, ()))
                alive.discard(step.slot)
    return Order(tuple(out), most, len(loaded) + len(terms))
