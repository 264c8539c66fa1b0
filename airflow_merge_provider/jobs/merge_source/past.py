"""What did the last run leave: the outputs, who is a member of which, and by which keys they joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.components import Entities, Flags, Keyed, Numbers, Order, both
from airflow_merge_provider.jobs.merge_source.keys import LEFT, RIGHT

MEMBERS, STABLE_ID, REACHED = "_members", "$stable_id", "__merge_reached"
# Outputs with more members are read whether or not they are reached: each hash that reaches an output copies
# its members, and of many members many can be reached.
_LARGE = 100
ANYWAY = 0


@dataclass(frozen=True)
class Past:
    """The outputs as they stand in the target, and their members as entities of the datasets of today.

    All of them, or those that some entities and keys reach. An output is known by its ``_updated``, which no
    two rows share. ``sizes`` counts all members, also those of datasets that are no longer merged.
    ``outputs`` says for every entity of ``entities``, by the offset of its dataset, where its output stands.
    ``stable`` are stable ids, -1 where there is none.
    """

    numbers: Numbers
    ids: pa.StringArray
    deleted: Flags
    sizes: Numbers
    entities: Sequence[Entities]
    outputs: Sequence[Numbers]
    stable: Numbers


def remembered(
    rows: DataFrame, datasets: Sequence[str], rules: Sequence[Rule], seed: int, reaching: DataFrame | None
) -> Past:
    """Read the target's rows, with ids and keys hashed as the sources are.

    ``reaching`` holds hashes of ids and keys in its column REACHED, and ANYWAY: only outputs are read that
    have a member with one of them, or very many members. None reads all.
    """
    offsets = F.create_map(*(part for at, name in enumerate(datasets) for part in (F.lit(name), F.lit(at))))
    places = _places(rules)

    def hashed(member: Column) -> Column:
        offset = F.coalesce(F.try_element_at(offsets, member["dataset"]), F.lit(-1))
        return F.xxhash64(F.lit(seed), offset, member["id"])

    def hashes(member: Column) -> Column:
        keys = F.transform(member["keys"], lambda key: F.xxhash64(F.lit(seed), key["value"]))
        return F.concat(F.array(hashed(member)), keys)

    def key_hashes(member: Column) -> Column:
        return F.transform(
            member["keys"],
            lambda key: F.struct(
                F.coalesce(_place(key, places), F.lit(-1)).alias("side"),
                F.xxhash64(F.lit(seed), key["value"]).alias("key"),
                F.hash(key["value"]).cast("bigint").alias("check"),
            ),
        )

    def thin(member: Column) -> Column:
        offset = F.coalesce(F.try_element_at(offsets, member["dataset"]), F.lit(-1))
        return F.struct(
            offset.alias("source"),
            member["id"].alias("id"),
            hashed(member).alias("hash"),
            member["hash"].alias("content"),
            key_hashes(member).alias("keys"),
        )

    if reaching is not None:
        # One pass: a row is copied only for a hash that is asked for.
        own = F.array_distinct(F.flatten(F.transform(F.col(MEMBERS), hashes)))
        anyway = F.array(F.lit(ANYWAY).cast("bigint"))
        every = F.explode(F.when(F.size(F.col(MEMBERS)) > _LARGE, anyway).otherwise(own)).alias(REACHED)
        wanted = ("_updated", "_id", "_deleted", MEMBERS, STABLE_ID)
        names = [name for name in wanted if name in rows.columns]
        rows = rows.select(*names, every).join(F.broadcast(reaching), REACHED, "left_semi")
    read = rows.select(
        F.col("_updated").alias("number"),
        F.col("_id").alias("id"),
        F.coalesce(F.col("_deleted"), F.lit(False)).alias("deleted"),
        F.transform(F.coalesce(F.col(MEMBERS), F.array()), thin).alias("members"),
        (F.coalesce(F.col(STABLE_ID), F.lit(-1)) if STABLE_ID in rows.columns else F.lit(-1)).alias("stable"),
    ).toArrow()
    return _past(_each_once(read.combine_chunks()), len(datasets), places)


def _each_once(read: pa.Table) -> pa.Table:
    """Drop repeated outputs: one that is reached in several ways was read as often."""
    numbers = _numbers(read.column("number"))
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.ones(len(ordered), np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return read if first.all() else read.take(pa.array(order[first])).combine_chunks()


def _places(rules: Sequence[Rule]) -> dict[str, Order]:
    """Name the side that a kept key stands for, by the texts it is kept with."""
    ends = ((rule, end, side) for rule in rules for end, side in ((LEFT, rule.left), (RIGHT, rule.right)))
    return {f"{end} {rule.text}": side.order for rule, end, side in ends}


def _place(key: Column, places: Mapping[str, Order]) -> Column:
    if not places:
        return F.lit(-1)
    words = F.create_map(*(part for at, name in enumerate(places) for part in (F.lit(name), F.lit(at))))
    return F.try_element_at(words, F.concat(key["side"], F.lit(" "), key["rule"]))


def _past(read: pa.Table, datasets: int, places: Mapping[str, Order]) -> Past:
    numbers = _numbers(read.column("number"))
    deleted = _flags(read.column("deleted"))
    members = _flat(read.column("members"))
    row = _parents(read.column("members"))
    source = _numbers(members.field("source"))
    keys = members.field("keys")
    key_row, kept = _parents(keys), _flat(keys)
    side, key, check = (_numbers(kept.field(name)) for name in ("side", "key", "check"))
    entities, outputs = [], []
    for offset in range(datasets):
        mine = source == offset
        place = np.cumsum(mine) - 1
        by_side: dict[Order, Keyed] = {}
        for at, order in enumerate(places.values()):
            if order[0] != offset:
                continue
            here = (side == at) & mine[key_row]
            found = place[key_row[here]], key[here], check[here]
            by_side[order] = both(by_side[order], found) if order in by_side else found
        thin = Entities(
            members.field("id").filter(pa.array(mine)),
            _numbers(members.field("hash"))[mine],
            deleted[row[mine]],
            _numbers(members.field("content"))[mine],
            by_side,
        )
        entities.append(thin)
        outputs.append(row[mine])
    return Past(
        numbers,
        read.column("id").combine_chunks(),
        deleted,
        np.bincount(row, minlength=len(numbers)),
        entities,
        outputs,
        _numbers(read.column("stable")),
    )


def _flat(lists: pa.ChunkedArray | pa.Array) -> pa.Array:
    flat = pc.list_flatten(lists)
    return flat.combine_chunks() if isinstance(flat, pa.ChunkedArray) else flat


def _parents(lists: pa.ChunkedArray | pa.Array) -> Numbers:
    return _numbers(pc.list_parent_indices(lists))


def _numbers(values: pa.ChunkedArray | pa.Array) -> Numbers:
    chunked = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    numbers: Numbers = chunked.to_numpy().astype(np.int64)
    return numbers


def _flags(values: pa.ChunkedArray) -> Flags:
    flags: Flags = values.to_numpy().astype(np.bool_)
    return flags
