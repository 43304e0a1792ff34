"""Index structures (infos) of sparse products and scales, checked at construction, and these checks.

A NamedTuple cannot override ``__new__``, and its ``_replace`` would bypass the checks; hence a private class with the
fields and a public one with the checks, in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.errors import DeviceError, DTypeError, IndexRangeError, ShapeError
from ..core.torch_internals import being_traced, outside_of_traces, parsed_device


class Words(NamedTuple):
    """Names for error messages: the class of an info, its index fields, and the operands."""

    owner: str
    indices: tuple[str, ...]
    inputs: tuple[str, ...]


def check_one_dimensional(name: str, value: Any, integer: bool) -> None:
    """Raise unless ``value`` is a 1-D tensor, int64 or floating-point."""
    dtype = "int64" if integer else "floating-point"
    if not isinstance(value, Tensor):
        raise DTypeError(
            f"{name} must be a 1-D {dtype} tensor or None, got {type(value).__name__}. "
            f"Wrap it with torch.tensor(...), or build the infos from lists of terms."
        )
    if value.dtype != torch.int64 if integer else not value.is_floating_point():
        raise DTypeError(f"{name} must be {dtype}, got {value.dtype}. Convert it with `.to(...)`.")
    if value.ndim != 1:
        raise ShapeError(f"{name} must have one axis, got shape {list(value.shape)}. Flatten it first.")


def check_lengths(per_term: Mapping[str, Tensor | None], owner: str = "") -> None:
    """Raise unless all tensors have equal lengths."""
    lengths = {name: value.shape[0] if value.ndim else 0 for name, value in per_term.items() if value is not None}
    if len(set(lengths.values())) > 1:
        names = ", ".join(f"{owner}{name}" for name in lengths)
        raise ShapeError(f"{names} must have one entry per term each, got lengths {lengths}. Give each term all.")


def check_in_range(name: str, value: Tensor, size: int, what: str) -> None:
    """Raise unless all values lie in [0, size)."""
    # Values are read on the CPU only, where builders work: on a GPU the read would wait for the stream.
    if value.device.type != "cpu" or value.numel() == 0 or being_traced():  # tensors of a trace were checked before
        return
    low, high = int(value.min()), int(value.max())
    if low < 0 or high >= size:
        raise IndexRangeError(
            f"{name} must lie in [0, {size}) ({what}), got values from {low} to {high}. "
            f"Correct the index, or the size given to the builder."
        )


def check_segments(owner: str, seg_out: Tensor, end: int | None) -> None:
    """Raise unless segment boundaries are non-negative, do not decrease, and are at most ``end``."""
    if seg_out.shape[0] == 0:
        raise ShapeError(
            f"{owner}.seg_out must have one entry more than there are segments, got none. Pass [0] for no segments."
        )
    if seg_out.device.type != "cpu" or being_traced():
        return
    first, last = int(seg_out[0]), int(seg_out[-1])
    if first < 0 or bool((seg_out.diff() < 0).any()) or (end is not None and last > end):
        limit = "" if end is None else f" and end at most at {end}, the number of terms"
        raise IndexRangeError(
            f"{owner}.seg_out must start at 0 or later, never fall{limit}; got {short(seg_out)}. "
            f"Sort the terms by output row before cutting them into segments."
        )


def short(values: Tensor) -> str:
    """The values as text, or the first 10 of more than 12."""
    items = values.tolist()
    return str(items) if len(items) <= 12 else f"[{', '.join(map(str, items[:10]))}, ... ({len(items)} entries)]"


#: Infos of a product and of the gradients of input1 and input2.
Infos = tuple["SparseProductInfo", "SparseProductInfo", "SparseProductInfo"]


class TermList(NamedTuple):
    """Terms ``scale * x[index1] * y[index2]`` of a sparse product as tensors, sorted by row of the result."""

    scale: Tensor | None  # [K] coefficients; None means 1
    index1: Tensor  # [K] int64, row of operand 1
    index2: Tensor  # [K] int64, row of operand 2; the index of the term for a scale
    row: Tensor  # [K] int64, row of the result


class _Movable:
    """Base class of both infos: moves between devices, and a cache of derived tables that copies do not share."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move the tensors, as :meth:`torch.Tensor.to`; a dtype changes the scale only."""
        device, fields = parsed_device(args, kwargs), self._asdict()  # type: ignore[attr-defined]
        for name, t in fields.items():
            if isinstance(t, Tensor):
                fields[name] = t.to(*args, **kwargs) if t.is_floating_point() else t.to(device or t.device)
        return type(self)(**fields)

    def cpu(self) -> Any:
        """Move the info to the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> Any:
        """Move the info to a CUDA device."""
        return self.to(torch.device("cuda") if device is None else torch.device("cuda", device))

    def on(self, device: torch.device) -> Any:
        """The info itself if it is on ``device``, else a copy on ``device``, cached in this info."""
        current = self.device
        return self if current is None or current == device else self.cached(("on", device), lambda: self.to(device))

    def cached(self, key: Any, make: Callable[[], Any]) -> Any:
        """A value derived from this info, such as a dense table; ``make`` computes it at the first request."""
        cache = self.__dict__.setdefault("_cache", {})
        if key not in cache:
            if len(cache) >= 256:  # an info without tensors derives a table for each size of operands
                cache.clear()
            if being_traced() and not torch.compiler.is_dynamo_compiling():
                with outside_of_traces():
                    cache[key] = make()
            else:
                cache[key] = make()
        return cache[key]

    def __getstate__(self) -> None:
        return None  # copies and pickles start with an empty cache

    @property
    def device(self) -> torch.device | None:
        """Device of the tensors; None where every field is None."""
        return self.cached("device", lambda: next((v.device for v in self if isinstance(v, Tensor)), None))  # type: ignore[attr-defined]


class _ProductFields(NamedTuple):
    scale: Tensor | None = None  # [T] floating, s_t; None: 1
    index1: Tensor | None = None  # [T] int64, row of input1; None: t
    index2: Tensor | None = None  # [T] int64, row of input2; None: t
    seg_out: Tensor | None = None  # [S + 1] int64, segment M holds seg_out[M]:seg_out[M + 1]; None: row M is term M
    gather_index: Tensor | None = None  # [seg_out[-1]] int64, the term summed at each index k; None: k
    index_out: Tensor | None = None  # [S] int64, row of the output that segment M is stored in; None: M
    out_size: int | None = None  # number of output rows; rows that no segment names are zero; None: S


class SparseProductInfo(_Movable, _ProductFields):
    r"""The index structure of a sparse product: which terms are summed into which output row.

    .. math:: z_{n, \mathrm{index\_out}[M]} = \sum_{k=\mathrm{seg}[M]}^{\mathrm{seg}[M+1]-1}
              s_t \; x_{n, \mathrm{index1}[t]} \circ y_{n, \mathrm{index2}[t]}, \qquad t = \mathrm{gather}[k]

    Args:
        scale: ``[T]`` floating, :math:`s_t`; None means 1. Keep it float64: backends cast at launch.
        index1, index2: ``[T]`` int64, rows of the operands; None means the identity.
        seg_out: ``[S + 1]`` int64, not decreasing; None means no sum, row M is term M.
        gather_index: ``[seg_out[-1]]`` int64, a permutation or choice of terms; None means the identity.
        index_out: ``[S]`` int64 without repeats, output row of segment M; None means row M.
        out_size: Number of output rows; rows that no segment names are zero. None means S.

    Raises:
        ShapeError, DTypeError, IndexRangeError: A field has the wrong shape, dtype or values. Values are checked on
            the CPU only; build there, then move.

    Example:
        >>> info = SparseProductInfo(index1=torch.tensor([0, 0, 1]), index2=torch.tensor([1, 0, 1]),
        ...                          seg_out=torch.tensor([0, 2, 3]), out_size=2)
        >>> info.num_segments, info.to(torch.float32) is not info
        (2, True)
    """

    _words: ClassVar[Words] = Words("SparseProductInfo", ("index1", "index2"), ("input1", "input2"))

    def __new__(
        cls,
        scale: Tensor | None = None,
        index1: Tensor | None = None,
        index2: Tensor | None = None,
        seg_out: Tensor | None = None,
        gather_index: Tensor | None = None,
        index_out: Tensor | None = None,
        out_size: int | None = None,
    ) -> SparseProductInfo:
        """Make the tuple and check it."""
        return super().__new__(cls, scale, index1, index2, seg_out, gather_index, index_out, out_size)._checked()

    @classmethod
    def _make(cls, fields: Any) -> SparseProductInfo:  # type: ignore[override]  # _replace() calls this: check its result, too
        return cls(*fields)

    def _checked(self) -> SparseProductInfo:
        owner = self._words.owner
        per_term = {"scale": self.scale, **self._indices()}
        others = {"seg_out": self.seg_out, "gather_index": self.gather_index, "index_out": self.index_out}
        for name, value in (per_term | others).items():
            if value is not None:
                check_one_dimensional(f"{owner}.{name}", value, integer=name != "scale")
        if self.scale is not None and self.scale.requires_grad:
            raise DTypeError(
                f"{owner}.scale must be constant, got a tensor that requires a gradient, which would be lost. "
                f"Pass what is learned as an operand, of sparse_mul or sparse_vecsca."
            )
        check_lengths(per_term, f"{owner}.")
        for name, value in self._indices().items():
            if value is not None:
                check_in_range(f"{owner}.{name}", value, 2**62, "it must not be negative")
        terms = self.num_terms
        if self.gather_index is not None:
            limit = (2**62, "it must not be negative") if terms is None else (terms, "the number of terms")
            check_in_range(f"{owner}.gather_index", self.gather_index, *limit)
        if self.seg_out is not None:
            length = terms if self.gather_index is None else self.gather_index.shape[0]
            check_segments(owner, self.seg_out, length)
        if self.out_size is not None and (not isinstance(self.out_size, int) or self.out_size < 0):
            raise ShapeError(f"{owner}.out_size must be a count of rows, got {self.out_size!r}. Pass 0 or more.")
        self._check_output(owner, self.num_segments)
        devices = {str(v.device) for v in self if isinstance(v, Tensor)}
        if len(devices) > 1:
            raise DeviceError(
                f"{owner} must have all tensors on one device, got {', '.join(sorted(devices))}. "
                f"Move it as a whole with `.to(device)`."
            )
        return self

    def _indices(self) -> dict[str, Tensor | None]:
        return dict(zip(self._words.indices, (self.index1, self.index2), strict=False))

    def _check_output(self, owner: str, segments: int | None) -> None:
        if self.index_out is None:
            if self.out_size is not None and segments is not None and self.out_size < segments:
                raise ShapeError(
                    f"{owner}.out_size must be at least {segments}, one row per segment, got {self.out_size}. "
                    f"Pass index_out to store fewer rows, or a larger out_size."
                )
            return
        if self.out_size is None:
            raise ShapeError(
                f"{owner}.out_size must be given with index_out, got None. Pass the number of output rows."
            )
        if segments is not None and self.index_out.shape[0] != segments:
            raise ShapeError(
                f"{owner}.index_out must have {segments} entries, one per segment, got {self.index_out.shape[0]}. "
                f"Give every segment one output row."
            )
        check_in_range(f"{owner}.index_out", self.index_out, self.out_size, "out_size")
        if self.index_out.device.type == "cpu" and self.index_out.unique().numel() != self.index_out.numel():
            raise IndexRangeError(
                f"{owner}.index_out must not repeat a row, got {short(self.index_out)}. "
                f"Merge the segments of one output row into one segment."
            )

    @property
    def num_terms(self) -> int | None:
        """Number of terms T; None if scale and both indices are None (then the operands decide it)."""
        return next((v.shape[0] for v in (self.scale, self.index1, self.index2) if v is not None), None)

    @property
    def num_segments(self) -> int | None:
        """Number of segments S; None if only the operands decide it."""
        if self.seg_out is not None:
            return self.seg_out.shape[0] - 1
        return self.num_terms if self.gather_index is None else self.gather_index.shape[0]

    def rows(self, size1: int, size2: int) -> tuple[int, int, int]:
        """Numbers of terms, of segments and of output rows for operands with ``size1`` and ``size2`` sparse rows."""
        terms = self.num_terms
        if terms is None:
            terms = size1
        segments = self.num_segments
        if segments is None:
            segments = terms
        return terms, segments, segments if self.out_size is None else self.out_size

    def check_operands(self, size1: int, size2: int) -> None:
        """Raise unless operands with ``size1`` and ``size2`` sparse rows hold every row that the terms name."""
        words = self._words
        if self.num_terms is None:  # operands set the number of terms: checks that need it
            if self.seg_out is not None and self.gather_index is None:
                seg_out = self.seg_out
                self.cached(("climbs", size1), lambda: check_segments(words.owner, seg_out, size1))
            if self.num_segments is None:
                self._check_output(words.owner, size1)
        for operand, (name, index), size in zip(words.inputs, self._indices().items(), (size1, size2), strict=False):
            need = self._rows_needed(name, index, size1)
            if index is None and need != size and (self.gather_index is None):
                raise ShapeError(
                    f"{operand} must have {need} sparse rows, one per term ({name} is None), got {size}. "
                    f"Pass {name}, or the operand whose rows are the terms."
                )
            if need > size:
                raise IndexRangeError(
                    f"{operand} must have at least {need} sparse rows, the info names row {need - 1}; got {size}. "
                    f"Check that both belong together, bwd1 and bwd2 not exchanged; the axes are [..., M, channels]."
                )

    def _rows_needed(self, name: str, index: Tensor | None, size1: int) -> int:
        if index is None:
            terms = self.num_terms
            if terms is None and self.gather_index is not None:
                terms = self.cached("gathered", lambda: _highest_row(self.gather_index))
            return size1 if terms is None else terms
        return int(self.cached(("needed", name), lambda: _highest_row(index)))

    def terms(self, size1: int, size2: int, device: torch.device | None = None) -> TermList:
        """All terms as tensors, sorted by segment; on ``device`` (CPU by default) if the info has no tensors."""
        device = self.device or device or torch.device("cpu")
        key = ("terms", device, None if self.num_terms is not None else size1)
        return self.cached(key, lambda: self._terms(size1, size2, device))

    def _terms(self, size1: int, size2: int, device: torch.device) -> TermList:
        segments = self.rows(size1, size2)[1]
        if self.seg_out is None:
            position = torch.arange(segments, device=device)
            segment = position
        else:
            start = int(self.seg_out[0])
            segment = torch.repeat_interleave(torch.arange(segments, device=device), self.seg_out.diff())
            position = torch.arange(start, start + segment.shape[0], device=device)
        t = position if self.gather_index is None else self.gather_index[position]
        return TermList(
            scale=None if self.scale is None else self.scale[t],
            index1=t if self.index1 is None else self.index1[t],
            index2=t if self.index2 is None else self.index2[t],
            row=segment if self.index_out is None else self.index_out[segment],
        )


def _highest_row(index: Tensor | None) -> int:
    return 0 if index is None or index.is_meta or index.numel() == 0 else int(index.max()) + 1


class _OneOperand(SparseProductInfo):
    """A sparse scale as the info of a product; error messages name the fields of the scale."""

    _words = Words("SparseScaleInfo", ("index",), ("input",))


class _ScaleFields(NamedTuple):
    scale: Tensor | None  # [T] floating; None: 1
    index: Tensor | None  # type: ignore[assignment]  # [T] int64, row of the input; None: t
    seg_out: Tensor | None  # [S + 1] int64; None: row M is term M
    out_size: int | None = None  # rows of the output; None: S


class SparseScaleInfo(_Movable, _ScaleFields):
    r"""A constant sparse matrix :math:`S`, row by row: :math:`y_{nmc} = \sum_t s_t\, x_{n, \mathrm{index}[t], c}`.

    Args:
        scale: ``[T]`` floating; None means 1.
        index: ``[T]`` int64, row of the input of each term; None means the identity.
        seg_out: ``[S + 1]`` int64, sorted: terms ``seg_out[m]:seg_out[m + 1]`` make row m; None: row m is term m.
        out_size: Number of output rows, at least S; None means S.

    Raises:
        ShapeError, DTypeError, IndexRangeError: A field has the wrong shape, dtype or values.

    Example:
        >>> info = SparseScaleInfo(torch.tensor([2.0, 3.0]), torch.tensor([1, 0]), torch.tensor([0, 2]), 1)
        >>> info.as_product().index1.tolist()
        [1, 0]
    """

    def __new__(
        cls, scale: Tensor | None, index: Tensor | None, seg_out: Tensor | None, out_size: int | None = None
    ) -> SparseScaleInfo:
        """Make the tuple and check it."""
        self = super().__new__(cls, scale, index, seg_out, out_size)
        self.as_product()  # which checks the fields
        return self

    @classmethod
    def _make(cls, fields: Any) -> SparseScaleInfo:  # type: ignore[override]
        return cls(*fields)

    def as_product(self) -> SparseProductInfo:
        """A product info with the same terms and one operand (``index2`` None)."""
        return self.cached(
            "product",
            lambda: _OneOperand(self.scale, self.index, None, self.seg_out, None, None, self.out_size),
        )
