"""Linear maps of the int8 form are exact sums of whole numbers, also where a processor adds in 16
bits.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from aveyb_retrieval.encoder.onnx.graph import LARGEST_WEIGHT, Graph, Int8, round_weight

RNG = np.random.default_rng(0)


def product(x: np.ndarray, weight: np.ndarray, *, positive: bool) -> np.ndarray:
    """`x @ weight.T` by the int8 form, its weights rounded for rows like `x`."""
    graph = Graph()
    linear = Int8(graph)
    made, _ = linear.product(linear.rows("x", positive=positive), weight, x, "w")
    graph.op("Identity", made, name="y")
    content = graph.model(
        [("x", "FLOAT", ["R", x.shape[1]])], ("y", "FLOAT", ["R", len(weight)]), {}
    )
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def exact(x: np.ndarray, weight: np.ndarray, *, positive: bool) -> np.ndarray:
    """The same in float64, from the same rounded rows and weights."""
    step = np.abs(x).max(axis=1, keepdims=True) * np.float32(1 / (255 if positive else 127))
    codes, scale = round_weight(weight, x)
    return np.rint(x / step).astype(np.float64) @ codes.T.astype(np.float64) * step * scale


@pytest.mark.parametrize("positive", [False, True])
def test_sums_of_the_largest_products_do_not_overflow(positive: bool) -> None:
    # Pairs of 255 * 64 or -127 * -64 (stored as 1 to 255 beside a zero of 128): with weights of 127
    # they would not fit into the 16 bits of processors without VNNI.
    x = np.ones((40, 256), np.float32)
    weight = np.ones((96, 256), np.float32)
    weight[1::2] = -1
    np.testing.assert_allclose(product(x, weight, positive=positive), x @ weight.T, rtol=1e-5)
    if not positive:
        np.testing.assert_allclose(product(-x, weight, positive=False), -x @ weight.T, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("positive", [False, True])
def test_a_product_is_that_of_the_rounded_numbers(rows: int, positive: bool) -> None:
    x = RNG.standard_normal((rows, 200)).astype(np.float32) * np.exp(
        RNG.standard_normal((rows, 1))
    ).astype(np.float32)
    x = np.square(x) if positive else x
    weight = RNG.standard_normal((65, 200)).astype(np.float32)
    found, expected = product(x, weight, positive=positive), exact(x, weight, positive=positive)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_weights_are_rounded_for_the_rows_they_meet() -> None:
    """What products lose over rows like the sample's is less than by the nearest codes, and its
    mean is told.
    """
    sample = (RNG.standard_normal((400, 8)) @ RNG.standard_normal((8, 64)) + 1).astype(np.float32)
    weight = RNG.standard_normal((32, 64)).astype(np.float32)
    codes, scale = round_weight(weight, sample)
    assert np.abs(codes).max() == LARGEST_WEIGHT
    nearest = np.rint(weight / scale[:, None])
    lost, by_nearest = ((weight - kept * scale[:, None]) @ sample.T for kept in (codes, nearest))
    assert np.square(lost).mean() < 0.5 * np.square(by_nearest).mean()
    linear = Int8(Graph())
    _, told = linear.product(linear.rows("x"), weight, sample, "w")
    np.testing.assert_allclose(told, lost.mean(axis=1), atol=1e-4)


def test_rows_and_weights_of_zeros_stay_zeros() -> None:
    x, weight = np.zeros((3, 16), np.float32), np.ones((4, 16), np.float32)
    assert not product(x, weight, positive=False).any()
    assert not product(
        np.ones((3, 16), np.float32), np.zeros((4, 16), np.float32), positive=True
    ).any()
