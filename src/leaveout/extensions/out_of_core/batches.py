"""Rows in batches: datasets of Arrow and Parquet files, memory maps and arrays, collections of
Dask.

They consist of parts, which other processes may read: row groups of Parquet files, other fragments
of a dataset, partitions of a collection, slices of an array. Each part is read a block of rows at a
time, in float64, and no two blocks are kept, but by the workers of a cluster.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from ...developer import (
    DENSE_BLOCK,
    AnyTuple,
    ArrayList,
    ArrayTuple,
    NumpyArray,
    PerRow,
    Strings,
    describe_rows,
    is_mapped,
    map_rows,
    numbers,
    optional,
    record,
)

ReadRows = tuple[NumpyArray, ArrayList]
PART_ROWS = 2**18  # number of rows in a part of an array


class RowBlock(NamedTuple):
    """Consecutive rows, from number `start` on, each with a final one if the model has an
    intercept, and the labels of their groups, or their numbers.
    """

    start: int
    x: Float[NumpyArray, "rows params"]
    y: PerRow
    weight: PerRow
    offset: PerRow
    labels: NumpyArray


class Roles(NamedTuple):
    """Names of the columns by their roles; for arrays, whether there are weights and offsets."""

    features: Strings
    target: str
    weight: str | None
    offset: str | None
    group: str | None

    @property
    def vectors(self) -> list[str]:
        return [name for name in self[1:] if name is not None]


@record
class FilePart:
    """The rows `start` to `start + count`.

    `label` describes their place, `rows` reads them, `identity` identifies them.
    """

    number: int
    start: int
    count: int
    label: str
    rows: Any
    identity: Any


@record
class Batches:
    """All parts of the data and their columns.

    Dask gives the blocks of parts that are `delayed`.
    """

    parts: tuple[FilePart, ...]
    roles: Roles
    delayed: bool = False
    number: int = 0  # number of parts, if these are elsewhere

    @property
    def count(self) -> int:
        if self.parts:
            return self.parts[-1].start + self.parts[-1].count
        return 0

    def blocks(self, part: FilePart, ones: bool) -> Iterator[RowBlock]:
        """Yield the rows in checked blocks.

        ValueError if a value is missing or infinite, with its row and part.
        """
        if isinstance(part.rows, list):  # blocks that a worker keeps
            yield from part.rows
            return
        features = len(self.roles.features)
        start = part.start
        for x, vectors in part.rows.read(self.roles, max(1, DENSE_BLOCK // (features + 1))):
            if x.flags.f_contiguous:
                design = np.empty((features + ones, len(x)), float).T
            else:
                design = np.empty((len(x), features + ones))
            design[:, :features] = x
            design[:, features:] = 1.0
            labels = start + np.arange(len(x))
            if self.roles.group is not None:
                *vectors, labels = vectors
                missing = pd.isna(labels)
                if missing.any():
                    row = start + int(np.argmax(missing))
                    raise ValueError(
                        f"scan: the group in {self.where(part, row)} is missing; give it a name, or drop such rows."
                    )
                if labels.dtype == object:
                    kinds = {type(label).__name__ for label in labels}
                    if len(kinds) > 1:
                        raise ValueError(
                            f"scan: the groups of {self.where(part, start)} are of several types, {', '.join(sorted(kinds))}; "
                            "make them one, as by .astype(str)."
                        )
                    is_number = isinstance(labels[0], int | float | np.number)
                    labels = np.array(labels.tolist()) if is_number else labels.astype(str)
            vector_by_name: dict[Any, NumpyArray] = {
                name: vector.astype(float)
                for name, vector in zip(self.roles.vectors, vectors, strict=False)
            }
            for array, names in (
                (design, self.roles.features),
                *((vector_by_name[name][:, None], (name,)) for name in vector_by_name),
            ):
                self._check(part, start, array, names)
            weight = vector_by_name.get(self.roles.weight, np.ones(len(x)))
            offset = vector_by_name.get(self.roles.offset, np.zeros(len(x)))
            if (weight < 0).any():
                row = int(np.argmax(weight < 0))
                raise ValueError(
                    f"scan: the weight {weight[row]:g} in {self.where(part, start + row)} is below zero."
                )
            y = vector_by_name[self.roles.target]
            yield RowBlock(start, design, y, weight, offset, labels)
            start += len(x)

    def _check(self, part: FilePart, start: int, array: NumpyArray, names: Sequence[str]) -> None:
        if np.isfinite(array).all():
            return
        row, column = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(
            f"scan: column {names[column]!r} is {array[row, column]:g} in {self.where(part, start + row)}; drop such "
            "rows, or impute."
        )

    def where(self, part: FilePart, row: int) -> str:
        """Describe the place of a row in the data."""
        inside = (
            f"row {row - part.start} of batch {part.number} of {self.number or len(self.parts)}"
        )
        return f"row {row} ({inside}, {part.label})"


@record
class Fragment:
    """Part of an Arrow dataset."""

    fragment: Any

    def read(self, roles: Roles, size: int) -> Iterator[ReadRows]:
        names = list(dict.fromkeys([*roles.features, *roles.vectors]))
        for batch in self.fragment.to_batches(
            columns=names,
            batch_size=size,
            batch_readahead=0,
            fragment_readahead=0,
            use_threads=False,
        ):
            if batch.num_rows:
                yield _columns(batch, roles)


def _columns(batch, roles: Roles) -> ReadRows:
    """Return features and other columns of some rows of Arrow."""
    x = np.empty((len(roles.features), len(batch)))
    for k, name in enumerate(roles.features):
        x[k] = _floats(batch.column(name))
    vectors = [_floats(batch.column(name)) for name in roles.vectors if name != roles.group]
    if roles.group is not None:
        vectors.append(np.asarray(batch.column(roles.group)))
    return x.T, vectors


def _floats(column) -> NumpyArray:
    """Convert a column of Arrow to numbers, with NaN for missing values."""
    if column.null_count:
        import pyarrow as pa

        column = column.cast(pa.float64())
    return np.asarray(column)


@record
class Frame:
    """Rows of an Arrow table that is in memory, or of a partition of a data frame of Dask, in
    pandas.
    """

    frame: Any

    def read(self, roles: Roles, size: int) -> Iterator[ReadRows]:
        for start in range(0, len(self.frame), size):
            if not isinstance(self.frame, pd.DataFrame):
                yield _columns(self.frame.slice(start, size), roles)
                continue
            chunk = self.frame.iloc[start : start + size]
            x = numbers("scan", "data", chunk[list(roles.features)])
            vectors = [
                numbers("scan", name, chunk[name]) for name in roles.vectors if name != roles.group
            ]
            if roles.group is not None:
                vectors.append(chunk[roles.group].to_numpy())
            yield x, vectors


@record
class Slice:
    """Rows of arrays of features and of single numbers.

    A memory map is sent to other processes by the name of its file.
    """

    x: NumpyArray
    vectors: ArrayTuple

    def read(self, roles: Roles, size: int) -> Iterator[ReadRows]:
        del roles
        for start in range(0, len(self.x), size):
            chunk = slice(start, start + size)
            yield (
                numbers("scan", "data", self.x[chunk]),
                [np.asarray(part[chunk]) for part in self.vectors],
            )

    def __reduce__(self) -> AnyTuple:
        return Slice._again, (describe_rows(self.x), tuple(map(describe_rows, self.vectors)))

    @classmethod
    def _again(cls, x, vectors: AnyTuple) -> "Slice":
        return cls(map_rows(x), tuple(map(map_rows, vectors)))


def open_parts(
    data: Any,
    target: Any,
    columns: Sequence[str] | None,
    weight: Any,
    offset: Any,
    groups: Any = None,
) -> Batches:
    """Open data of any of these kinds as parts. TypeError for other data, or no numbers.

    ValueError for unknown columns.
    """
    if isinstance(data, str | os.PathLike):
        data = _dataset(data)
    module = type(data).__module__.split(".")[0]
    if module == "pyarrow":
        return _of_arrow(data, (target, columns, weight, offset, groups))
    if module in ("dask", "dask_expr"):
        return _of_dask(data, (target, columns, weight, offset, groups))
    if isinstance(data, NumpyArray):
        return _of_arrays(data, target, weight, offset, groups)
    raise TypeError(
        f"scan: data must be the name of a Parquet file, of a folder or pattern of them, a dataset of pyarrow, a memory "
        f"map or an array, or a collection of Dask; got {type(data).__name__}. A frame in memory is read by lo.GLM."
    )


def _dataset(name: str | os.PathLike):
    """Open the dataset of Parquet or CSV files of that name."""
    with optional("scan: Parquet files are read by pyarrow: pip install 'leaveout[parquet]'"):
        import pyarrow.dataset as ds
    text = os.fspath(name)
    store = None
    if "://" in text:
        with optional(
            f"scan: {text} is read by fsspec: pip install fsspec, and what it needs for this store."
        ):
            import fsspec
        store, path = fsspec.url_to_fs(text)
        files = sorted(store.glob(path))
    else:
        files = sorted(glob.glob(text)) or [text] * Path(text).exists()
    if not files:
        raise ValueError(f"scan: there is no file {text}.")
    kind = "parquet"
    if files[0].endswith(".csv"):
        kind = "csv"
    try:
        return ds.dataset(files if len(files) > 1 else files[0], filesystem=store, format=kind)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"scan: {text} does not read as {kind}; write it as Parquet, or as CSV that ends in .csv."
        ) from error


def _roles(request: AnyTuple, numeric: dict[str, bool]) -> Roles:
    """Assign the columns to their roles; all that have no other role are features."""
    target, columns, weight, offset, groups = request
    roles = {"target": target, "sample_weight": weight, "offset": offset, "groups": groups}
    for role, name in roles.items():
        if not isinstance(name, str) and (name is not None or role == "target"):
            raise TypeError(
                f"scan: {role} must be the name of a column of the data; got {type(name).__name__}."
            )
    role_columns = {*filter(None, roles.values())}
    if columns is None:
        columns = [name for name in numeric if name not in role_columns]
    features = tuple(columns)
    missing = [name for name in [*features, *role_columns] if name not in numeric]
    if missing:
        available = ", ".join(list(numeric)[:10])
        raise ValueError(
            f"scan: the data have no columns {', '.join(map(repr, missing[:5]))}; there are {available}."
        )
    role_columns.discard(groups)
    wrong = [name for name in [*features, *role_columns] if not numeric[name]]
    if wrong:
        raise TypeError(
            f"scan: these columns hold no numbers: {', '.join(map(repr, wrong[:5]))}. Leave them out by columns=[...], or "
            "encode them."
        )
    if not features:
        raise ValueError("scan: no column is left for the features.")
    return Roles(features, target, weight, offset, groups)


def _number_parts(listed: Sequence[tuple[int, str, Any, Any]]) -> tuple[FilePart, ...]:
    """Number the parts from their numbers of rows; empty parts are left out."""
    parts = list[FilePart]()
    start = 0
    for count, label, rows, identity in listed:
        if count:
            parts.append(FilePart(len(parts), start, count, label, rows, identity))
            start += count
    return tuple(parts)


def _of_arrow(data, request: AnyTuple) -> Batches:
    import pyarrow as pa
    import pyarrow.dataset as ds

    if isinstance(data, ds.InMemoryDataset):
        data = data.to_table()
    if not isinstance(data, pa.Table | ds.Dataset):
        raise TypeError(
            f"scan: data must be a dataset or a table of pyarrow; got {type(data).__name__}."
        )
    kinds = pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal
    numeric = {field.name: any(kind(field.type) for kind in kinds) for field in data.schema}
    listed = list[tuple[int, str, Any, Any]]()
    if isinstance(data, pa.Table):
        for start in range(0, len(data), PART_ROWS):
            piece = data.slice(start, PART_ROWS)
            listed.append((len(piece), f"rows from {start} on", Frame(piece), piece))
        fragments = []
    else:
        fragments = data.get_fragments()
    for fragment in fragments:
        path = getattr(fragment, "path", "")
        pieces = [fragment]
        if isinstance(fragment, ds.ParquetFileFragment):
            pieces = fragment.split_by_row_group()
        for piece in pieces:
            groups = [group.id for group in getattr(piece, "row_groups", [])]
            label = (
                f"row group {groups[0]} of {Path(path).name}"
                if groups
                else Path(path).name or "a table in memory"
            )
            stamp: AnyTuple = ()
            if path:
                info = fragment.filesystem.get_file_info(path)
                stamp = info.size, info.mtime_ns
            count = (
                sum(group.num_rows for group in piece.row_groups) if groups else piece.count_rows()
            )
            listed.append((count, label, Fragment(piece), (path, groups, stamp)))
    return Batches(_number_parts(listed), _roles(request, numeric))


def _of_dask(data, request: AnyTuple) -> Batches:
    import dask

    if hasattr(data, "columns"):
        numeric = {str(name): dtype.kind in "biuf" for name, dtype in data.dtypes.items()}
        parts = data.to_delayed()
        roles = _roles(request, numeric)
        counts = dask.compute(*(dask.delayed(len)(part) for part in parts))
        listed = [
            (n, f"partition {k}", part, (data._name, k))
            for k, (n, part) in enumerate(zip(counts, parts, strict=True))
        ]
        return Batches(_number_parts(listed), roles, delayed=True)
    target, columns, weight, offset, groups = request
    if data.ndim != 2 or columns is not None:
        raise ValueError(
            "scan: an array of Dask must be [rows, features], and columns= is for frames."
        )
    data = data.rechunk({0: "auto", 1: -1})
    if np.isnan(data.chunks[0]).any():
        data = data.compute_chunk_sizes()
    by_role = {"target": target, "weight": weight, "offset": offset, "groups": groups}
    vectors = {
        role: _row_vector(role, part, data) for role, part in by_role.items() if part is not None
    }
    pieces = zip(
        data.to_delayed()[:, 0], *(part.to_delayed() for part in vectors.values()), strict=True
    )
    pair = dask.delayed(lambda x, *arrays: (x, arrays), pure=False)
    listed = [
        (n, f"chunk {k}", pair(*piece), (data.name, k))
        for k, (n, piece) in enumerate(zip(data.chunks[0], pieces, strict=True))
    ]
    return Batches(_number_parts(listed), _of_no_names(data.shape[1], vectors), delayed=True)


def _row_vector(name: str, part, data):
    """Return one number for each row, in the chunks of the rows."""
    import dask.array as da

    if not isinstance(part, da.Array):
        part = da.from_array(np.asarray(part))
    if part.shape != (data.shape[0],):
        raise ValueError(
            f"scan: {name} must have one number for each of the {data.shape[0]} rows; got shape {part.shape}."
        )
    return part.rechunk((data.chunks[0],))


def _of_no_names(features: int, vectors) -> Roles:
    roles = (name if name in vectors else None for name in ("weight", "offset", "groups"))
    return Roles(tuple(f"x{j}" for j in range(features)), "y", *roles)


def _of_arrays(x: NumpyArray, y, weight, offset, groups) -> Batches:
    if x.ndim != 2 or x.dtype.kind not in "biuf":
        raise ValueError(
            f"scan: an array must be [rows, features], of numbers; got {x.dtype} of shape {x.shape}."
        )
    by_role = {"y": y, "weight": weight, "offset": offset, "groups": groups}
    vectors = {role: part for role, part in by_role.items() if part is not None}
    for name, part in vectors.items():
        if is_mapped(part):
            vectors[name] = part
        elif name == "groups":
            if np.ma.is_masked(part):
                part = pd.Series(part)
            vectors[name] = np.asarray(part)
        else:
            vectors[name] = numbers("scan", name, part)
        if vectors[name].shape != (len(x),):
            raise ValueError(
                f"scan: {name} must have one number for each of the {len(x)} rows; got shape {np.shape(part)}."
            )
    if "y" not in vectors:
        raise TypeError("scan: target must be given: an array of one number a row.")
    listed = []
    for start in range(0, len(x), PART_ROWS):
        chunk = slice(start, min(start + PART_ROWS, len(x)))
        rows = Slice(x[chunk], tuple(part[chunk] for part in vectors.values()))
        if isinstance(x, np.memmap):
            identity = describe_rows(x[chunk])
        else:
            identity = x[chunk]
        listed.append(
            (chunk.stop - chunk.start, f"rows from {start} on", rows, (identity, rows.vectors))
        )
    return Batches(_number_parts(listed), _of_no_names(x.shape[1], vectors))


def fill_part(part: FilePart, rows: Any) -> FilePart:
    """Return a delayed part with the rows that Dask computed."""
    if isinstance(rows, pd.DataFrame):
        rows = Frame(rows)
    elif not isinstance(rows, list):
        rows = Slice(*rows)
    return replace(part, rows=rows)
