"""Load the state that the last run left: the outputs, their members, and the keys of the members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, functions as F

from airflow_merge_provider.core.merge_source.equality import Rule
from airflow_merge_provider.jobs.merge_source.model import (
    Entities,
    Flags,
    Keyed,
    Numbers,
    Order,
    PreviousState,
    concat_keys,
)
from airflow_merge_provider.jobs.merge_source.scan.match_keys import LEFT, RIGHT

UPDATED_IN, MEMBERS, STABLE_ID, REACHED = "_updated", "_members", "$stable_id", "__merge_reached"
STARTS, STANDS = "starts", "stands"


def load_previous_state(
    rows: DataFrame, datasets: Sequence[str], rules: Sequence[Rule], seed: int, reaching: DataFrame | None
) -> PreviousState:
    """Read the target's rows, with IDs and keys hashed like those of the sources; keys by some rules, if any.

    ``reaching`` holds hashes of IDs and keys in its column REACHED: only outputs that have a member with one
    of them are read. None reads all.
    """
    sides = _list_sides(rules)
    if reaching is not None:
        rows = rows.join(F.broadcast(_find_reached(rows, datasets, seed, reaching)), UPDATED_IN, "left_semi")
    members = _flatten_members(rows, datasets, sides, seed).toArrow()
    return _build_state(members.combine_chunks(), len(datasets), sides)


def _flatten_members(
    rows: DataFrame, datasets: Sequence[str], sides: Mapping[str, Order], seed: int
) -> DataFrame:
    """Return a row for each key of each member of each output; one without keys or members has one row too.

    STARTS marks the first row of an output, STANDS that of a member; only these rows carry strings. The
    result has rows instead of lists, because Spark compiles operations on rows.
    """
    stable = F.col(STABLE_ID) if STABLE_ID in rows.columns else F.lit(None)
    members = rows.select(
        F.col(UPDATED_IN).alias("number"),
        F.col("_id").alias("id"),
        F.coalesce(F.col("_deleted"), F.lit(False)).alias("deleted"),
        F.coalesce(stable, F.lit(-1)).cast("bigint").alias("stable"),
        F.posexplode_outer(MEMBERS).alias("at", "member"),
    )
    member, key, keys = F.col("member"), F.col("key"), {}
    starts, stands = F.coalesce("at", F.lit(0)) == 0, F.isnotnull("at")
    if sides:
        members = members.select("*", F.posexplode_outer(member["keys"]).alias("key_at", "key"))
        leads = F.coalesce("key_at", F.lit(0)) == 0
        starts, stands = starts & leads, stands & leads
        keys = {
            "side": F.coalesce(_find_side(key, sides), F.lit(-1)),
            "key": F.xxhash64(F.lit(seed), key["value"]),
            "check": F.hash(key["value"]),
        }
    offset = _find_offset(member["dataset"], datasets)
    return members.select(
        starts.alias(STARTS),
        stands.alias(STANDS),
        "number",
        F.when(starts, F.col("id")).alias("id"),
        "deleted",
        "stable",
        offset.alias("source"),
        F.when(stands, member["id"]).alias("member"),
        F.xxhash64(F.lit(seed), offset, member["id"]).alias("hash"),
        member["hash"].alias("content"),
        *(hashed.alias(name) for name, hashed in keys.items()),
    )


def _find_reached(rows: DataFrame, datasets: Sequence[str], seed: int, reaching: DataFrame) -> DataFrame:
    """Return the numbers of the outputs that have a member with one of some hashes.

    Members and keys become separate rows, which Spark compiles; it does not compile functions over lists. A
    row that carried its members along would copy them for every hash that reaches it.
    """
    members = rows.select(UPDATED_IN, F.explode(MEMBERS).alias("member"))
    member = F.col("member")
    keys = F.coalesce(member["keys"]["value"], F.array().cast("array<string>"))
    texts = F.concat(F.array(member["id"]), keys)
    text_rows = members.select(
        UPDATED_IN,
        _find_offset(member["dataset"], datasets).alias("offset"),
        F.posexplode(texts).alias("at", "text"),
    )
    of_id = F.xxhash64(F.lit(seed), F.col("offset"), F.col("text"))
    of_key = F.xxhash64(F.lit(seed), F.col("text"))
    hashed = text_rows.select(UPDATED_IN, F.when(F.col("at") == 0, of_id).otherwise(of_key).alias(REACHED))
    return hashed.join(F.broadcast(reaching), REACHED, "left_semi").select(UPDATED_IN).distinct()


def _find_offset(name: Column, datasets: Sequence[str]) -> Column:
    """Return the position of a dataset among the current ones, -1 for one that is no longer merged."""
    offsets = (F.when(name == dataset, F.lit(at)) for at, dataset in enumerate(datasets))
    return F.coalesce(*offsets, F.lit(-1))


def _list_sides(rules: Sequence[Rule]) -> dict[str, Order]:
    """Return the current side of a stored key, by the strings it is stored with."""
    ends = ((rule, end, side) for rule in rules for end, side in ((LEFT, rule.left), (RIGHT, rule.right)))
    return {f"{end} {rule.text}": side.order for rule, end, side in ends}


def _find_side(key: Column, sides: Mapping[str, Order]) -> Column:
    side_numbers = F.create_map(*(part for at, name in enumerate(sides) for part in (F.lit(name), F.lit(at))))
    return F.try_element_at(side_numbers, F.concat(key["side"], F.lit(" "), key["rule"]))


def _build_state(rows: pa.Table, datasets: int, sides: Mapping[str, Order]) -> PreviousState:
    starts, stands = _to_flags(rows.column(STARTS)), _to_flags(rows.column(STANDS))
    output, member = np.cumsum(starts) - 1, np.cumsum(stands) - 1
    of_outputs, of_members = rows.filter(pa.array(starts)), rows.filter(pa.array(stands))
    row, source = output[stands], _to_numbers(of_members.column("source"))
    deleted = _to_flags(of_outputs.column("deleted"))
    ids = _to_texts(of_members.column("member"))
    keys = _build_keys(rows, member, source, sides).items()
    entities, outputs = [], []
    for offset in range(datasets):
        is_own = source == offset
        positions = np.cumsum(is_own) - 1
        source_entities = Entities(
            ids.filter(pa.array(is_own)),
            _to_numbers(of_members.column("hash"))[is_own],
            deleted[row[is_own]],
            _to_numbers(of_members.column("content"))[is_own],
            {order: (positions[at], key, check) for order, (at, key, check) in keys if order[0] == offset},
        )
        entities.append(source_entities)
        outputs.append(row[is_own])
    return PreviousState(
        _to_numbers(of_outputs.column("number")),
        _to_texts(of_outputs.column("id")),
        deleted,
        np.bincount(row, minlength=len(deleted)),
        entities,
        outputs,
        _to_numbers(of_outputs.column("stable")),
    )


def _build_keys(
    rows: pa.Table, member: Numbers, source: Numbers, sides: Mapping[str, Order]
) -> dict[Order, Keyed]:
    """Return the keys of all members, by their current side."""
    if not sides:
        return {}
    side, key, check = (_to_numbers(rows.column(name)) for name in ("side", "key", "check"))
    by_side: dict[Order, Keyed] = {}
    for at, order in enumerate(sides.values()):
        is_side = side == at
        # A key by which an entity of another dataset was joined does not belong to this side.
        is_side[is_side] = source[member[is_side]] == order[0]
        keyed = member[is_side], key[is_side], check[is_side]
        by_side[order] = _drop_duplicates(concat_keys(by_side[order], keyed)) if order in by_side else keyed
    return by_side


def _drop_duplicates(keyed: Keyed) -> Keyed:
    """Drop repeated keys of a member, which stores a key once for every rule that contains it."""
    members, hashes, checks = keyed
    order = np.lexsort((checks, hashes, members))
    ordered = [values[order] for values in keyed]
    new = np.ones(len(order), np.bool_)
    new[1:] = np.any([values[1:] != values[:-1] for values in ordered], axis=0)
    positions = np.sort(order[new])
    return members[positions], hashes[positions], checks[positions]


def _to_texts(values: pa.ChunkedArray) -> pa.StringArray:
    return values.combine_chunks()


def _to_numbers(values: pa.ChunkedArray) -> Numbers:
    numbers: Numbers = pc.fill_null(values, 0).to_numpy().astype(np.int64)
    return numbers


def _to_flags(values: pa.ChunkedArray) -> Flags:
    flags: Flags = values.to_numpy().astype(np.bool_)
    return flags
