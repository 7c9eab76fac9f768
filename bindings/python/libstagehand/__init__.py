"""Streams model weights between host and device under a memory budget: libstagehand for Python.

Every method makes one call of the C interface. The C headers (include/stagehand) say what the call does, when it waits,
and which threads may make it. A failure is an exception with a `status`. Each hundred of statuses has one class.
"""

# This import comes first: the other imports load the extension module, which needs the library.
from . import _library  # noqa: F401, I001
from ._activations import Activation, ActivationPlan, SimulatedStep, plan_activations, simulate_activations
from ._callbacks import FillFunction, LoadedRange, LoadFunction, set_log
from ._control import Control
from ._device import Device, backends, monitor, trace, version
from ._errors import BackendError, BudgetError, Error, InternalError, LostError, OperationError, UsageError
from ._generated import (
    STREAM_HOST,
    BackendInfo,
    BlockFlag,
    BlockInfo,
    BlockState,
    Contents,
    DeviceCaps,
    DeviceFlag,
    DeviceKind,
    Fate,
    KindInfo,
    LogLevel,
    MemoryInfo,
    OccupancyChange,
    OccupancyInfo,
    OccupancyState,
    PlanInfo,
    ResidentPriority,
    RuntimeStats,
    SetInfo,
    SpillerStats,
    Status,
    TicketInfo,
    TicketState,
    ViewFlag,
    WeightFormat,
)
from ._graphs import Capture, Graph
from ._host import PinnedMemory, Stream
from ._occupancy import Allocation
from ._pause_callbacks import PauseCallbacks, PauseFunction
from ._members import Members, MemberSet
from ._runtime import Block, Part, Runtime
from ._sources import BlockDesc, DeviceMemory, FileRange, Fill, Mapped, Packed, Segment, Source, Weights, unpack
from ._spiller import Spiller, Ticket
from ._view import View, Views

__version__ = version()

__all__ = [
    "STREAM_HOST",
    "Activation",
    "ActivationPlan",
    "Allocation",
    "BackendError",
    "BackendInfo",
    "Block",
    "BlockDesc",
    "BlockFlag",
    "BlockInfo",
    "BlockState",
    "BudgetError",
    "Capture",
    "Contents",
    "Control",
    "Device",
    "DeviceCaps",
    "DeviceFlag",
    "DeviceKind",
    "DeviceMemory",
    "Error",
    "Fate",
    "FileRange",
    "Fill",
    "FillFunction",
    "Graph",
    "InternalError",
    "KindInfo",
    "LoadFunction",
    "LoadedRange",
    "LogLevel",
    "LostError",
    "Mapped",
    "MemberSet",
    "Members",
    "MemoryInfo",
    "OccupancyChange",
    "OccupancyInfo",
    "OccupancyState",
    "OperationError",
    "Packed",
    "Part",
    "PauseCallbacks",
    "PauseFunction",
    "PinnedMemory",
    "PlanInfo",
    "ResidentPriority",
    "Runtime",
    "RuntimeStats",
    "Segment",
    "SetInfo",
    "SimulatedStep",
    "Source",
    "Spiller",
    "SpillerStats",
    "Status",
    "Stream",
    "Ticket",
    "TicketInfo",
    "TicketState",
    "UsageError",
    "View",
    "ViewFlag",
    "Views",
    "WeightFormat",
    "Weights",
    "backends",
    "monitor",
    "plan_activations",
    "set_log",
    "simulate_activations",
    "trace",
    "unpack",
    "version",
]
