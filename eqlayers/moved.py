"""Modules under the names that they had when a file was pickled: a pickle of a layer names the module of its class.

`torch.save(model)` writes such a file. A name of this table is a module that imports the new one at first use.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

#: The former name below `eqlayers`, and the present one.
MOVED = {
    "forms.program": "core.forms.program",
    "functional.norms": "layers.norm.functions",
    "functional.so2": "layers.so2.functions",
    "functional.tabled": "layers.tensor_product.tabled_weights",
    "functional.wigner": "layers.rotation.functions",
    "integrations.contracter": "integrations.kinds.contracter",
    "integrations.coverage": "integrations.report",
    "integrations.modules": "integrations.kinds",
    "integrations.nonlinear": "integrations.kinds",
    "integrations.noting": "integrations.lazy",
    "integrations.polynomials": "integrations.kinds",
    "lowering.layout": "irreps.layout",
    "lowering.norms": "layers.norm.lower",
    "lowering.paths": "irreps.instructions",
    "lowering.plan": "layers.tensor_product.plan",
    "lowering.so2": "layers.so2.lower",
    "lowering.symmetric": "layers.contraction.lower",
    "lowering.traced": "layers.pointwise.lower",
    "nn._common.columns": "layers.base.columns",
    "nn._common.functions": "layers.gate.activation",
    "nn._common.grids": "layers.gate.grid_activation",
    "nn._common.interpolation": "layers.radial.knots",
    "nn._common.linear_paths": "layers.linear.instructions",
    "nn._common.symmetric_weights": "layers.contraction.weights",
    "nn._common.weights": "layers.base.weights",
    "nn.activation": "layers.gate.activation",
    "nn.attention": "layers.attention.module",
    "nn.batch_norm": "layers.norm.batch_norm",
    "nn.cartesian": "layers.basis.module",
    "nn.change_of_basis": "layers.basis.module",
    "nn.conv": "layers.convolution.module",
    "nn.cutoffs": "layers.radial.cutoffs",
    "nn.distance_transform": "layers.radial.distance_transform",
    "nn.dropout": "layers.dropout.module",
    "nn.edge_frame": "layers.rotation.module",
    "nn.edge_geometry": "layers.harmonics.edge_geometry",
    "nn.extract": "layers.reshape.module",
    "nn.formula_layer": "layers.pointwise.module",
    "nn.gate": "layers.gate.module",
    "nn.grid_activation": "layers.gate.grid_activation",
    "nn.interaction": "layers.convolution.interaction",
    "nn.layer_norm": "layers.norm.module",
    "nn.linear": "layers.linear.module",
    "nn.norm": "layers.norm.module",
    "nn.norm_activation": "layers.norm.norm_activation",
    "nn.radial": "layers.radial.module",
    "nn.radial_basis": "layers.radial.bases",
    "nn.radial_table": "layers.radial_table.module",
    "nn.repulsion": "layers.radial.repulsion",
    "nn.reshaping": "layers.reshape.module",
    "nn.so2": "layers.so2.module",
    "nn.so3_linear": "layers.tensor_product.sub_products",
    "nn.so3_scale": "layers.linear.so3_scale",
    "nn.species_linear": "layers.linear.species_linear",
    "nn.spherical_harmonics": "layers.harmonics.module",
    "nn.structured_linear": "layers.linear.structured_linear",
    "nn.sub_products": "layers.tensor_product.sub_products",
    "nn.symmetric_contraction": "layers.contraction.module",
    "nn.tabled_basis": "layers.radial.tabled_basis",
    "nn.tensor_product": "layers.tensor_product.module",
    "nn.wigner": "layers.rotation.module",
    "info.structs": "sparse.info",
}


class Moved(ModuleType):
    """A former module, with the names of the present one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by tools that look at all modules
            raise AttributeError(name)
        return getattr(import_module(f"eqlayers.{MOVED[self.__name__.removeprefix('eqlayers.')]}"), name)


def answer_for_former_names(part: str) -> None:
    """Make the former modules of a part importable, such as `eqlayers.nn`; imports none of the present ones."""
    for name in (f"eqlayers.{one}" for one in MOVED):
        if name.startswith(f"{part}."):
            sys.modules.setdefault(name, Moved(name))
            sys.modules.setdefault(name.rpartition(".")[0], Moved(name.rpartition(".")[0]))
