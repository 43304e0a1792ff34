"""Make `mini_qm9_xtb.npz` or `further_qm9_xtb.npz` from scratch, or compare random rows with a new computation.

    pip install rdkit tblite numpy rich
    python examples/data/make_mini_qm9.py --out build/mini               # about 45 minutes of one core
    python examples/data/make_mini_qm9.py --further --out build/further  # about 15 minutes
    python examples/data/make_mini_qm9.py --verify 8                     # about 10 s

Steps: enumerate graphs of up to 7 heavy atoms; take all of up to 6 and a sample of those with 7; relax each with
GFN2-xTB and compute QM9's properties; drop what did not converge, changed its bonds or is no minimum; split; pack.
Every finished molecule is a line of `records.jsonl` in the output folder, so that an interrupted run continues where it
stopped. Further molecules are graphs with 7 heavy atoms that the sample left out, with energies and charges alone.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from enumerate_smiles import enumerate_graphs
from numpy.typing import NDArray
from store import HERE, Deviations, progress_bar, save_set
from xtb import compute_molecule

NAME, FURTHER = "mini_qm9_xtb.npz", "further_qm9_xtb.npz"
SAMPLE_7, SPLIT_SEED = 1030, 2026
MOST_FURTHER = 5000
STEPS = {"pos": 1e-3, "charges": 1e-4}  # of the integers of further molecules, in Angstrom and e
PROPERTIES = ("mu", "alpha", "homo", "lumo", "gap", "zpve", "U0", "U", "H", "G", "Cv", "A", "B", "C")
TOTAL_ENERGIES = ("energy", "U0", "U", "H", "G")  # stored in float64: their differences matter

# Largest deviations that `--verify` accepts, and units. With the versions in the manifest everything agrees to the last
# stored digit; another version may end a relaxation (gradient below 2e-4 Eh/a0) elsewhere in the same minimum.
TOLERANCES = {
    "pos": (1e-3, "A"),
    "charges": (1e-4, "e"),
    "dipole": (1e-3, "D"),
    "mu": (1e-3, "D"),
    "alpha": (1e-3, "a0^3"),
    **dict.fromkeys(("homo", "lumo", "gap"), (1e-5, "Eh")),
    "zpve": (1e-5, "Eh"),
    **dict.fromkeys(TOTAL_ENERGIES, (1e-5, "Eh")),
    "Cv": (1e-2, "cal/(mol K)"),
    **dict.fromkeys("ABC", (1e-2, "GHz")),
}


def choose_graphs(max_heavy: int, further: bool = False) -> list[str]:
    """All graphs of up to 6 heavy atoms and a sample of those with 7, or further ones with 7, in a fixed order."""
    graphs = enumerate_graphs(max_heavy, lambda heavy, kept: print(f"{heavy} heavy atoms: {kept} graphs", flush=True))
    chosen = [smiles for heavy in range(1, min(max_heavy, 6) + 1) for smiles in graphs[heavy]]
    if max_heavy == 7:
        sample = random.Random(7).sample(graphs[7], SAMPLE_7)
        if further:
            return random.Random(11).sample(sorted(set(graphs[7]) - set(sample)), MOST_FURTHER)
        chosen += sample
    random.Random(1).shuffle(chosen)
    return chosen


def read_records(path: Path) -> list[dict[str, Any]]:
    """Finished molecules; a last line that was cut off is removed from the file."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def _compute(smiles: str, modes: bool = True) -> dict[str, Any]:
    try:
        return compute_molecule(smiles, modes)
    except RuntimeError as error:  # tblite: the self-consistent field did not converge
        return {"smiles": smiles, "status": f"failed: {error}"}


def compute(smiles: list[str], jobs: int, modes: bool) -> Iterator[dict[str, Any]]:
    """Records of all molecules, in order, on `jobs` processes."""
    one = partial(_compute, modes=modes)
    if jobs == 1:
        yield from map(one, smiles)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, smiles)


def pack(records: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Arrays of the npz file: molecules by number of heavy atoms and SMILES, with the random split."""
    kept = [record for record in records if record["status"] == "ok"]
    kept.sort(key=lambda record: (sum(number > 1 for number in record["z"]), record["smiles"]))
    arrays: dict[str, NDArray[Any]] = {
        "n_atoms": np.array([len(record["z"]) for record in kept], np.uint8),
        "z": np.concatenate([record["z"] for record in kept]).astype(np.uint8),
        "pos": np.concatenate([record["pos"] for record in kept]).astype(np.float32),
        "charges": np.concatenate([record["charges"] for record in kept]).astype(np.float32),
        "dipole": np.array([record["dipole"] for record in kept], np.float32),
    }
    for key in ("energy", *PROPERTIES):
        kind = np.float64 if key in TOTAL_ENERGIES else np.float32
        arrays[key] = np.array([record[key] for record in kept], kind)
    arrays["smiles"] = np.array([record["smiles"] for record in kept]).astype("S")
    order, num = np.random.default_rng(SPLIT_SEED).permutation(len(kept)), len(kept)
    split = np.zeros(num, np.uint8)  # 0 training, 1 validation, 2 test
    split[order[: num // 10]] = 2
    split[order[num // 10 : num // 5]] = 1
    return arrays | {"split": split}


def pack_further(records: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Arrays of the npz file of further molecules: positions and charges as integers, half the size of float32."""
    kept = sorted((record for record in records if record["status"] == "ok"), key=lambda record: record["smiles"])
    arrays: dict[str, NDArray[Any]] = {
        "n_atoms": np.array([len(record["z"]) for record in kept], np.uint8),
        "z": np.concatenate([record["z"] for record in kept]).astype(np.uint8),
    }
    for key, step in STEPS.items():
        arrays[key] = np.round(np.concatenate([record[key] for record in kept]) / step).astype(np.int16)
    arrays["energy"] = np.array([record["energy"] for record in kept], np.float64)
    return arrays | {"smiles": np.array([record["smiles"] for record in kept]).astype("S")}


def make(out: Path, jobs: int, max_heavy: int, further: bool = False) -> None:
    """Compute what is missing, then pack."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "records.jsonl"
    records = read_records(path)
    done = {record["smiles"] for record in records}
    chosen = choose_graphs(max_heavy, further)
    missing = [smiles for smiles in chosen if smiles not in done]
    with path.open("a") as file, progress_bar() as bar:
        task = bar.add_task("GFN2-xTB", total=len(chosen), completed=len(chosen) - len(missing))
        for record in compute(missing, jobs, modes=not further):
            file.write(json.dumps(record) + "\n")
            file.flush()
            records.append(record)
            bar.advance(task)
    wanted = set(chosen)
    arrays = (pack_further if further else pack)([record for record in records if record["smiles"] in wanted])
    path = out / (FURTHER if further else NAME)
    save_set(path, arrays, len(arrays["n_atoms"]), "make_mini_qm9.py" + " --further" * further)
    print(f"{dict(Counter(record['status'] for record in records))}; wrote {path}")


def load(path: Path) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    """Arrays of a file, and where every molecule's atoms end."""
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    arrays |= {key: arrays[key] * step for key, step in STEPS.items() if arrays[key].dtype == np.int16}
    return arrays, np.concatenate([[0], np.cumsum(arrays["n_atoms"].astype(np.int64))])


def verify(path: Path, rows: int, seed: int) -> bool:
    """Recompute random rows of a file from their SMILES and print the largest deviation of every key."""
    arrays, ends = load(path)
    chosen = np.sort(np.random.default_rng(seed).choice(len(arrays["n_atoms"]), rows, replace=False))
    deviations, good = Deviations(), True
    with progress_bar() as bar:
        for row in bar.track(chosen.tolist(), description="recomputing"):
            smiles = arrays["smiles"][row].decode()
            atoms = slice(ends[row], ends[row + 1])
            record = _compute(smiles, modes="zpve" in arrays)
            if record["status"] != "ok" or record["z"] != arrays["z"][atoms].tolist():
                print(f"row {row} {smiles}: status {record['status']!r} or other atoms than stored")
                good = False
                continue
            for key in (key for key in TOLERANCES if key in arrays):
                stored = arrays[key][atoms] if key in ("pos", "charges") else arrays[key][row]
                deviations.add(key, stored, record[key], f"{row} {smiles}")
    return deviations.report(TOLERANCES) and good


def verify_graphs(path: Path) -> bool:
    """Compare the SMILES of a file with the enumeration: every stored one must be among the chosen."""
    stored = {smiles.decode() for smiles in load(path)[0]["smiles"]}
    chosen = set(choose_graphs(7, further=path.name == FURTHER))
    print(f"{len(chosen)} graphs chosen, {len(stored)} stored, {len(stored - chosen)} stored but not chosen")
    return not stored - chosen


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--further", action="store_true", help="make the further molecules instead")
    parser.add_argument("--out", type=Path, help="folder for the new file and its records (not the shipped one)")
    parser.add_argument(
        "--max-heavy", type=int, default=7, choices=range(1, 8), help="largest graphs (default 7; 3 to try)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--verify", type=int, metavar="K", help="recompute K random rows of the shipped file")
    parser.add_argument("--verify-graphs", action="store_true", help="enumerate again, compare SMILES (2 minutes)")
    parser.add_argument("--seed", type=int, default=0, help="which rows --verify takes (default 0)")
    parser.add_argument("--file", type=Path, default=HERE / NAME, help="the file to verify")
    options = parser.parse_args()
    if options.verify_graphs:
        return 0 if verify_graphs(options.file) else 1
    if options.verify:
        return 0 if verify(options.file, options.verify, options.seed) else 1
    if options.out is None:
        parser.error("one of --out, --verify and --verify-graphs is required")
    make(options.out, options.jobs, options.max_heavy, options.further)
    return 0


if __name__ == "__main__":
    sys.exit(main())
