"""What sharing saves: `stats()` of the process, `LoadInfo` of one load."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar

from tandem import errors
from tandem._native import ffi, lib

Record = TypeVar("Record", "Stats", "LoadInfo")

_KEPT: dict[int, Literal["released", "mapped", "copied"]] = {
    lib.TANDEM_PAYLOAD_RELEASED: "released",
    lib.TANDEM_PAYLOAD_MAPPED: "mapped",
    lib.TANDEM_PAYLOAD_COPIED: "copied",
}


def _print_table(record: Any) -> str:
    """A line for each field; bytes also in MiB."""
    lines = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        text = f"{value:.6f}" if isinstance(value, float) else str(value)
        if isinstance(value, int) and "bytes" in field.name and value >= 1 << 20:
            text += f"  ({value / (1 << 20):.1f} MiB)"
        lines.append(f"{field.name.replace('_', ' '):<22} {text}")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Stats:
    """The process's engines and loads, exact, all of one moment. The first two and the bytes are of now, the rest
    since start. print() shows a table."""

    engines: int
    loads: int
    builds: int  # engines that vendors built
    hits: int  # loads that found a ready engine
    joined: int  # loads that waited for the build of another load and share its engine
    fallbacks: int  # loads that took an engine after a first attempt failed or timed out
    failures: int  # loads that failed
    bytes_held: int  # of all engines
    bytes_saved: int  # what loads without an engine of their own would cost
    bytes_estimated: bool  # a vendor that does not tell its engines' sizes: payload sizes stand for them
    digest_seconds: float
    build_seconds: float
    log_lines_dropped: int

    def __str__(self) -> str:
        return _print_table(self)


@dataclasses.dataclass(frozen=True)
class LoadInfo:
    """One load: one delegate of one loaded method. print() shows a table."""

    id: int  # from 1, never reused
    engine_id: int  # likewise; loads that share have the same
    users: int  # loads that have this engine now, this one included
    shared: bool  # it took an engine that another load built
    joined: bool  # it waited for that build
    fallback: bool  # it got an engine after a first attempt failed or timed out
    engine_bytes_estimated: bool  # engine_bytes is the size of the engine's bytes in the program
    seconds: float  # the whole load
    digest_seconds: float
    build_seconds: float  # 0 when shared
    wait_seconds: float
    engine_bytes: int  # what one engine costs
    device_bytes: int  # of it in device memory
    budget: int | None  # effective weight-streaming budget, bytes; None: the vendor has none
    payload_bytes: Literal["released", "mapped", "copied"]  # how bytes are kept that the engine goes on reading
    payload_bytes_size: int
    vendor: str
    vendor_version: str
    device: str
    options: str  # "key=value;...": the vendor's that are not at their default

    def __str__(self) -> str:
        return _print_table(self)


def _read(kind: type[Record], source: ffi.CData) -> Record:
    """The struct's fields have the class's names."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        value = getattr(source, field.name)
        values[field.name] = ffi.string(value).decode("utf-8", "replace") if isinstance(value, ffi.CData) else value
    return kind(**values)


def stats() -> Stats:
    """The process's figures now. Callable from any thread."""
    found, error = ffi.new("struct tandem_stats *"), ffi.new("struct tandem_error *")
    found.struct_size = ffi.sizeof("struct tandem_stats")
    errors.check(lib.tandem_stats_get(found, error), error)
    return _read(Stats, found)


def load_info(load: ffi.CData) -> LoadInfo:
    """The information of a `struct tandem_load *`, which must be alive."""
    found, error = ffi.new("struct tandem_load_info *"), ffi.new("struct tandem_error *")
    found.struct_size = ffi.sizeof("struct tandem_load_info")
    errors.check(lib.tandem_load_get_info(load, found, error), error)
    info = _read(LoadInfo, found)
    return dataclasses.replace(
        info,
        budget=found.budget if found.budget >= 0 else None,
        payload_bytes=_KEPT[found.payload_bytes],
    )
