"""TrainingConfig: defaults, validation that names the argument, copies instead of changes, equality."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritter_accel as ta

FIELDS = (
    "default_compression_ratio",
    "seed",
    "gradient_clipping",
    "projection",
    "scaling",
    "quantize",
    "quantizer_scale",
    "quantizer_block",
)


def fields(config: ta.TrainingConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in FIELDS}


def with_option(option: str, value: Any) -> ta.TrainingConfig:
    return ta.TrainingConfig(**{option: value})


def test_defaults_are_the_reference() -> None:
    config = ta.TrainingConfig()
    assert np.float32(config.default_compression_ratio) == np.float32(0.1)
    assert config.seed == 42
    assert config.gradient_clipping is None
    assert (config.projection, config.scaling) == ("dense", "reference")
    assert (config.quantize, config.quantizer_scale, config.quantizer_block) == ("none", "reference", None)


def test_the_first_three_arguments_are_positional_and_the_options_are_not() -> None:
    config = ta.TrainingConfig(0.25, 7, 1.5)
    assert (config.default_compression_ratio, config.seed, config.gradient_clipping) == (0.25, 7, 1.5)
    too_many: list[Any] = [0.25, 7, 1.5, "dense"]
    with pytest.raises(TypeError):
        ta.TrainingConfig(*too_many)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63, 2**64 - 1, np.uint64(2**64 - 1), np.int32(5)])
def test_seed_is_any_u64(seed: int) -> None:
    assert ta.TrainingConfig(seed=seed).seed == int(seed)
    assert ta.TrainingConfig().with_seed(seed).seed == int(seed)


@pytest.mark.parametrize("seed", [-1, 2**64, 2**200, -(2**70)])
def test_seed_out_of_range(seed: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: ta.TrainingConfig(seed=seed),
        lambda: ta.TrainingConfig().with_seed(seed),
    ]
    for call in calls:
        with pytest.raises(ta.ArgumentError, match=r"^argument seed: ") as caught:
            call()
        assert caught.value.argument == "seed"


@pytest.mark.parametrize("seed", [1.0, "42", None, [1], b"1"])
def test_seed_of_another_type(seed: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: ta.TrainingConfig(seed=seed),
        lambda: ta.TrainingConfig().with_seed(seed),
    ]
    for call in calls:
        with pytest.raises(ta.ArgumentTypeError, match=r"^argument seed: ") as caught:
            call()
        assert caught.value.argument == "seed"


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.5, float("nan"), float("inf"), 1e-60])
def test_bad_ratio_raises_at_construction(ratio: float) -> None:
    with pytest.raises(ta.InvalidRatioError):
        ta.TrainingConfig(ratio)
    with pytest.raises(ta.InvalidRatioError):
        ta.TrainingConfig().with_compression_ratio(ratio)


def test_a_ratio_is_judged_as_the_float32_that_it_becomes() -> None:
    assert ta.TrainingConfig(1.0 + 1e-9).default_compression_ratio == 1.0
    assert ta.TrainingConfig(1e-40).default_compression_ratio > 0  # a subnormal is still above 0


def test_ratio_of_another_type() -> None:
    ratio: Any = "0.1"
    with pytest.raises(TypeError):
        ta.TrainingConfig(ratio)


@pytest.mark.parametrize("limit", [-1.0, float("nan"), -float("inf")])
def test_bad_clipping_limit(limit: float) -> None:
    calls: list[Callable[[], object]] = [
        lambda: ta.TrainingConfig(gradient_clipping=limit),
        lambda: ta.TrainingConfig().with_gradient_clipping(limit),
    ]
    for call in calls:
        with pytest.raises(ta.ArgumentError) as caught:
            call()
        assert caught.value.argument == "gradient_clipping"


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("projection", ["dense", "hadamard", "topk", "none"]),
        ("scaling", ["reference", "unbiased", "contractive"]),
        ("quantize", ["none", "bfloat16", "ternary", "sign", "levels2", "levels4"]),
        ("quantizer_scale", ["reference", "least_squares", "unbiased"]),
    ],
)
def test_options_take_their_choices_and_name_them_otherwise(option: str, choices: list[str]) -> None:
    for choice in choices:
        assert getattr(with_option(option, choice), option) == choice
    with pytest.raises(ta.ArgumentError, match=rf"^argument {option}: ") as caught:
        with_option(option, "fourier")
    assert caught.value.argument == option
    assert "fourier" in str(caught.value)
    for choice in choices:
        assert choice in str(caught.value)


@pytest.mark.parametrize("block", [64, 128, 4096, 2**32 - 64, np.uint32(64)])
def test_a_block_is_a_multiple_of_64(block: int) -> None:
    assert ta.TrainingConfig(quantizer_block=block).quantizer_block == int(block)


@pytest.mark.parametrize("block", [0, 1, 63, 65, -64, 2**32, 2**70])
def test_another_block_is_refused(block: int) -> None:
    with pytest.raises(ta.ArgumentError, match=r"^argument quantizer_block: ") as caught:
        ta.TrainingConfig(quantizer_block=block)
    assert caught.value.argument == "quantizer_block"


@pytest.mark.parametrize("block", [64.0, "64", [64]])
def test_a_block_of_another_type_is_refused(block: Any) -> None:
    with pytest.raises(ta.ArgumentTypeError, match=r"^argument quantizer_block: "):
        ta.TrainingConfig(quantizer_block=block)


def test_every_projection_takes_every_scaling_but_topk_unbiased() -> None:
    for projection in ("dense", "hadamard", "topk", "none"):
        for scaling in ("reference", "unbiased", "contractive"):
            if (projection, scaling) == ("topk", "unbiased"):
                with pytest.raises(ta.ArgumentError, match=r"^argument scaling: .*topk") as caught:
                    ta.TrainingConfig(projection=projection, scaling=scaling)
                assert caught.value.argument == "scaling"
                continue
            config = ta.TrainingConfig(projection=projection, scaling=scaling)
            assert (config.projection, config.scaling) == (projection, scaling)


def test_with_methods_change_one_field_of_a_copy() -> None:
    config = ta.TrainingConfig(
        0.25,
        7,
        1.5,
        projection="hadamard",
        scaling="unbiased",
        quantize="levels2",
        quantizer_scale="least_squares",
        quantizer_block=128,
    )
    before = fields(config)
    assert fields(config.with_compression_ratio(0.5)) == {**before, "default_compression_ratio": 0.5}
    assert fields(config.with_seed(8)) == {**before, "seed": 8}
    assert fields(config.with_gradient_clipping(2.0)) == {**before, "gradient_clipping": 2.0}
    assert fields(config.with_gradient_clipping(None)) == {**before, "gradient_clipping": None}
    assert fields(config) == before


@pytest.mark.parametrize("name", [*FIELDS, "anything"])
def test_nothing_can_be_assigned(name: str) -> None:
    config = ta.TrainingConfig()
    before = fields(config)
    with pytest.raises(AttributeError):
        setattr(config, name, 1)
    assert fields(config) == before


def test_equal_configs_are_equal_and_hash_alike() -> None:
    first, second = (ta.TrainingConfig(0.25, 7, 1.5, scaling="contractive") for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert len({first, second}) == 1


@pytest.mark.parametrize(
    "other",
    [
        ta.TrainingConfig(0.5),
        ta.TrainingConfig(seed=1),
        ta.TrainingConfig(gradient_clipping=1.0),
        ta.TrainingConfig(scaling="unbiased"),
        ta.TrainingConfig(quantizer_scale="unbiased"),
        ta.TrainingConfig(projection="hadamard"),
        ta.TrainingConfig(quantize="sign"),
        ta.TrainingConfig(quantizer_block=64),
    ],
    ids=repr,
)
def test_every_field_takes_part_in_equality(other: ta.TrainingConfig) -> None:
    assert ta.TrainingConfig() != other


def test_a_config_is_not_equal_to_anything_else() -> None:
    others: list[Any] = [42, "TrainingConfig", None, (0.1, 42, None)]
    for other in others:
        assert ta.TrainingConfig() != other


def test_pickle_and_copy() -> None:
    config = ta.TrainingConfig(
        0.25,
        2**64 - 1,
        1.5,
        projection="topk",
        scaling="contractive",
        quantize="levels4",
        quantizer_scale="unbiased",
        quantizer_block=64,
    )
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(config, protocol)) == config
    assert copy.copy(config) == config
    assert copy.deepcopy(config) == config


def test_repr_shows_what_matters_in_one_line() -> None:
    config = ta.TrainingConfig(
        0.25, 7, 1.5, projection="hadamard", scaling="unbiased", quantize="sign", quantizer_block=64
    )
    text = repr(config)
    assert "\n" not in text
    assert text.startswith("TrainingConfig(")
    for part in ("0.25", "seed=7", "1.5", "'hadamard'", "'unbiased'", "'sign'", "quantizer_block=64"):
        assert part in text
    assert eval(text, {"TrainingConfig": ta.TrainingConfig}) == config
