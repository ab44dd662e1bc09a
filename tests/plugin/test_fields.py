from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nonzero_plugin import fields
from nonzero_plugin.contract import BACKENDS, NonZeroConfig
from nonzero_plugin.errors import ContractError

configs = st.builds(
    NonZeroConfig,
    st.sampled_from(BACKENDS),
    st.sampled_from([(0, 1), (1, 0)]),
    st.sampled_from([6, 7]),
    st.none() | st.integers(1, 2**31 - 1),
)
CONFIG = NonZeroConfig("cupy", (1, 0), 6, 77)


def stored(config: NonZeroConfig = CONFIG) -> dict[str, fields.Field]:
    return {field.name: field for field in fields.to_fields(config, 9, "nonzero-rewrite 9.9")}


def int32(name: str, *values: int) -> fields.Field:
    return fields.Field(name, "INT32", np.array(values, np.int32))


def char(name: str, data: bytes) -> fields.Field:
    return fields.Field(name, "CHAR", np.frombuffer(data, np.int8))


@given(configs, st.sampled_from([1, 9, 16]))
def test_what_an_engine_stores_comes_back(config: NonZeroConfig, input_type: int) -> None:
    written = fields.to_fields(config, input_type, "nonzero-rewrite 1")
    assert fields.from_engine_fields(written) == (config, input_type)


@given(configs)
def test_a_node_s_attributes_come_back_as_the_parser_passes_them(config: NonZeroConfig) -> None:
    given_fields = [
        char("backend", config.backend.encode() + b"\0"),
        int32("perm", *config.perm),
        int32("index_type", config.index_type),
    ]
    if config.max_nonzero is not None:
        given_fields.append(int32("max_nonzero", config.max_nonzero))
    assert fields.from_parser_fields(given_fields) == config


def test_text_is_read_with_and_without_the_parser_s_nul() -> None:
    perm = int32("perm", 0, 1)
    for data in (b"torch", b"torch\0"):
        assert fields.from_parser_fields([char("backend", data), perm]).backend == "torch"


@pytest.mark.parametrize("name", sorted(stored()))
def test_no_engine_field_may_be_missing(name: str) -> None:
    left = [field for field in stored().values() if field.name != name]
    with pytest.raises(ContractError, match=rf"namespace 'nonzero_rewrite'.*'{name}' is missing"):
        fields.from_engine_fields(left, "nz")


@pytest.mark.parametrize("name", sorted(stored()))
def test_no_engine_field_may_change_its_type(name: str) -> None:
    changed = stored()
    changed[name] = dataclasses.replace(changed[name], type="FLOAT32")
    with pytest.raises(ContractError, match=f"'{name}' has type FLOAT32"):
        fields.from_engine_fields(changed.values())


@pytest.mark.parametrize("name", sorted(stored()))
def test_a_type_the_bindings_cannot_read_is_no_crash(name: str) -> None:
    changed = stored()
    changed[name] = fields.Field(name, "FLOAT16", None)
    with pytest.raises(ContractError, match=f"'{name}' has type FLOAT16"):
        fields.from_engine_fields(changed.values())


@pytest.mark.parametrize("name", ["perm", "index_type", "max_nonzero", "input_type"])
def test_no_engine_field_may_change_its_length(name: str) -> None:
    changed = stored()
    data = changed[name].data
    assert data is not None
    changed[name] = dataclasses.replace(changed[name], data=np.concatenate([data, data[:1]]))
    with pytest.raises(ContractError, match=f"'{name}' has"):
        fields.from_engine_fields(changed.values())


def test_unknown_and_doubled_engine_fields_are_refused() -> None:
    listed = list(stored().values())
    with pytest.raises(ContractError, match="'later' is unknown"):
        fields.from_engine_fields([*listed, int32("later", 1)])
    with pytest.raises(ContractError, match="stored twice"):
        fields.from_engine_fields([*listed, listed[0]])


@pytest.mark.parametrize(
    ("version", "advice"), [(2, "install a newer nonzero-rewrite"), (0, "build the engine again")]
)
def test_other_format_versions_say_who_wrote_them_and_what_to_do(version: int, advice: str) -> None:
    changed = stored() | {"format_version": int32("format_version", version)}
    with pytest.raises(ContractError) as caught:
        fields.from_engine_fields(changed.values(), "nz")
    text = str(caught.value)
    assert f"format {version}" in text and "nonzero-rewrite 9.9" in text and advice in text
    assert "NonZeroPlugin" in text and "version 1" in text and "'nonzero_rewrite'" in text


def test_a_newer_format_is_recognised_whatever_else_it_holds() -> None:
    only = [int32("format_version", 7)]
    with pytest.raises(ContractError, match="install a newer"):
        fields.from_engine_fields(only)


def test_engine_without_any_field_says_they_were_lost() -> None:
    with pytest.raises(ContractError, match="'format_version' is missing"):
        fields.from_engine_fields([])


@pytest.mark.parametrize(
    ("given_fields", "text"),
    [
        ([int32("perm", 0, 1)], "'backend' is missing"),
        ([char("backend", b"cupy")], "'perm' is missing"),
        ([char("backend", b"cuda"), int32("perm", 0, 1)], "backend 'cuda' is unknown"),
        ([char("backend", b"cupy"), int32("perm", 0)], "perm has 1 values"),
        ([char("backend", b"cupy"), int32("perm", 0, 0)], r"perm \(0, 0\)"),
        ([char("backend", b"cupy"), int32("perm", 0, 1), int32("index_type", 1)], "index_type 1"),
        ([char("backend", b"cupy"), int32("perm", 0, 1), int32("max_nonzero", 0)], "max_nonzero 0"),
        (
            [char("backend", b"cupy"), int32("perm", 0, 1), int32("max_nonzero", 1, 2)],
            "'max_nonzero' has 2 values",
        ),
        ([int32("backend", 1), int32("perm", 0, 1)], "'backend' has type INT32"),
        ([char("backend", b"cupy"), int32("perm", 0, 1), int32("other", 1)], "'other' is unknown"),
    ],
)
def test_wrong_attributes_name_the_node(given_fields: list[fields.Field], text: str) -> None:
    with pytest.raises(ContractError, match=rf"node 'nz'.*{text}"):
        fields.from_parser_fields(given_fields, "nz")
