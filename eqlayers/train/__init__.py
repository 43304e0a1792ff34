"""Training: the Lightning module and everything that a run leaves in its folder.

Needs the extra `train` (`pip install "eqlayers[train]"`).
"""

from __future__ import annotations

from ..core.errors import needs_packages
from ..hints.names import answer_names

with needs_packages("eqlayers.train", "train"):
    import jsonargparse  # noqa: F401
    import lightning  # noqa: F401
    import matplotlib  # noqa: F401
    import rich  # noqa: F401
    import torchmetrics  # noqa: F401

from .averaging import EMA
from .base import warmup_cosine
from .checkpoints import AtomicCheckpointIO, best_and_last, read_checkpoint
from .history import History, read_history
from .module import PropertyModule, metric_name
from .plots import learning_curve, parity_plot
from .potential import PotentialModule
from .report import PredictionTable, TestReport
from .run import checkpoint_path, quiet_lightning, run_callbacks, run_loggers, trainer_options
from .summary import LayerSummary, layer_rows, summary_table

__all__ = [
    "EMA",
    "AtomicCheckpointIO",
    "History",
    "LayerSummary",
    "PotentialModule",
    "PredictionTable",
    "PropertyModule",
    "TestReport",
    "best_and_last",
    "checkpoint_path",
    "layer_rows",
    "learning_curve",
    "metric_name",
    "parity_plot",
    "quiet_lightning",
    "read_checkpoint",
    "read_history",
    "run_callbacks",
    "run_loggers",
    "summary_table",
    "trainer_options",
    "warmup_cosine",
]

answer_names(__name__)
