"""Run examples and keep their output beside this file, for the page: python docs/gallery/run.py [NAME ...]

NAME.txt is the standard output, NAME.png the picture that the example draws, and runs.json has the hash of the source
that ran. tests/repository/test_site.py compares this hash with the example of today.
"""

import ast
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tokenize
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("[0-9]*.py"))}
#: Where an example leaves its picture, below the folder in which it runs.
PICTURES = {
    "04_train_qm9_mini": "runs/example_04/parity.png",
    "09_own_structures": "runs/example_09/md.png",
    "12_vibrations": "runs/example_09/vibrations.png",
}
#: The example whose results another one reads; both run in one folder, in this order.
AFTER = {"12_vibrations": "09_own_structures"}
#: Examples without output on the page: the first needs a potential of configs/ethanol.yaml, the second trains 4 times.
ELSEWHERE = {"07_dynamics", "08_fine_tuning"}


def digest(name: str) -> str:
    """A hash of the source of an example, without comments and docstrings, which change no output."""
    source = EXAMPLES[name].read_text()
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    text = "\n".join(line.rstrip() for line in lines if line.strip())
    return hashlib.sha256(text.encode()).hexdigest()


def run(name: str, folder: Path) -> None:
    """Keep the output of one example, and facts about the run."""
    first = [str(Path(sys.prefix) / "mace")] if name == "06_accelerate_mace" else []
    paths = [*first, str(ROOT), str(ROOT / "kernels")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "88", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES[name])], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stdout}")
    lines = [line.rstrip() for line in done.stdout.replace(str(folder), ".").splitlines()]
    (FOLDER / f"{name}.txt").write_text("\n".join(lines).strip("\n") + "\n")
    if name in PICTURES:
        shutil.copyfile(folder / PICTURES[name], FOLDER / f"{name}.png")
    e3nn = "0.4.4" if first else version("e3nn")
    versions = {"python": platform.python_version(), "torch": version("torch"), "e3nn": e3nn}
    kept = FOLDER / "runs.json"
    facts = json.loads(kept.read_text()) if kept.exists() else {}
    facts[name] = {"sha256": digest(name), **versions}
    kept.write_text(json.dumps(dict(sorted(facts.items())), indent=1) + "\n")


def main() -> None:
    with TemporaryDirectory() as folder:
        for name in sys.argv[1:] or [name for name in EXAMPLES if name not in ELSEWHERE]:
            before = AFTER.get(name)
            if before and not (Path(folder) / "runs" / f"example_{before[:2]}").exists():
                run(before, Path(folder))
            print(name, flush=True)
            run(name, Path(folder))


if __name__ == "__main__":
    main()
