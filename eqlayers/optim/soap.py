"""SOAP: Adam in the eigenbases of the gradients of matrices, for all matrices of a network at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.checks import check_flag, check_integer, check_items, check_number, got
from ..core.errors import ConfigError, DataError
from ..core.files.read_write import few
from .matrices import matrices_of, parameter_groups
from .stack import Block, Stack, blocks_of, state_dtype


def check_rates(name: str, rates: Any, count: int) -> tuple[float, ...]:
    """Decay rates, from 0 to below 1; or ConfigError."""
    listed = check_items(name, rates, f"{count} numbers from 0 to 1", "0.95 is usual.")
    if len(listed) != count or not all(0 <= check_number(name, rate, at_least=0) < 1 for rate in listed):
        raise ConfigError(f"{name} must be {count} numbers from 0 to 1, got {got(rates)}. 0.95 is usual.")
    return tuple(map(float, listed))


class SOAP(torch.optim.Optimizer):
    r"""Adam in the eigenbases of the gradients' Gram matrices, for every matrix of a network; AdamW for the rest.

    For a matrix with gradient :math:`G`, averages :math:`L` of :math:`G G^T` and :math:`R` of :math:`G^T G` have
    eigenvectors :math:`Q_L`, :math:`Q_R`. Adam makes a step from the two moments of :math:`Q_L^T G Q_R`, which is
    rotated back. The eigenvectors are renewed every ``precondition_every`` steps by one step of orthogonal iteration.
    The first step only measures :math:`L` and :math:`R`, and leaves the matrices as they are.

    Weights of equivariant layers are one matrix for each path, in one flat parameter; :func:`matrices_of` tells which.
    All matrices of equal size are rotated by one batched product.

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
        capturable: Whether a step is for a CUDA graph: nothing is read from the device, and a step with a gradient that
            is not finite changes nothing. Otherwise it raises an error.

    Raises:
        ConfigError: An option is out of range, the module has no parameters, ``params`` are of another module,
            the matrices of a layer do not cover its weights, or a parameter with matrices is not contiguous.
        DataError: In a step: a gradient is NaN or infinite; weights and state are as before. In ``load_state_dict``:
            the state of another optimizer, or of other matrices.

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
            "betas": check_rates("betas", betas, 2),
            "gram_beta": check_rates("gram_beta", [gram_beta], 1)[0],
            "gram_every": check_integer("gram_every", gram_every, 1, fix="2 is usual."),
            "precondition_every": check_integer("precondition_every", precondition_every, 1, fix="20 is usual."),
            "block": check_integer("block", block, 2, fix="64 is usual."),
            "eps": check_number("eps", eps, above=0),
            "capturable": check_flag("capturable", capturable),
        }
        lr = lr if isinstance(lr, Tensor) else check_number("lr", lr, at_least=0)
        self._blocks: dict[Tensor, list[Block]] = {p: blocks_of(those, block) for p, those in shapes.items()}
        if any(blocks and not parameter.is_contiguous() for parameter, blocks in self._blocks.items()):
            raise ConfigError(
                "parameters with matrices must be contiguous to be updated in place, got transposed ones. Copy them: "
                "parameter.data = parameter.data.contiguous()"
            )
        self._stacks: list[tuple[int, Stack]] | None = None  # with the numbers of their groups
        self._served: list[int] = []
        options = shared | {"lr": lr, "weight_decay": check_number("weight_decay", weight_decay, at_least=0)}
        super().__init__(parameter_groups(module, weight_decay) if params is None else params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of the module, with a separate learning rate and weight decay."""
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        other = [name for name in self.defaults.keys() - {"lr", "weight_decay"} if added[name] != self.defaults[name]]
        strange = sum(parameter not in self._blocks for parameter in added["params"])
        if other or strange:
            self.param_groups.pop()
            what = f"{strange} parameters of another" if strange else f"another {other[0]}, {added[other[0]]}"
            raise ConfigError(
                f"a group of SOAP must have parameters of its module, and separate options lr and weight_decay "
                f"alone, got {what}. Build one SOAP for each."
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        served = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not served:
            return loss
        if self._stacks is None or list(map(id, served)) != self._served:
            self._arrange(served)
        assert self._stacks is not None
        gradients = [stack.gradient() for _, stack in self._stacks]
        bounds = [bound for gradient in gradients for bound in torch.aminmax(gradient)]  # NaN if a number is NaN
        finite = torch.isfinite(torch.stack(bounds)).all()
        capturable = self.defaults["capturable"]
        if not capturable and not finite:
            self._refuse()
        for (group, stack), gradient in zip(self._stacks, gradients, strict=True):
            passes = finite.to(gradient.dtype) if capturable else 1.0
            gradient = torch.where(finite, gradient, 0.0) if capturable else gradient
            stack.update(gradient, passes, self.param_groups[group])
        return loss

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

    def _refuse(self) -> None:
        """Raise the error of a gradient that is not finite."""
        served = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        bad = [tuple(p.shape) for p in served if not torch.isfinite(p.grad).all()]
        raise DataError(
            f"gradients must be finite, got NaN or infinity in {len(bad)} of {len(served)} parameters, of shapes "
            f"{few(list(map(str, bad)))}. Weights and state of the optimizer are as before this step: lower the "
            "learning rate, clip gradients, or look for atoms too near to each other."
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of all parameters, in torch's form."""
        self._store()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        self._store()
        return self.__dict__ | {"_stacks": None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of all parameters, without rounding it to the dtype of the weights."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        pairs = list(zip(parameters, (state_dict["state"].get(index, {}) for index in saved), strict=False))
        wrong = next((problem for pair in pairs if (problem := self._misfit(*pair)) is not None), None)
        if len(saved) != len(parameters):
            wrong = f"{len(saved)} parameters"
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
        sizes = {"step": 1, "exp_avg": parameter.numel(), "exp_avg_sq": parameter.numel()}
        sizes |= {"gram": grams, "basis": grams} if grams else {}
        counts = {name: value.numel() for name, value in state.items() if isinstance(value, Tensor)}
        return None if counts == sizes else f"a parameter {list(parameter.shape)} with {counts}"

    def __repr__(self) -> str:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        sizes = Counter(block.size for parameter in parameters for block in self._blocks[parameter])
        inside = sum(rows * columns * count for (rows, columns), count in sizes.items())
        blocks = ", ".join(f"{count} of {rows}x{columns}" for (rows, columns), count in sorted(sizes.items()))
        rate, every = float(self.param_groups[0]["lr"]), self.defaults["precondition_every"]
        rest = sum(parameter.numel() for parameter in parameters) - inside
        return (
            f"SOAP({inside} numbers of {sum(sizes.values())} matrices: {blocks}; {rest} numbers by AdamW; lr {rate:g}, "
            f"basis every {every} steps)"
        )
