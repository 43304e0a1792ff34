"""Enumerate small molecular graphs of C, N, O and F by growth, in the spirit of the GDB databases.

A graph grows by one atom at a time; bond orders are then raised and rings closed, one step after the other; duplicates
are recognised by canonical SMILES. SMARTS patterns remove groups that would not survive in a flask (peroxides, enols,
gem-diols, cumulenes, strained bridgeheads, ...). Deterministic; needs RDKit alone. 10 s up to 6 heavy atoms, 90 s up to
7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rdkit import Chem, RDLogger

RDLogger.DisableLog("rdApp.*")

VALENCE = {6: 4, 7: 3, 8: 2, 9: 1}
BOND = {1: Chem.BondType.SINGLE, 2: Chem.BondType.DOUBLE, 3: Chem.BondType.TRIPLE}

# Groups that no kept graph may contain.
FORBIDDEN = {
    name: Chem.MolFromSmarts(smarts)
    for name, smarts in {
        "three heteroatoms in a row": "[#7,#8,#9]~[#7,#8,#9]~[#7,#8,#9]",
        "peroxide": "[#8]~[#8]",
        "F on N or O": "[#8,#7]-[F]",
        "F-F": "[F]-[F]",
        "N-N single bond outside azoles and hydrazides": "[N&!$(N-C=[O,N])]-[N&!$(N-C=[O,N])]",
        "N-O single bond outside oximes, oxazoles and hydroxamic acids": "[N&X3&!$(N-C=O)]-[O]",
        "nitroso": "[N&X2]=[O]",
        "azo": "[N&X2]=[N&X2]",
        "cumulene, ketene, isocyanate": "*=[#6]=*",
        "enol, enamine": "[O&H1,N&H1,N&H2]-[C]=[C]",
        "imidic acid": "[O&H1]-[C]=[N]",
        "gem-diol, hemiaminal, gem-diamine": "[C&X4]([O,N])[O&H1,N&H2,N&H1]",
        "acetal in a ring": "[C&X4&R]([O,N])[O,N]",
        "F beside a heteroatom": "[C](F)[#7,#8]",
        "acyl fluoride": "C(=O)F",
        "vinyl fluoride": "C=CF",
        "imidoyl fluoride": "[C](=N)F",
        "heteroatom on an alkyne": "C#C-[#7,#8,F]",
        "cyanamide, cyanate": "[#7,#8]-C#N",
        "NH imine": "[C]=[N&H1]",
        "CH2 imine": "[C&H2]=[N]",
        "conjugated imine": "[C]=[N]-[C]=*",
        "unsaturated three-ring": "[r3]=,:[r3]",
        "double bond on a three-ring": "[r3]=[!r3]",
        "C=N in a four-ring": "[r4]=,:[#7&r4]",
        "aromatic four-ring": "[c,n,o;r4]:[c,n,o;r4]",
        "alkyne in a ring": "[R]#[R]",
        "anhydride or carbonate in a small ring": "[r3,r4](=O)~[#8]",
        "nitrile oxide": "[C&X2]#[N&X2]",
        "diyne": "C#C-C#*",
        "bare carbon": "[C&H0&X2&!$(C#*)]",
    }.items()
}


def reason_to_drop(mol: Chem.Mol) -> str | None:
    """Why a graph is not kept, or None."""
    for name, pattern in FORBIDDEN.items():
        if mol.HasSubstructMatch(pattern):
            return name
    rings = mol.GetRingInfo().AtomRings()
    if len(rings) > 2:
        return "more than two rings"
    small = [set(ring) for ring in rings if len(ring) <= 4]
    if any(small[i] & small[j] for i in range(len(small)) for j in range(i)):
        return "fused or spiro small rings"
    if len(rings) == 2 and len(set(rings[0]) & set(rings[1])) > 2:
        # A bridged pair is kept or dropped here, before the two rules below.
        return None if min(map(len, rings)) >= 5 else "bridged small rings"
    for bond in mol.GetBonds():
        if bond.GetBondTypeAsDouble() == 2 and bond.IsInRing():
            for atom in (bond.GetBeginAtom(), bond.GetEndAtom()):
                shared = sum(atom.GetIdx() in ring for ring in rings) > 1
                if shared and min(map(len, rings)) < 5:
                    return "double bond at a bridgehead of a small ring"
    carbon = sum(atom.GetAtomicNum() == 6 for atom in mol.GetAtoms())
    heavy = mol.GetNumAtoms()
    if heavy > 2 and heavy - carbon > max(1, heavy // 2):
        return "too many heteroatoms"
    return None


def is_kept(smiles: str) -> bool:
    """Whether a graph passes every rule."""
    return reason_to_drop(Chem.MolFromSmiles(smiles)) is None


def _free_valence(atom: Chem.Atom) -> int:
    return VALENCE[atom.GetAtomicNum()] - sum(int(bond.GetBondTypeAsDouble()) for bond in atom.GetBonds())


def _canonical(mol: Chem.Mol) -> str | None:
    copy = Chem.Mol(mol)
    try:
        Chem.SanitizeMol(copy)
    except Chem.MolSanitizeException:
        return None
    return str(Chem.MolToSmiles(copy))


def _kekulized(smiles: str) -> Chem.Mol:
    mol = Chem.MolFromSmiles(smiles)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    return mol


def add_atom(smiles: str) -> set[str]:
    """Graphs with one atom more, bound by any bond order that both valences allow."""
    mol = _kekulized(smiles)
    children: set[str] = set()
    for atom in mol.GetAtoms():
        for number, valence in VALENCE.items():
            for order in range(1, min(3, _free_valence(atom), valence) + 1):
                grown = Chem.RWMol(mol)
                grown.AddBond(atom.GetIdx(), grown.AddAtom(Chem.Atom(number)), BOND[order])
                child = _canonical(grown)
                if child:
                    children.add(child)
    return children


def add_bond(smiles: str) -> set[str]:
    """Graphs of the same atoms with one bond order raised or one ring closed."""
    mol = _kekulized(smiles)
    distance = Chem.GetDistanceMatrix(mol)
    can_close = mol.GetRingInfo().NumRings() < 2
    open_atoms = [atom.GetIdx() for atom in mol.GetAtoms() if _free_valence(atom) > 0]
    children: set[str] = set()
    for i in open_atoms:
        for j in (k for k in open_atoms if k < i):
            bond = mol.GetBondBetweenAtoms(i, j)
            changed = Chem.RWMol(mol)
            if bond is not None and int(bond.GetBondTypeAsDouble()) < 3:
                changed.GetBondBetweenAtoms(i, j).SetBondType(BOND[int(bond.GetBondTypeAsDouble()) + 1])
            elif bond is None and distance[i, j] >= 2 and can_close:
                changed.AddBond(i, j, BOND[1])
            else:
                continue
            child = _canonical(changed)
            if child:
                children.add(child)
    return children


def _closure(seed: Iterable[str], keep: Callable[[str], bool]) -> set[str]:
    """Everything that `add_bond` reaches from the kept seeds through kept graphs."""
    found = {smiles for smiles in seed if keep(smiles)}
    todo = sorted(found)
    while todo:
        for child in add_bond(todo.pop()):
            if child not in found and keep(child):
                found.add(child)
                todo.append(child)
    return found


def enumerate_graphs(max_heavy: int, report: Callable[[int, int], None] | None = None) -> dict[int, list[str]]:
    """Kept graphs by number of heavy atoms.

    Up to four atoms all graphs take part in the growth, so that it can pass through unstable parents; from five on only
    kept ones do.

    Args:
        max_heavy: Largest number of heavy atoms, at least 1.
        report: Called with the number of heavy atoms and of kept graphs after every size.

    Returns:
        Sorted canonical SMILES for 1 to `max_heavy`.
    """
    kept = {1: ["C", "N", "O"]}
    parents: set[str] = {"C", "N", "O", "F"}
    for heavy in range(2, max_heavy + 1):
        seed = set().union(*(add_atom(smiles) for smiles in sorted(parents)))
        parents = _closure(seed, is_kept if heavy > 4 else lambda smiles: True)
        kept[heavy] = sorted(smiles for smiles in parents if heavy > 4 or is_kept(smiles))
        if report is not None:
            report(heavy, len(kept[heavy]))
    return kept
