"""Graphs: an engine captures a step with its streaming into a graph of its driver, and launches it many times."""

from __future__ import annotations

from operator import index
from types import TracebackType
from typing import Any

from ._base import RuntimeBase
from ._callbacks import Captured
from ._errors import UsageError, made
from ._generated import Status
from ._host import Stream
from ._lifetime import Owned, close_at_exit, owned, postpone, thread
from ._native import ffi, lib
from ._scopes import _While


class Capture:
    """The runtime's part of a capture that is under way on a stream. It begins and ends with a `with`, and its end
    makes the graph.

    Views must be released before the end. The end raises an error if a view is held, and the capture goes on until
    end() or cancel(). An exception in the `with` cancels the capture, and so does the garbage collector. A cancelled
    capture releases the views that were held in it.
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

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self._captured is not None:  # otherwise it has ended, or was cancelled
                self.end()
        else:
            try:
                self.cancel()
            except Exception:
                pass  # the exception of the `with` is raised instead

    def end(self) -> Graph:
        """Ends the capture now if it has not ended, and returns its graph."""
        if self._captured is not None:
            captured = self._captured
            handle = made("sh_graph **", self._finish, lib.sh_graph_destroy, self._runtime._check)
            self._graph = Graph(self._runtime, handle, captured)
        return self.graph

    def cancel(self) -> None:
        """Ends the capture without a graph. The driver's graph must not be launched then. Does nothing if the capture
        has ended.
        """
        if self._captured is not None:
            self._runtime._check(self._cancel())

    def _cancel(self) -> int:
        self._runtime._core.cancelled += 1  # the end of the capture releases all views that are held
        return self._finish(ffi.NULL)

    def _finish(self, out: Any) -> int:
        status = int(lib.sh_capture_end(self._runtime._handle, self._stream, out))
        if status != Status.ERROR_INVALID_STATE:  # this status means that views are held and the capture goes on
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
        """The graph that the capture has made. It is an error to ask before the capture has ended."""
        if self._graph is None:
            raise UsageError(
                Status.ERROR_INVALID_STATE, "the capture has no graph: it has not ended, or it failed or was cancelled"
            )
        return self._graph


class Graph(Owned):
    """The library's part of a captured step. The runtime's plan does not change until the graph is closed or garbage.
    The driver's graph must be launched only in `with graph.launch(stream):`, and not after the close.
    """

    _turn = 0

    def __init__(self, runtime: RuntimeBase, handle: Any, captured: Captured) -> None:
        self._runtime = runtime
        self._handle = owned(handle, lib.sh_graph_destroy, runtime._handle, captured)
        runtime._graphs.add(self)  # the runtime closes its graphs first, because a launch may still be under way
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"<libstagehand.Graph of {self._runtime.name or 'a runtime'}{'' if self._handle else ' (closed)'}>"

    def close(self) -> None:
        """Waits until the launches have finished. After that the runtime's plan may change."""
        super().close()

    def launch(self, stream: Stream | int) -> Launch:
        """Use `with graph.launch(stream):` around one launch of the driver's graph on that stream. Its begin loads the
        bytes that must be resident. It raises UsageError with Status.ERROR_STALE if the plan has changed. Then the step
        has to be captured again.
        """
        return Launch(self, index(stream))


class Launch(_While):
    """The scope of one launch of the driver's graph."""

    def __init__(self, graph: Graph, stream: int) -> None:
        super().__init__(graph._runtime)
        self._graph = graph
        self._stream = stream

    def _begin(self) -> int:
        return int(lib.sh_py_graph_enter(self._graph._handle, self._stream, self._count))

    def _end(self) -> int:
        return int(lib.sh_py_graph_leave(self._graph._handle, self._stream, self._count))
