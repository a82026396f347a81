"""tandem: loads of the same engine share one engine."""

from tandem import _libraries

_libraries.open_executorch()

from tandem._native import ffi, lib  # noqa: E402, F401
