"""SOAP: Adam in the eigenbases of the gradients of matrices, for all matrices of a network at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..core.checks import check_flag, check_integer, check_items, check_number, got
from ..core.errors import ConfigError, DataError
from ..core.files.read_write import few
from .matrices import matrices_of, parameter_groups
from .stack import Block, Stack, blocks_of, state_dtype


def check_rate(name: str, rate: Any) -> float:
    """A decay rate, from 0 to below 1; or ConfigError."""
    number = check_number(name, rate, at_least=0, fix="0.95 is usual.")
    if number >= 1:
        raise ConfigError(f"{name} must be a decay rate below 1, got {got(rate)}. 0.95 is usual.")
    return number


def check_betas(name: str, betas: Any) -> tuple[float, float]:
    """The decay rates of Adam's two moments; or ConfigError."""
    listed = check_items(name, betas, "two decay rates, from 0 to below 1", "(0.95, 0.98) is usual.")
    if len(listed) != 2:
        raise ConfigError(f"{name} must be two decay rates, got {got(betas)}. (0.95, 0.98) is usual.")
    return check_rate(name, listed[0]), check_rate(name, listed[1])


def is_recording(tensor: Tensor) -> bool:
    """Whether a CUDA graph records the operators on a tensor."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


#: A square of a gradient, times this, must be finite: Gram matrices have sums of squares.
MOST = 1e4


class SOAP(torch.optim.Optimizer):
    r"""Adam in the eigenbases of the gradients' Gram matrices, for every matrix of a network; AdamW for the rest.

    For a matrix with gradient :math:`G`, averages :math:`L` of :math:`G G^T` and :math:`R` of :math:`G^T G` have
    eigenvectors :math:`Q_L`, :math:`Q_R`. Adam makes a step from the two moments of :math:`Q_L^T G Q_R`, which is
    rotated back. The eigenvectors are renewed every ``precondition_every`` steps by one step of orthogonal iteration.
    The first step only measures :math:`L` and :math:`R`, and decays the matrices at most.

    Weights of equivariant layers are one matrix for each path, in one flat parameter; :func:`matrices_of` tells which.
    All matrices of equal size are rotated by one batched product. Read the state by :meth:`state_dict`: the attribute
    ``state`` is not up to date.

    Args:
        module: The network whose matrices are known by its layers.
        params: Parameters of the module, or groups with a separate ``lr`` and ``weight_decay``, as in
            :class:`torch.optim.Optimizer`; None for all parameters, of which matrices alone are decayed.
        lr: Learning rate; a tensor for a recorded step.
        betas: Decay rates of Adam's moments.
        gram_beta: Decay rate of the averages :math:`L` and :math:`R` in a step.
        gram_every: Steps from one gradient in these averages to the next.
        precondition_every: Steps from one renewal of eigenvectors to the next.
        block: Matrices are split into blocks of at most so many rows and columns.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled weight decay, times ``lr``.
        capturable: Whether a step may be recorded by a CUDA graph: nothing is read from the device, and a step with a
            gradient that is not finite is counted in ``skipped`` and changes no weight and no average. Otherwise it
            raises an error. Call :meth:`renew` every ``precondition_every`` replays, which renew no eigenvectors.

    Raises:
        ConfigError: An option is out of range, the module has no parameters, ``params`` are of another module,
            the matrices of a layer do not cover its weights, or a parameter is complex. In a step: a matrix that is
            split into blocks is not contiguous.
        DataError: In a step: a gradient is sparse, NaN, infinite or above 1e17; weights and state are as before. In
            ``load_state_dict``: the state of another optimizer, or of other matrices.

    Source:
        Vyas et al. 2024, arXiv:2409.11321, algorithm 3.

    Example:
        >>> from eqlayers import Linear
        >>> layer = Linear("16x0e + 16x1o", "16x0e + 8x1o", biases=True)
        >>> SOAP(layer, lr=0.01)
        SOAP(384 numbers of 2 matrices: 1 of 16x8, 1 of 16x16; 16 numbers by AdamW; lr 0.01, basis every 20 steps)
    """

    def __init__(
        self,
        module: nn.Module,
        params: Iterable[Any] | None = None,
        *,
        lr: float | Tensor = 1e-2,
        betas: tuple[float, float] = (0.95, 0.98),
        gram_beta: float = 0.95,
        gram_every: int = 2,
        precondition_every: int = 20,
        block: int = 64,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        capturable: bool = False,
    ) -> None:
        shapes = matrices_of(module)
        if not shapes:
            raise ConfigError(
                f"a module must have parameters to be optimized, got {type(module).__name__} without any. Pass the "
                "network itself."
            )
        shared = {
            "betas": check_betas("betas", betas),
            "gram_beta": check_rate("gram_beta", gram_beta),
            "gram_every": check_integer("gram_every", gram_every, 1, fix="2 is usual."),
            "precondition_every": check_integer("precondition_every", precondition_every, 1, fix="20 is usual."),
            "block": check_integer("block", block, 4, fix="64 is usual."),
            "eps": check_number("eps", eps, above=0),
            "capturable": check_flag("capturable", capturable),
        }
        self._blocks: dict[Tensor, list[Block]] = {p: blocks_of(those, block) for p, those in shapes.items()}
        if any(parameter.is_complex() for parameter in shapes):
            raise ConfigError("parameters must be real, got complex ones. Hold real and imaginary parts apart.")
        self._stacks: list[tuple[int, Stack]] | None = None  # with the numbers of their groups
        self._served: list[int] = []
        #: The number of skipped steps, on the device; None before a step that may be skipped.
        self.skipped: Tensor | None = None
        options = shared | {"lr": lr, "weight_decay": weight_decay}
        super().__init__(parameter_groups(module, weight_decay) if params is None else params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the module, with a separate learning rate and weight decay."""
        for name in ("lr", "weight_decay"):
            check_number(name, param_group.get(name, self.defaults[name]), at_least=0)
        super().add_param_group(param_group)
        self._store()
        self._stacks = None  # which know parameters by the number of their group
        added = self.param_groups[-1]
        other = [name for name in self.defaults.keys() - {"lr", "weight_decay"} if added[name] != self.defaults[name]]
        strange = sum(parameter not in self._blocks for parameter in added["params"])
        if other or strange:
            self.param_groups.pop()
            what = f"{strange} parameters of another" if strange else f"another {other[0]}, {added[other[0]]}"
            raise ConfigError(
                "a group of SOAP must have parameters that its module had when SOAP was built, and separate options lr "
                f"and weight_decay alone, got {what}. Build one SOAP for each."
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        served = [p for g in self.param_groups for p in g["params"] if p.grad is not None and p.numel()]
        if not served:
            return loss
        if self._stacks is None or list(map(id, served)) != self._served:
            self._arrange(served)
        stacks, capturable = self._stacks or [], self.defaults["capturable"]
        recording = is_recording(served[0])
        if recording and (not capturable or not all(stack.steps for _, stack in stacks)):
            raise ConfigError(
                "a step that is recorded must be of capturable=True, and not the first of its parameters, got another. "
                "Take a step before, as torch's graphs need it."
            )
        gradients = [stack.gradient() for _, stack in stacks]
        bounds = [bound for gradient in gradients for bound in torch.aminmax(gradient)]  # NaN if a number is NaN
        finite = torch.isfinite(torch.stack(bounds).square() * MOST).all()
        if not capturable and not finite:
            self._refuse(served)
        if capturable:
            self.skipped = torch.zeros_like(finite, dtype=torch.int64) if self.skipped is None else self.skipped
            self.skipped += ~finite
        for (group, stack), gradient in zip(stacks, gradients, strict=True):
            passes = finite.to(gradient.dtype) if capturable else 1.0
            gradient = torch.where(finite, gradient, 0.0) if capturable else gradient
            stack.update(gradient, passes, self.param_groups[group], recording)
        return loss

    @torch.no_grad()
    def renew(self) -> None:
        """Renew all eigenvectors, as a step does every ``precondition_every`` steps, and a recorded step never does."""
        for _, stack in self._stacks or ():
            stack.renew()

    def _arrange(self, parameters: Sequence[Tensor]) -> None:
        """Make stacks of parameters of a group with equally many steps, as frozen and thawed ones have others."""
        self._store()
        groups = {parameter: number for number, group in enumerate(self.param_groups) for parameter in group["params"]}
        alike: dict[tuple[int, Any], list[Tensor]] = {}
        for parameter in parameters:
            steps = int(self.state[parameter]["step"]) if self.state[parameter] else 0
            like = (steps, parameter.device, state_dtype(parameter))
            alike.setdefault((groups[parameter], like), []).append(parameter)
        self._stacks = [
            (group, Stack(ps, [self._blocks[p] for p in ps], [self.state[p] for p in ps]))
            for (group, _), ps in alike.items()
        ]
        self._served = list(map(id, parameters))

    def _store(self) -> None:
        """Bring `state` up to date, which is in stacks between two steps."""
        for _, stack in self._stacks or ():
            self.state.update(stack.states())

    def _refuse(self, served: Sequence[Tensor]) -> NoReturn:
        """Raise the error of a gradient that is not finite, or too large."""
        most = [float(p.grad.detach().abs().max()) for p in served if p.grad is not None]
        bad = [str(list(p.shape)) for p, size in zip(served, most, strict=True) if not size < 1e17]
        raise DataError(
            f"gradients must be finite and below 1e17, got others in {len(bad)} of {len(served)} parameters, of shapes "
            f"{few(bad)}. Weights and state of the optimizer are as before this step: lower the learning rate, clip "
            "gradients, or look for atoms too near to each other."
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of all parameters, in torch's form."""
        self._store()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        self._store()
        return super().__getstate__() | {"_blocks": self._blocks, "_stacks": None, "_served": []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of all parameters, without rounding it to the dtype of the weights."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
        known = isinstance(groups, list) and all(self.defaults.keys() <= group.keys() for group in groups)
        saved = [index for group in groups or () for index in group["params"]] if known else []
        pairs = [(p, state_dict["state"].get(index, {})) for p, index in zip(parameters, saved, strict=False)]
        wrong = next((problem for pair in pairs if (problem := self._misfit(*pair)) is not None), None)
        if not known or len(saved) != len(parameters):
            wrong = f"{len(saved)} parameters" if known else "another content"
        if wrong is not None:
            raise DataError(
                f"the state of SOAP must be of the same {len(parameters)} parameters and blocks, got {wrong}. Use the "
                "options with which it was saved, or begin without a state."
            )
        super().load_state_dict(state_dict)
        for parameter, state in pairs:
            like = {"dtype": state_dtype(parameter), "device": parameter.device}
            self.state[parameter] = {
                name: value.detach().clone() if name == "step" else value.detach().clone().to(**like)
                for name, value in state.items()
            }
        self._stacks = None

    def _misfit(self, parameter: Tensor, state: Mapping[str, Any]) -> str | None:
        """Describe what is wrong with the state of a parameter; None if it fits."""
        if not state:
            return None
        grams = sum(rows**2 + columns**2 for rows, columns in (block.size for block in self._blocks[parameter]))
        expected = {"step": (), "exp_avg": tuple(parameter.shape), "exp_avg_sq": tuple(parameter.shape)}
        expected |= {"gram": (grams,), "basis": (grams,)} if grams else {}
        shapes = {n: tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__ for n, v in state.items()}
        return None if shapes == expected else f"a parameter {list(parameter.shape)} with {shapes}"

    def __repr__(self) -> str:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        sizes = Counter(block.size for parameter in parameters for block in self._blocks[parameter])
        inside = sum(rows * columns * count for (rows, columns), count in sizes.items())
        blocks = ", ".join(f"{count} of {rows}x{columns}" for (rows, columns), count in sorted(sizes.items()))
        rate, every = float(self.param_groups[0]["lr"]), self.param_groups[0]["precondition_every"]
        rest = sum(parameter.numel() for parameter in parameters) - inside
        return (
            f"SOAP({inside} numbers of {sum(sizes.values())} matrices{': ' * bool(sizes)}{blocks}; {rest} numbers by "
            f"AdamW; lr {rate:g}, "
            f"basis every {every} steps)"
        )
