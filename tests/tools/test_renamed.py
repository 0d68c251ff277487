"""Renames are told from other changes, whatever scope a name stands in."""

import pytest
import renamed

MODULE = """
import numpy as np
from functools import partial

SCALE = 2.0

class Batch:
    found: float = 0.0

    def __init__(self, own):
        \"\"\"The batch.\"\"\"
        self.given = own

    def total(self, at=0):
        return self.given + at

def _shift(own, *, at):
    kept = [own + each for each in own if each > at]

    def told(each):
        nonlocal kept
        kept = each
        return lambda own: own + at

    total = 0
    for each in kept:
        total += SCALE * each
    try:
        return told(total), _shift(own, at=at), {own: at for own, at in kept}
    except ValueError as lost:
        raise TypeError(str(lost)) from lost

def spread(rows):
    np.add.given(rows, 0, 1)
    return rows.with_values(given=rows), np.sum(rows, at=0)

def public(found):
    return getattr(found, "given"), partial(_shift, at=len(found))
"""


def compared(*changes, exported=""):
    module = MODULE + exported
    changed = module
    for old, new in changes:
        assert old in changed
        changed = changed.replace(old, new)
    return renamed.Comparison({"m/__init__.py": module}, {"m/__init__.py": changed})


@pytest.mark.parametrize(
    "changes",
    [
        [('"""The batch."""', '"""Rows."""'), ("\n    try", "  # it may fail\n\n    try")],
        [("kept = [own + each for each in own if each", "kept = [own + row for row in own if row")],
        [("kept", "rows")],
        [("lambda own: own + at", "lambda row: row + at")],
        [
            (
                "each in kept:\n        total += SCALE * each",
                "row in kept:\n        total += SCALE * row",
            )
        ],
        [("as lost", "as error"), ("str(lost)", "str(error)"), ("from lost", "from error")],
        [("told", "add"), ("{own: at for own, at in kept}", "{a: b for a, b in kept}")],
        [("np", "numpy")],
        [("self.given", "self.values"), ('"given"', '"values"'), ("(given=", "(values=")],
        [
            ("_shift(own, *, at)", "_shift(own, *, shift)"),
            ("> at]", "> shift]"),
            ("own + at\n\n", "own + shift\n\n"),
            ("at=at", "shift=shift"),
            ("at=len", "shift=len"),
        ],
        [("_shift", "_moved")],
    ],
)
def test_renames_are_no_difference(changes):
    assert compared(*changes).differences == []


@pytest.mark.parametrize(
    "changes",
    [
        [("self.given + at", "self.given - at")],
        [("SCALE * each", "SCALE * total")],
        # two names become one
        [("own + each for each in own if each", "own + each for own in own if own")],
        [("total += SCALE * each", "at += SCALE * each")],
        [("nonlocal kept\n        ", "")],  # a variable of its own
        [("lambda own: own + at", "lambda at: at + at")],
        [("told(total)", "len(total)")],
        [("for each in kept:", "for row in kept:")],  # a use that still has the old name
        [("at=at", "by=at")],  # a keyword without its parameter
        [("self.given + at", "self.values + at")],  # an attribute that nothing sets
        [('"given"', '"taken"')],
        [("> at]", "> SCALE]")],
        [("SCALE = 2.0", "SCALE = 2.5")],
        [("for each in kept", "for each in own")],
        [("own, *, at", "own, at")],
        [("if each > at", "if at < each")],
        [("{own: at for own, at in kept}", "{at: own for own, at in kept}")],
        [("from lost", "from None")],
        [
            ("self.given", "self.values"),
            ('"given"', '"values"'),
            ("(given=", "(values="),
            ("np.add.given", "np.add.values"),  # of another library
        ],
        [("self.given", "self.values"), ('"given"', '"values"')],  # a keyword is left behind
        [("rows, at=0", "rows, shift=0"), ("at=0):", "shift=0):"), ("given + at", "given + shift")],
    ],
)
def test_anything_else_is(changes):
    assert compared(*changes).differences


def test_the_map_says_what_was_renamed_and_how_often():
    changes = [("self.given", "self.values"), ('"given"', '"values"'), ("(given=", "(values=")]
    renames = compared(*changes).renames
    kinds = ("field", "attribute", "string", "keyword")
    assert [renames[kind][("given", "values")] for kind in kinds] == [1, 1, 1, 1]


def test_what_is_exported_keeps_its_names():
    exported = '\n__all__ = ["public", "Batch"]\n'
    assert not compared(("kept", "rows"), exported=exported).differences
    for old, new in (("found)", "values)"), ("public", "open"), ("at=0", "by=0")):
        assert compared((old, new), exported=exported).differences


def test_a_module_in_one_version_alone_is_a_difference():
    assert renamed.Comparison({"m.py": MODULE}, {"n.py": MODULE}).differences


def test_a_room_of_the_library_equals_itself():
    texts = {path: text for path, text in renamed.texts(None).items() if "/plans/" in path}
    assert min(len(renamed.Row(text).tokens) for text in texts.values()) > 0
    changed = {path: f"{text}# more\n" for path, text in texts.items()}
    assert len(texts) > 3 and not renamed.Comparison(texts, changed).differences
