"""The command `eqlayers`. Training needs seconds to import, so it is imported only by the commands that train."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

__all__ = ["main"]

TRAINING = {
    "fit": "train, then test the best weights",
    "validate": "errors on the validation part",
    "test": "errors on the test part, with table, metrics.json and pictures",
    "predict": "write predictions.csv",
}

EPILOG = """\
training commands take a configuration file, and every key in it as an option:
  eqlayers fit -c configs/qm9_mini.yaml
  eqlayers fit -c configs/qm9_mini.yaml --model.learning_rate 2e-3 --name faster
  eqlayers fit -c configs/qm9_mini.yaml --ckpt_path runs/qm9_mini/checkpoints/last.ckpt    (resume)
  eqlayers test -c configs/qm9_mini.yaml
  eqlayers fit --help                                                                      (all keys)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; those of the process if None.

    Returns:
        Exit status: 0, or 2 for input that cannot be used.

    Example:
        >>> main(["--version"])
        eqlayers 0.1.0
        0
    """
    args = list(sys.argv[1:] if argv is None else argv)
    from .errors import EqlayersError

    try:
        if args and args[0] in TRAINING:
            return train(args)
        parsed = parser().parse_args(args)
        if parsed.version:
            from . import __version__

            print(f"eqlayers {__version__}")
        elif parsed.command == "info":
            info()
        else:
            parser().print_help()
    except EqlayersError as error:
        print(f"eqlayers: error: {error}", file=sys.stderr)
        return 2
    return 0


def train(args: Sequence[str]) -> int:
    """Hand over to the training command line, or say how to install what it needs."""
    try:
        from .train.cli import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "eqlayers":
            raise
        print(
            f"eqlayers: error: training needs the packages of the extra `train`; {error.name} is not installed. "
            "Install them: pip install 'eqlayers[train]'",
            file=sys.stderr,
        )
        return 2
    run(args)
    return 0


def info() -> None:
    """Print versions, devices, and for a small layer on each device which backend runs and why the others do not."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from . import __version__
    from .nn import TensorProduct

    print(f"eqlayers {__version__}, python {platform.python_version()}, {platform.machine()}")
    for package in ("torch", "triton", "e3nn", "lightning", "torch-geometric"):
        try:
            print(f"  {package} {version(package)}")
        except PackageNotFoundError:
            print(f"  {package}: not installed")
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    print(f"cpu: {torch.get_num_threads()} threads")
    for device in devices[1:]:
        print(f"{device}: {torch.cuda.get_device_name(device)}")
    layer = TensorProduct("8x0e+8x1o", "1x1o", "8x1o+8x0e", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvu", True)])
    for device in devices:
        print(layer.explain(device))


def parser() -> argparse.ArgumentParser:
    """The parser of everything but training."""
    top = argparse.ArgumentParser(
        prog="eqlayers",
        description="O(3)-equivariant layers for PyTorch.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    commands = top.add_subparsers(dest="command", metavar="command")
    for name, about in (TRAINING | {"info": "versions, devices, and the backends that can run here"}).items():
        commands.add_parser(name, help=about)
    return top
