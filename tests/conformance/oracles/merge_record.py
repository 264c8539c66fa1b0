"""Oracle of MergeRecord, slow and simple: the defined algorithm, step by step over plain dictionaries."""

from __future__ import annotations

from typing import Any

LIMITS = {"min_records": 1, "max_records": 1000, "min_bytes": 0, "max_bytes": None, "age": None, "bins": 10}


def simulate_runs(settings: dict[str, Any], triggers: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Run triggers of ``{"at": seconds, "files": […]}``; return the ends (trigger, outcome, reason, names).

    A file is ``{"name", "group", "records", "bytes", "bad", "count"}``. Open bins come last: (-1, "open", …).
    """
    rules = {**LIMITS, "defragment": False, "drain": True, **settings}
    bins: list[dict[str, Any]] = []
    log: list[tuple[Any, ...]] = []
    for number, trigger in enumerate(triggers):
        now, files = trigger["at"], trigger["files"]
        for file in files:
            _offer_file(rules, bins, number, now, file, log)
        for bin_ in bins[:]:
            if _is_old(rules, bin_, now):
                _end_bin(rules, bins, number, bin_, "AGE", log)
        for bin_ in bins[:]:
            if (rules["drain"] or not files) and _has_enough(rules, bin_):
                _end_bin(rules, bins, number, bin_, "FULL_ENOUGH", log)
    log += [(-1, "open", "", tuple(file["name"] for file in bin_["files"])) for bin_ in bins]
    return log


def _offer_file(rules: Any, bins: list[Any], number: int, now: int, file: Any, log: list[Any]) -> None:
    same = [bin_ for bin_ in bins if bin_["group"] == file["group"]]
    bin_ = same[0] if same else {"group": file["group"], "born": now, "files": []}
    bin_["files"].append(file)
    if file["bad"] or (rules["defragment"] and _has_different_counts(bin_)):
        _end_bin(rules, bins, number, bin_, "", log)
    elif _has_enough(rules, bin_) and _is_full(rules, bin_):
        _end_bin(rules, bins, number, bin_, "FULL", log)
    elif _is_old(rules, bin_, now):
        _end_bin(rules, bins, number, bin_, "AGE_ON_ARRIVAL", log)
    elif not same:
        bins.append(bin_)
        if len(bins) > rules["bins"]:
            _end_bin(rules, bins, number, bins[0], "EVICTED", log)


def _end_bin(rules: Any, bins: list[Any], number: int, bin_: Any, reason: str, log: list[Any]) -> None:
    """End an open bin; without a reason to merge, or with too few fragments, it fails."""
    if bin_ in bins:
        bins.remove(bin_)
    is_complete = not rules["defragment"] or len(bin_["files"]) == _find_wanted_count(bin_)
    outcome = "merged" if reason and is_complete else "failed"
    log.append((number, outcome, reason, tuple(file["name"] for file in bin_["files"])))


def _is_old(rules: Any, bin_: Any, now: int) -> bool:
    return rules["age"] is not None and now - bin_["born"] > rules["age"]


def _find_wanted_count(bin_: Any) -> Any:
    counts = [file["count"] for file in bin_["files"] if file["count"] is not None]
    return counts[0] if counts else None


def _has_different_counts(bin_: Any) -> bool:
    return len({file["count"] for file in bin_["files"] if file["count"] is not None}) > 1


def _has_enough(rules: Any, bin_: Any) -> bool:
    if rules["defragment"]:
        return bool(len(bin_["files"]) == _find_wanted_count(bin_))
    records = sum(file["records"] for file in bin_["files"])
    size = sum(file["bytes"] for file in bin_["files"])
    return bool(records >= rules["min_records"] and size >= rules["min_bytes"])


def _is_full(rules: Any, bin_: Any) -> bool:
    if rules["defragment"]:
        return True
    records = sum(file["records"] for file in bin_["files"])
    size = sum(file["bytes"] for file in bin_["files"])
    return records >= rules["max_records"] or (rules["max_bytes"] is not None and size >= rules["max_bytes"])
