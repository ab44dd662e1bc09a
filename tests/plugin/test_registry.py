from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_tensorrt import make_fake_tensorrt
from nonzero_plugin.adapter import make_classes
from nonzero_plugin.errors import PluginRegistrationError
from nonzero_plugin.registry import OURS, UNPATCHED, register, registered, unregister


@pytest.fixture
def trt() -> Any:
    return make_fake_tensorrt()


def foreign(trt: Any, name: str, namespace: str) -> Any:
    creator = type("SomebodysCreator", (trt.IPluginCreatorV3One,), {})()
    creator.name, creator.plugin_version, creator.plugin_namespace = name, "1", namespace
    return creator


def test_registering_twice_registers_once(trt: Any) -> None:
    for _ in range(3):
        assert register(trt) is trt
    assert list(registered(trt)) == [OURS]
    for _ in range(3):
        register(trt, unpatched=True)
    assert list(registered(trt)) == [OURS, UNPATCHED]
    unregister(trt)
    unregister(trt)
    assert not registered(trt)
    register(trt)
    assert list(registered(trt)) == [OURS]


@pytest.mark.parametrize(
    ("name", "namespace"), [("NonZeroPlugin", "nonzero_rewrite"), ("NonZero", "")]
)
def test_a_foreign_plugin_under_our_triple_is_named_and_nothing_is_registered(
    trt: Any, name: str, namespace: str
) -> None:
    trt.registry.all_creators.append(foreign(trt, name, namespace))
    with pytest.raises(PluginRegistrationError, match=f"SomebodysCreator is already.*{name}"):
        register(trt, unpatched=True)
    assert len(trt.registry.all_creators) == 1


def test_the_sample_s_triple_is_another(trt: Any) -> None:
    trt.registry.all_creators.append(foreign(trt, "NonZeroPlugin", ""))
    register(trt)
    assert len(registered(trt)) == 2


def test_no_half_registration(trt: Any) -> None:
    trt.registry.refuse = "NonZero"
    with pytest.raises(PluginRegistrationError, match="refused to register NonZero, version 1"):
        register(trt, unpatched=True)
    assert not trt.registry.all_creators


def test_one_backend_for_unpatched_nodes(trt: Any) -> None:
    register(trt, unpatched=True, backend="torch")
    register(trt, unpatched=True, backend="torch")
    with pytest.raises(PluginRegistrationError, match="'torch', not 'cupy'"):
        register(trt, unpatched=True, backend="cupy")


def test_bindings_that_hide_the_python_object(trt: Any) -> None:
    register(trt)
    plain = trt.IPluginCreatorV3One()
    plain.name, plain.plugin_version, plain.plugin_namespace = OURS.name, "1", OURS.namespace
    trt.registry.all_creators[:] = [plain]
    register(trt)  # registered by this process: ours


def test_foreign_modules_get_classes_of_their_own(trt: Any) -> None:
    register(trt)
    creator = registered(trt)[OURS]
    assert isinstance(creator, make_classes(trt).creator)
    assert not isinstance(creator, make_classes(make_fake_tensorrt()).creator)
