"""Orders the statements of a formula so that few values are alive at once.

Chains of sums become one accumulator to which terms are added in any order, each as soon as it is known. A value that
few statements use (a coefficient) is loaded once, directly before its statements; statements that depend only on values
of many uses come as late as possible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...forms.formula import Formula, Operand

#: A component of a result: (number of the result, number of the component).
Slot = tuple[int, int]
#: A term of the sum in a slot: a node, and the number of the node that adds it (its own number if none does).
Term = tuple[int, int]
#: Bounds of "few uses", whose orders are compared; None keeps the order of the formula.
FEW = (8, 0, None)


class Step(NamedTuple):
    """One statement: an operation on a node or a slot, and its arguments."""

    #: 'load' a node, 'make' it of its arguments, 'add' a value or a product of two to the sum of a node, 'total' the
    #: same to the sum of a slot, 'store' that sum.
    op: str
    node: int  # number of the node; -1 if the statement is about a slot
    slot: Slot  # component of a result; (-1, -1) if the statement is about a node
    args: tuple[int, ...]  # numbers of nodes
    rank: int = -1  # sort key that respects dependencies; for 'total', the number of the node that adds the term
    follows: bool = False  # whether an 'add' or 'total' has one before it


class Order(NamedTuple):
    """Statements in their order, with the registers and memory accesses that they need."""

    steps: tuple[Step, ...]
    alive: int  # most values alive at once, with sums that outlive the order and values loaded before it
    accesses: int  # loads and stores

    @property
    def operations(self) -> int:
        """Number of statements that are no loads or stores."""
        return sum(step.op not in ("load", "store") for step in self.steps)


def terms_of(base: Formula, slots: Collection[Slot]) -> dict[Slot, tuple[Term, ...]]:
    """The terms of components of results; a node that is no sum, or has other uses, is one term."""
    nodes = ((slot, base.outputs[slot[0]][slot[1]]) for slot in slots)
    outputs = {slot: node for slot, node in nodes if node is not None}  # callers leave out zero components
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
    preloaded: Collection[int] = (),
    popular: Sequence[int] | None = None,
) -> Order:
    """The best order found for some terms of components of the results.

    ``terms`` are all or some of :func:`terms_of`. If the sums ``stay``, they live through the whole loop; else each is
    stored as soon as it is complete. Operands in ``preloaded`` are loaded once, before the loop. ``popular`` is the
    number of nodes that use each node of the formula (:func:`popularity`).
    """
    actions = _actions(base, terms)
    candidates = _sorted(base, actions, popular or popularity(base))
    orders = [_with_accesses(base, steps, stay, preloaded) for steps in candidates]
    return min(orders, key=lambda order: order.alive)  # the first of the best


def popularity(base: Formula) -> list[int]:
    """Number of nodes that use each node of a formula."""
    count = [0] * len(base.nodes)
    for node in base.nodes:
        for arg in node.args if node.op not in ("load", "constant") else ():
            count[arg] += 1
    return count


def _uses(base: Formula, outputs: Iterable[int]) -> dict[int, int]:
    """Number of uses of each node that the outputs need, by number."""
    uses: dict[int, int] = defaultdict(int)
    for node in outputs:
        uses[node] += 1
    for number in range(len(base.nodes) - 1, -1, -1):
        if number in uses and base.nodes[number].op not in ("load", "constant"):
            for arg in base.nodes[number].args:
                uses[arg] += 1
    return dict(uses)


def _sums(base: Formula, uses: Mapping[int, int]) -> dict[int, list[Term]]:
    """The terms of every sum that is not merged into another sum."""
    terms: dict[int, list[Term]] = defaultdict(list)
    owner: dict[int, int] = {}
    for number in range(len(base.nodes) - 1, -1, -1):
        if number in uses and base.nodes[number].op == "add":
            root = owner.setdefault(number, number)
            for arg in base.nodes[number].args:
                if base.nodes[arg].op == "add" and uses[arg] == 1:
                    owner[arg] = root
                else:
                    terms[root].append((arg, number))
    return terms


def _actions(base: Formula, terms: Mapping[Slot, Sequence[Term]]) -> list[Step]:
    """The statements that compute the terms, but for loads and stores, in no particular order."""
    uses = _uses(base, (node for parts in terms.values() for node, _ in parts))
    spent: set[int] = set()  # products that are part of the statement that adds them
    out: list[Step] = []

    def term(op: str, node: int, slot: Slot, value: int, rank: int) -> None:
        args: tuple[int, ...] = (value,)
        if base.nodes[value].op == "multiply" and uses[value] == 1:
            spent.add(value)
            args = base.nodes[value].args
        out.append(Step(op, node, slot, args, rank))

    for slot, parts in terms.items():
        for value, rank in parts:
            term("total", -1, slot, value, rank)
    for root, chain in _sums(base, uses).items():
        for value, rank in chain:
            term("add", root, (-1, -1), value, rank)
    for number in uses:
        node = base.nodes[number]
        if node.op not in ("load", "constant", "add") and number not in spent:
            out.append(Step("make", number, (-1, -1), node.args, number))
    return out


def _sorted(base: Formula, actions: list[Step], popular: Sequence[int]) -> Iterable[list[Step]]:
    """Candidate orders of the statements, without repetitions."""
    consumers: dict[int, list[Step]] = defaultdict(list)
    makers: dict[int, list[Step]] = defaultdict(list)
    for action in actions:
        for arg in set(action.args):
            consumers[arg].append(action)
        if action.node >= 0:
            makers[action.node].append(action)
    values = sorted({*makers, *consumers})
    known = set()
    for few in FEW:
        if few is None:
            keys = {id(action): 0 for action in actions}
        else:
            keys = _keys(base, actions, values, consumers, makers, _ranks_of_loads(base, consumers, popular, few))
        order = sorted(actions, key=lambda a: (keys[id(a)], a.rank, a.node < 0))
        if (text := tuple(map(id, order))) not in known:
            known.add(text)
            yield order


def _ranks_of_loads(
    base: Formula, consumers: Mapping[int, list[Step]], popular: Sequence[int], few: int
) -> dict[tuple[Operand, int], int]:
    """The rank of each loaded component that at most ``few`` nodes use: the least rank of the statements that read it.

    The key is (operand without name, component), so a value, its tangent and its cotangent share a rank.
    """
    ranks: dict[tuple[Operand, int], int] = {}
    for number, actions in consumers.items():
        if base.nodes[number].op == "load" and popular[number] <= few:
            key = _alike(base, number)
            first = min(action.rank for action in actions)
            ranks[key] = min(ranks.get(key, first), first)
    return ranks


def _alike(base: Formula, number: int) -> tuple[Operand, int]:
    operand, component = base.nodes[number].args
    return base.operands[operand]._replace(name=""), component


def _keys(
    base: Formula,
    actions: list[Step],
    values: list[int],
    consumers: dict[int, list[Step]],
    makers: dict[int, list[Step]],
    ranks: dict[tuple[Operand, int], int],
) -> dict[int, int]:
    """The sort key of each statement, by ``id(statement)``.

    A statement comes directly after the loads in ``ranks`` on which it depends. A statement that depends on no such
    load comes as late as possible.
    """
    early: dict[int, int] = {}
    for number in values:
        if base.nodes[number].op == "load":
            # a value of many uses is loaded at its first use
            early[number] = ranks.get(_alike(base, number), -1)
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


def _with_accesses(base: Formula, order: Sequence[Step], stay: bool, preloaded: Collection[int]) -> Order:
    """Insert loads and stores into the statements, and count the values alive at once."""
    remaining: dict[int, int] = defaultdict(int)
    terms: dict[Slot, int] = defaultdict(int)
    for step in order:
        for arg in set(step.args):
            remaining[arg] += 1
        terms[step.slot] += 1
    terms.pop((-1, -1), None)
    first = {n: None for n in sorted(remaining) if base.nodes[n].op == "load" and base.nodes[n].args[0] in preloaded}
    alive: set[int | Slot] = {*first, *(terms if stay else ())}
    loaded, opened = set(first), set[int | Slot](terms if stay else ())
    out = [Step("load", n, (-1, -1), ()) for n in first]
    most = len(alive)
    for step in order:
        for arg in step.args:
            if base.nodes[arg].op == "load" and arg not in loaded:
                out.append(Step("load", arg, (-1, -1), ()))
                loaded.add(arg)
                alive.add(arg)
        most = max(most, len(alive))
        for arg in set(step.args):
            remaining[arg] -= 1
            if not remaining[arg] and arg not in first:
                alive.discard(arg)
        target = step.slot if step.op == "total" else step.node
        out.append(step._replace(follows=target in opened))
        opened.add(target)
        alive.add(target)
        most = max(most, len(alive))
        if step.op == "total" and not stay:
            terms[step.slot] -= 1
            if not terms[step.slot]:
                out.append(Step("store", -1, step.slot, ()))
                alive.discard(step.slot)
    return Order(tuple(out), most, len(loaded) + len(terms))
