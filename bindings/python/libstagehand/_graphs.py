"""Graphs: steps that an engine captures into a graph of its driver and launches again and again, with the streaming inside."""
from __future__ import annotations

from operator import index
from types import TracebackType
from typing import Any

from ._base import RuntimeBase
from ._callbacks import Captured
from ._errors import UsageError, made
from ._generated import Status
from ._host import Stream
from ._lifetime import close_at_exit, destroy_postponed, owned, postpone, thread
from ._native import ffi, lib
from ._scopes import _While


class Capture:
    """The runtime's part of a capture that is under way on a stream: from the beginning of a `with` to its end, which makes the graph.

    Views must be released before it ends: else that raises, and the capture goes on until end() or cancel(). An exception cancels it, and
    so does its end as garbage; views that were held in it are released by that.
    """

    def __init__(self, runtime: RuntimeBase, stream: int) -> None:
        self._runtime = runtime
        self._stream = stream
        self._captured: Captured | None = None
        self._graph: Graph | None = None

    def __enter__(self) -> Capture:
        begun = ffi.new("int32_t *")
        captured = Captured(self._stream)
        try:
            self._runtime._check(lib.sh_py_capture_begin(self._runtime._handle, self._stream, begun))
            self._captured, self._graph = captured, None
        except BaseException:
            captured.end()
            if begun[0]:
                self._cancel()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            if self._captured is not None:  # else it has ended, or was cancelled
                self.end()
        else:
            try:
                self.cancel()
            except Exception:
                pass  # the exception that led to it is told

    def end(self) -> Graph:
        """Ends it now, if it has not ended, and returns its graph."""
        if self._captured is not None:
            captured = self._captured
            handle = made("sh_graph **", self._finish, lib.sh_graph_destroy, self._runtime._check)
            self._graph = Graph(self._runtime, handle, captured)
        return self.graph

    def cancel(self) -> None:
        """Ends it without a graph: the driver's graph must not be launched. It does nothing where it has ended."""
        if self._captured is not None:
            self._runtime._check(self._cancel())

    def _cancel(self) -> int:
        self._runtime._core.cancelled += 1  # whatever is held
        return self._finish(ffi.NULL)

    def _finish(self, out: Any) -> int:
        status = int(lib.sh_capture_end(self._runtime._handle, self._stream, out))
        if status != Status.ERROR_INVALID_STATE:  # views are held: it goes on
            captured, self._captured = self._captured, None
            if captured is not None:
                captured.end()
        return status

    def __del__(self) -> None:
        if getattr(self, "_captured", None) is not None:
            if thread.callbacks:
                postpone(self._cancel)
            else:
                self._cancel()

    @property
    def graph(self) -> Graph:
        """What it has made, once it has ended."""
        if self._graph is None:
            raise UsageError(Status.ERROR_INVALID_STATE, "the capture has made no graph: it has not ended, or failed")
        return self._graph


class Graph:
    """What the library knows of a captured step. It holds the runtime's plan, until it is closed or garbage; the driver's graph must not be
    launched after that, nor otherwise than in `with graph.launch(stream):`."""

    _turn = 0

    def __init__(self, runtime: RuntimeBase, handle: Any, captured: Captured) -> None:
        self._runtime = runtime
        self._handle: Any = owned(handle, lib.sh_graph_destroy, runtime._handle, captured)
        runtime._graphs.add(self)  # a launch may be under way that the runtime has not been told of yet
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"<libstagehand.Graph of {self._runtime.name or 'a runtime'}{'' if self._handle else ' (closed)'}>"

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Waits until launches have finished, and lets the plan go."""
        handle, self._handle = self._handle, ffi.NULL
        if handle:
            ffi.release(handle)
        destroy_postponed()

    def launch(self, stream: Stream | int) -> Launch:
        """`with graph.launch(stream):` around one launch of the driver's graph on that stream. Entering brings what must be resident, and
        raises UsageError with Status.ERROR_STALE where the plan has changed: capture anew."""
        return Launch(self, index(stream))


class Launch(_While):
    """The time in which the driver's graph is launched, once."""

    def __init__(self, graph: Graph, stream: int) -> None:
        super().__init__(graph._runtime)
        self._graph = graph
        self._stream = stream

    def _begin(self, begun: Any) -> int:
        return int(lib.sh_py_graph_enter(self._graph._handle, self._stream, begun))

    def _end(self) -> int:
        return int(lib.sh_graph_leave(self._graph._handle, self._stream))
