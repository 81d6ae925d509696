"""Linear maps of the int8 form are exact sums of whole numbers, also where a processor adds in 16 bits."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from aveyb_retrieval.encoder.onnx.export import LARGEST_WEIGHT, Graph, Int8

RNG = np.random.default_rng(0)


def product(x: np.ndarray, weight: np.ndarray, *, positive: bool) -> np.ndarray:
    """`x @ weight.T` by the int8 form."""
    graph = Graph()
    linear = Int8(graph)
    graph.op("Identity", linear.product(linear.rows("x", positive=positive), weight, "w"), name="y")
    content = graph.model([("x", "FLOAT", ["R", x.shape[1]])], ("y", "FLOAT", ["R", len(weight)]), {})
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def exact(x: np.ndarray, weight: np.ndarray, *, positive: bool) -> np.ndarray:
    """The same in float64, from the same rounded rows and weights."""
    step = np.abs(x).max(axis=1, keepdims=True) * np.float32(1 / (255 if positive else 127))
    scale = (np.abs(weight).max(axis=1) / LARGEST_WEIGHT).astype(np.float32)
    rows, columns = np.rint(x / step).astype(np.float64), np.rint(weight / scale[:, None]).astype(np.float64)
    return rows @ columns.T * step * scale


@pytest.mark.parametrize("positive", [False, True])
def test_sums_of_the_largest_products_do_not_overflow(positive: bool) -> None:
    # Pairs of 255 * 64 or -127 * -64 (stored as 1 to 255 beside a zero of 128): with weights of 127 they would not fit
    # into the 16 bits of processors without VNNI.
    x = np.ones((40, 256), np.float32)
    weight = np.ones((96, 256), np.float32)
    weight[1::2] = -1
    np.testing.assert_allclose(product(x, weight, positive=positive), x @ weight.T, rtol=1e-5)
    if not positive:
        np.testing.assert_allclose(product(-x, weight, positive=False), -x @ weight.T, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("positive", [False, True])
def test_a_product_is_that_of_the_rounded_numbers(rows: int, positive: bool) -> None:
    x = RNG.standard_normal((rows, 200)).astype(np.float32) * np.exp(RNG.standard_normal((rows, 1))).astype(np.float32)
    x = np.square(x) if positive else x
    weight = RNG.standard_normal((65, 200)).astype(np.float32)
    found, expected = product(x, weight, positive=positive), exact(x, weight, positive=positive)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_rows_and_weights_of_zeros_stay_zeros() -> None:
    x, weight = np.zeros((3, 16), np.float32), np.ones((4, 16), np.float32)
    assert not product(x, weight, positive=False).any()
    assert not product(np.ones((3, 16), np.float32), np.zeros((4, 16), np.float32), positive=True).any()
