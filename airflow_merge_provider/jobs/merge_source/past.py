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

NUMBER, MEMBERS, STABLE_ID, REACHED = "_updated", "_members", "$stable_id", "__merge_reached"


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

    ``reaching`` holds hashes of ids and keys in its column REACHED: only outputs are read that have a member
    with one of them. None reads all.
    """
    places = _places(rules)

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
        offset = _offset(member["dataset"], datasets)
        return F.struct(
            offset.alias("source"),
            member["id"].alias("id"),
            F.xxhash64(F.lit(seed), offset, member["id"]).alias("hash"),
            member["hash"].alias("content"),
            key_hashes(member).alias("keys"),
        )

    if reaching is not None:
        rows = rows.join(F.broadcast(_reached(rows, datasets, seed, reaching)), NUMBER, "left_semi")
    read = rows.select(
        F.col(NUMBER).alias("number"),
        F.col("_id").alias("id"),
        F.coalesce(F.col("_deleted"), F.lit(False)).alias("deleted"),
        F.transform(F.coalesce(F.col(MEMBERS), F.array()), thin).alias("members"),
        (F.coalesce(F.col(STABLE_ID), F.lit(-1)) if STABLE_ID in rows.columns else F.lit(-1)).alias("stable"),
    ).toArrow()
    return _past(read.combine_chunks(), len(datasets), places)


def _reached(rows: DataFrame, datasets: Sequence[str], seed: int, reaching: DataFrame) -> DataFrame:
    """Give the numbers of the outputs that have a member with one of some hashes.

    Members and keys become rows of their own, which Spark compiles; functions over lists it does not. And a
    row that carried its members along would copy them for every hash that reaches it.
    """
    members = rows.select(NUMBER, F.explode(MEMBERS).alias("member"))
    member = F.col("member")
    keys = F.coalesce(member["keys"]["value"], F.array().cast("array<string>"))
    texts = F.concat(F.array(member["id"]), keys)
    each = members.select(
        NUMBER, _offset(member["dataset"], datasets).alias("offset"), F.posexplode(texts).alias("at", "text")
    )
    of_id = F.xxhash64(F.lit(seed), F.col("offset"), F.col("text"))
    of_key = F.xxhash64(F.lit(seed), F.col("text"))
    hashed = each.select(NUMBER, F.when(F.col("at") == 0, of_id).otherwise(of_key).alias(REACHED))
    return hashed.join(F.broadcast(reaching), REACHED, "left_semi").select(NUMBER).distinct()


def _offset(name: Column, datasets: Sequence[str]) -> Column:
    """Give the place of a dataset among those of today, -1 of one that is no longer merged."""
    places = (F.when(name == dataset, F.lit(at)) for at, dataset in enumerate(datasets))
    return F.coalesce(*places, F.lit(-1))


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
