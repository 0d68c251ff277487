"""Values in files without pickle: as they were, and nothing is executed."""

import numpy as np
import pandas as pd
import pytest

import leaveout as lo
from leaveout._runtime import packing
from leaveout._runtime.packing import Lacking, pack, unpack


def test_nothing_in_a_file_is_executed():
    """Records are made without their constructors, and of this package's rooms of models alone."""
    model = lo.GLM([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0], "logistic")
    arrays = pack({"model": model})
    kind = f"{type(model).__module__}:GLM"
    for other in (
        "os:system",
        "builtins:str",
        "leaveout.extensions.cli:app",
        "leaveout.optimize.fit:fit",
        "leaveout.optimize.fit:np",
    ):
        wrong = str(arrays["model"]).replace(kind, other)
        assert wrong.count(other) == 1
        with pytest.raises(ValueError, match=f"{other} is no record"):
            unpack(arrays | {"model": np.array(wrong)})
    lacking = unpack(pack({"function": print, "class": lo.GLM}))
    assert all(isinstance(part, Lacking) for part in lacking.values())


VALUES = {
    "plain": (None, True, 3, -0.0, float("inf"), "ä", [1, [2]], {"a": (), 2: {"b": 1}}),
    "arrays": [np.arange(3), np.asfortranarray(np.eye(2)), np.float64(0.1), np.array(["a", "bc"])],
    "objects": np.array([["a", 1], [None, 2.5]], object),
    "sets": frozenset({"a"}),
    "indices": [pd.RangeIndex(3, name="k"), pd.Index(["a", "b"], name="unit"), pd.Index([1.5])],
    "strategy": lo.Exact(1e-5),
}


def test_values_are_packed_without_loss():
    packed = pack(VALUES)
    assert all(array.dtype != object for array in packed.values())
    values = unpack(packed)
    assert repr(values) == repr(VALUES)
    assert values["arrays"][1].flags.f_contiguous and type(values["arrays"][2]) is np.float64
    table = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [True, False]}, ["r", "s"])
    shared = [table.index, table]
    ((first, second),) = unpack(pack({"both": (shared, shared)})).values()
    assert first is second and first[1].index is first[0]
    pd.testing.assert_frame_equal(first[1], table)
    lacking = unpack(pack({"table": pd.DataFrame({"a": pd.Categorical(["x"])})}))
    assert lacking["table"].endswith("CategoricalIndex")


def test_large_data_are_not_copied(monkeypatch):
    monkeypatch.setattr(packing, "MAX_PACKED_BYTES", 100)
    packed = pack({"small": np.zeros(10), "large": [np.zeros(10), np.zeros(10)]})
    assert len(packed) == 3 and unpack(packed)["large"] == "more than 256 MiB"
