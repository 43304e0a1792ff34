"""NequIP's modifier: how NequIP finds it, what it changes, and that all else is NequIP's own."""

import copy
import subprocess
import sys

import nequip.nn
import pytest
import torch
from nequip.model.modify_utils import get_all_modifiers, modify, only_apply_persistent_modifiers
from nequip.nn._tp_scatter_base import TensorProductScatter
from nequip.nn.model_modifier_utils import (
    get_model_modifier_supported_compile_modes,
    get_model_modifier_unsupported_devices,
    is_persistent_model_modifier,
    is_private_model_modifier,
)

from eqlayers.errors import ConfigError
from eqlayers.integrations import deaccelerate
from eqlayers.integrations.kinds.harmonics import AcceleratedSphericalHarmonics
from eqlayers.integrations.kinds.product import AcceleratedLinear
from eqlayers.integrations.nequip import EqlayersTensorProductScatter
from eqlayers.integrations.radial import TabledRadial
from tests.integrations import guests
from tests.integrations.guests import Guest

ENABLE = {"modifier": "enable_eqlayers"}


@pytest.fixture(scope="module")
def subject() -> Guest:
    return guests.nequip(layers=3, channels=4, sizes=(7, 1))


def test_nequip_finds_it_by_itself() -> None:
    """In a process that names neither this package nor the module."""
    code = (
        "from nequip.nn._tp_scatter_base import TensorProductScatter as S; import sys;"
        "assert 'eqlayers.integrations.nequip' in sys.modules; print(S.enable_eqlayers.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "enable_eqlayers"


def test_it_is_a_public_modifier_for_every_device(subject: Guest) -> None:
    modifier = get_all_modifiers(subject.make(torch.float32))["enable_eqlayers"]
    assert not is_persistent_model_modifier(modifier)
    assert not is_private_model_modifier(modifier)
    assert get_model_modifier_unsupported_devices(modifier) == []
    assert get_model_modifier_supported_compile_modes(modifier) == ["aotinductor"]
    assert modifier.__doc__


def test_numbers_are_equal_to_rounding(subject: Guest) -> None:
    errors = guests.compare(subject, lambda network: modify(network, [ENABLE]))
    assert all(share <= 1 for share in errors["of the bound"].values()), errors
    assert errors["float64"]["gradient"] > 0


def test_what_it_changes(subject: Guest) -> None:
    plain, fast = (subject.make(torch.float32) for _ in range(2))
    keys = list(plain.state_dict())
    parameters = {id(p) for p in fast.parameters()}
    assert modify(fast, [ENABLE]) is fast
    scatters = [module for module in fast.modules() if isinstance(module, TensorProductScatter)]
    assert [type(module) for module in scatters] == [EqlayersTensorProductScatter] * 3
    harmonics = [name for name, module in fast.named_modules() if isinstance(module, AcceleratedSphericalHarmonics)]
    assert [name.rpartition(".")[2] for name in harmonics] == ["sh"]
    assert "eqlayers.nn" in fast.metadata["nequip_custom_ops_libs"].split()
    assert "nequip_custom_ops_libs" not in plain.metadata
    assert list(fast.state_dict()) == keys
    assert {id(p) for p in fast.parameters()} == parameters
    plain.load_state_dict(fast.state_dict())
    fast.load_state_dict(plain.state_dict())
    deaccelerate(fast)
    assert not any(isinstance(module, EqlayersTensorProductScatter) for module in fast.modules())
    assert list(fast.state_dict()) == keys


def test_twice_is_once(subject: Guest) -> None:
    network = modify(subject.make(torch.float64), [ENABLE])
    expected = guests.outcome(subject, network)
    modify(network, [ENABLE])
    results = guests.outcome(subject, network)
    assert all(torch.equal(results[key], expected[key]) for key in guests.QUANTITIES)


def test_options_come_from_the_configuration(subject: Guest) -> None:
    network = modify(subject.make(torch.float32), [{**ENABLE, "targets": ["convolution"], "backend": "torch"}])
    assert not any(isinstance(module, AcceleratedLinear) for module in network.modules())
    backends = {m.tp.backend for m in network.modules() if isinstance(m, EqlayersTensorProductScatter)}
    assert backends == {"torch"}
    with pytest.raises(ConfigError, match="backend must"):
        modify(subject.make(torch.float32), [{**ENABLE, "backend": "fast"}])


def test_radial_networks_by_tables(subject: Guest) -> None:
    """In NequIP's own modules, and as near as was asked for."""
    plain = subject.make(torch.float64)
    network = modify(subject.make(torch.float64), [{**ENABLE, "radial": "table", "tolerance": 1e-6}])
    assert sum(isinstance(module, TabledRadial) for module in network.modules()) == 3
    forces, wanted = (subject.evaluate(model, False)[1] for model in (network, plain))
    assert not torch.equal(forces, wanted)
    torch.testing.assert_close(forces, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


def test_a_package_is_made_without_it(subject: Guest) -> None:
    with only_apply_persistent_modifiers(persistent_only=True):
        network = modify(subject.make(torch.float32), [ENABLE])
    assert not any(isinstance(module, EqlayersTensorProductScatter) for module in network.modules())


def test_copies_are_independent(subject: Guest) -> None:
    """Averaged weights of NequIP's training module are such copies."""
    network = modify(subject.make(torch.float64), [ENABLE])
    expected = guests.outcome(subject, network)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    results = guests.outcome(subject, network)
    assert all(torch.equal(results[key], expected[key]) for key in guests.QUANTITIES)
    assert guests.outcome(subject, other)["forces"].abs().max() == 0


def test_the_scatter_is_nequips_own() -> None:
    assert issubclass(EqlayersTensorProductScatter, TensorProductScatter)
    assert hasattr(nequip.nn.interaction_block, "TensorProductScatter")
