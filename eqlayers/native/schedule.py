"""The stage of each step: where the least memory must be kept from stage to stage."""

from __future__ import annotations

from collections.abc import Sequence

from .memory import ProgramStep
from .sizes import parts
from .values import Buffer

#: Numbers that memory is compared with: edges of an atom, and atoms with ghosts for each local atom.
EDGES_OF_ATOM, GHOSTS_OF_ATOM = 48, 7
#: Multiplications with additions that take as long as to read or write a number, and those that a large structure
#: spends for a byte that it need not keep: 2 us for 1 kB.
WORK_OF_NUMBER, WORK_OF_BYTE = 16, 96
#: Sweeps over all steps, from the last and from the first in turn, so that the steps of a chain move one after another.
SWEEPS = 6


class Schedule:
    """Moves steps between stages.

    A step may run in any stage after its operands are complete and before its results are read. Steps that write the
    same buffer stay together. Forward steps of a later layer move to the stage of this layer, and reverse steps to
    the stage that has their operands.

    Args:
        steps: In the order of the graph.
        stages: The stage of each step in this order.
        after: Of each exchanged buffer, by its identity, the stage after which it is exchanged.
    """

    def __init__(self, steps: Sequence[ProgramStep], stages: Sequence[int], after: dict[int, int]) -> None:
        self.steps, self.first, self.after = steps, list(stages), after
        self.group = self._groups()
        members: dict[int, list[int]] = {}
        for number, group in enumerate(self.group):
            members.setdefault(group, []).append(number)
        self.members = members
        self.stage = {group: max(stages[n] for n in numbers) for group, numbers in members.items()}
        self.writers: dict[int, int] = {}
        self.users: dict[int, set[int]] = {}
        self.bytes: dict[int, float] = {}
        for number, step in enumerate(steps):
            for one in (*step.reads, *step.writes):
                if _moves(one):
                    self.users.setdefault(id(one), set()).add(self.group[number])
                    self.bytes[id(one)] = bytes_of(one)
            for one in step.writes:
                self.writers[id(one)] = self.group[number]
        for sweep in range(SWEEPS):
            for group in sorted(members, reverse=sweep % 2 == 0):
                self._move(group, sweep % 2 == 0)

    def stages(self) -> list[int]:
        """The stage of each step."""
        return [self.stage[group] for group in self.group]

    def again(self) -> list[list[ProgramStep]]:
        """The steps of earlier stages that each stage recomputes for large structures, and does not keep."""
        chosen = {group for group, numbers in self.members.items() if self._may_run_again(group, numbers)}
        cost, groups = self._cost(chosen)
        for _ in range(SWEEPS):
            before = cost
            for group in sorted(set().union(*groups), reverse=True):
                tried, others = self._cost(chosen - {group})
                if tried < cost:
                    chosen, cost, groups = chosen - {group}, tried, others
            if cost == before:
                break
        return [[step for step, group in zip(self.steps, self.group, strict=True) if group in one] for one in groups]

    def _may_run_again(self, group: int, numbers: Sequence[int]) -> bool:
        steps = [self.steps[number] for number in numbers]
        sums = any(self.stage[group] <= self.after.get(id(one), -1) for step in steps for one in step.reads)
        writes = [one for step in steps for one in step.writes]
        return bool(writes) and not sums and all(_moves(one) and id(one) not in self.after for one in writes)

    def _cost(self, chosen: set[int]) -> tuple[float, list[set[int]]]:
        """Bytes that are kept and work, if these groups are run again; the groups that each stage runs again."""
        work, listed, last = 0.0, [], dict[int, int]()  # last: buffers that are kept -> the last stage that reads them
        kept = [0.0] * (max(self.stage.values(), default=0) + 1)  # at the end of each stage
        for stage in range(len(kept)):
            again, waiting = set[int](), [group for group, one in self.stage.items() if one == stage]
            while waiting:
                for one in (one for number in self.members[waiting.pop()] for one in self.steps[number].reads):
                    group = self.writers.get(id(one), -1)
                    if self.stage.get(group, stage) == stage or id(one) in self.after:
                        continue
                    if group not in chosen:
                        last[id(one)] = stage
                    elif group not in again:
                        again.add(group)
                        waiting.append(group)
            work += sum(_work(self.steps[number]) for group in again for number in self.members[group])
            listed.append(again)
        for key, end in last.items():
            for stage in range(self.stage[self.writers[key]], end):
                kept[stage] += self.bytes[key]
        return max(kept) + sum(kept) / 16 + work / WORK_OF_BYTE, listed

    def _groups(self) -> list[int]:
        """The first step of the group of each step."""
        group = list(range(len(self.steps)))
        first: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            known = {group[first[id(one)]] for one in step.writes if id(one) in first}
            lowest = min(known, default=number)
            group = [lowest if one in known else one for one in group]
            group[number] = lowest
            for one in step.writes:
                first.setdefault(id(one), number)
        return group

    def _move(self, group: int, late: bool) -> None:
        """Move steps to the stage of the least memory; of equal ones to the last or to the first."""
        numbers = self.members[group]
        steps = [self.steps[number] for number in numbers]
        if any(one.outside for step in steps for one in step.writes):
            return  # results of the program
        low, high = 0, max(self.stage.values())
        for number, step in zip(numbers, steps, strict=True):
            for one in step.reads:
                if (writer := self.writers.get(id(one), group)) != group:
                    complete = self.stage[writer]
                    if self.first[number] > self.after.get(id(one), len(self.steps)):
                        complete = max(complete, self.after[id(one)] + 1)
                    low = max(low, complete)
            for one in step.writes:
                high = min(high, self.after.get(id(one), high))
                if id(one) not in self.after:
                    high = min([high, *(self.stage[user] for user in self.users.get(id(one), ()) if user != group)])
        buffers = {id(one) for step in steps for one in (*step.reads, *step.writes) if id(one) in self.users}
        if not any(step.writes for step in steps):
            high = low  # comparisons of indices come before all that read rows by them
        costs = {stage: self._kept(buffers - self.after.keys(), group, stage) for stage in range(low, high + 1)}
        if costs:
            self.stage[group] = min(costs, key=lambda stage: (costs[stage], -stage if late else stage))

    def _kept(self, buffers: set[int], group: int, stage: int) -> float:
        """Bytes of buffers that several stages use, if a group is in a stage."""
        total = 0.0
        for one in buffers:
            used = {stage if user == group else self.stage[user] for user in self.users[one]}
            total += self.bytes[one] if len(used) > 1 else 0
        return total


def _moves(buffer: Buffer) -> bool:
    return buffer.constant is None and not buffer.outside


def _work(step: ProgramStep) -> float:
    size = sum(one.size for one in (*step.reads, *step.writes) if one.constant is None)
    edges, atoms, _ = parts(step.work + WORK_OF_NUMBER * size)
    return edges * EDGES_OF_ATOM + atoms


def bytes_of(buffer: Buffer) -> float:
    """Bytes of a buffer for an atom."""
    edges, atoms, _ = parts(buffer.size)
    return (edges * EDGES_OF_ATOM + atoms * (GHOSTS_OF_ATOM if buffer.of_ghosts else 1)) * buffer.dtype.itemsize
