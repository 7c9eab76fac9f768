"""Constants and results of the C interface. Written by bindings/python/gen_cdef.py from the headers in include/stagehand: change those, then run ./dev gen."""
from dataclasses import dataclass
from enum import IntEnum, IntFlag

VERSION_MAJOR = 0
VERSION_MINOR = 2
VERSION_PATCH = 0
ABI_VERSION = 0
STREAM_HOST = 0xffffffffffffffff


class Status(IntEnum):
    """What a call returned. Values are grouped by hundreds, one exception class each."""

    OK = 0
    NOT_READY = 1
    KEPT = 2
    ERROR_INVALID_ARGUMENT = -101
    ERROR_INVALID_HANDLE = -102
    ERROR_INVALID_STRUCT = -103
    ERROR_INVALID_STATE = -104
    ERROR_NOT_FOUND = -105
    ERROR_UNSUPPORTED = -106
    ERROR_FORKED = -107
    ERROR_STALE = -108
    ERROR_BUDGET = -201
    ERROR_OUT_OF_DEVICE_MEMORY = -202
    ERROR_OUT_OF_HOST_MEMORY = -203
    ERROR_HELD = -204
    ERROR_BUSY = -205
    ERROR_SOURCE = -301
    ERROR_CALLBACK = -302
    ERROR_IO = -303
    ERROR_CANCELLED = -304
    ERROR_CHECKSUM = -305
    ERROR_BACKEND = -401
    ERROR_BACKEND_UNAVAILABLE = -402
    ERROR_BACKEND_LOAD = -403
    ERROR_RUNTIME_LOST = -501
    ERROR_DEVICE_LOST = -502
    ERROR_INTERNAL = -601
    ERROR_DUPLICATE_LIBRARY = -602


class LogLevel(IntEnum):
    """How much of the log is wanted."""

    ERROR = 1
    WARNING = 2
    INFO = 3
    DEBUG = 4


class DeviceFlag(IntFlag):
    """What a device can do."""

    FIXED_ADDRESSES = 1
    HOST_ADDRESSABLE = 2
    VIRTUAL_TIME = 4
    IS_GPU = 8


class DeviceKind(IntEnum):
    """What kind of memory a device has: DLDeviceType in DLPack."""

    NONE = 0
    HOST = 1
    CUDA = 2
    ROCM = 10


class BlockFlag(IntFlag):
    """How a block was registered."""

    MUTABLE = 1
    WHOLE = 2
    UNORDERED = 4
    PIN = 8
    PACK = 16


class WeightFormat(IntEnum):
    """Formats of floating-point weights."""

    BF16 = 1
    F16 = 2
    F32 = 3
    F8_E4M3 = 4
    F8_E5M2 = 5


class BlockState(IntEnum):
    """Where the bytes of a block are."""

    UNLOADED = 0
    STAGED = 1
    LOADING = 2
    READY = 3
    DRAINING = 4


class ViewFlag(IntFlag):
    """What an acquire did."""

    HIT = 1
    FIXED_ADDRESS = 2
    REMAPPED = 4
    WAITED = 8


class ResidentPriority(IntEnum):
    """Which reservations are given up when nothing else is left: secondary ones."""

    PRIMARY = 0
    SECONDARY = 1


class TicketState(IntEnum):
    """Where the bytes of a saved tensor are."""

    KEPT = 1
    LEAVING = 2
    AWAY = 3
    PREFETCHED = 4


class Fate(IntEnum):
    """What becomes of a saved storage."""

    KEEP = 0
    SPILL = 1
    RECOMPUTE = 2


class Contents(IntEnum):
    """What becomes of the contents of an allocation in a pause."""

    DEFAULT = 0
    STAGE = 1
    DROP = 2
    ZERO = 3
    FILE = 4


class OccupancyState(IntEnum):
    """Where the memory of a tag is."""

    RUNNING = 0
    RELEASING = 1
    RELEASED = 2
    RESUMING = 3
    MIXED = 4
    LOST = 5


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of a device, in bytes, at one moment."""

    runtime_count: int
    budget_bytes: int
    used_bytes: int
    peak_bytes: int
    free_bytes: int
    total_bytes: int
    page_bytes: int
    staging_bytes: int
    pinned_bytes: int
    reserved_bytes: int
    guest_bytes: int
    protected_bytes: int
    headroom_bytes: int


@dataclass(frozen=True)
class DeviceCaps:
    """What a device is and can do."""

    flags: DeviceFlag
    kind: int
    ordinal: int
    backend: str
    name: str
    description: str
    granularity_bytes: int
    page_bytes: int
    staging_piece_bytes: int
    staging_threads: int
    host_node: int
    bus_id: str


@dataclass(frozen=True)
class BackendInfo:
    """A backend that was found, or was looked for in vain."""

    status: int
    device_count: int
    built_in: int
    name: str
    path: str
    reason: str


@dataclass(frozen=True)
class BlockInfo:
    """What is known of a block at one moment."""

    flags: BlockFlag
    state: BlockState
    held: int
    address: int
    bytes: int
    resident_bytes: int
    streamed_bytes: int
    present_bytes: int
    serial: int
    protections: int
    name: str


@dataclass(frozen=True)
class PlanInfo:
    """A plan in figures."""

    max_held: int
    model_bytes: int
    budget_bytes: int
    resident_bytes: int
    ring_bytes: int
    unordered_bytes: int
    smallest_budget_bytes: int
    smallest_budget_block: int
    bytes_per_step: int
    bound_bytes_per_step: int
    step_ns: int
    bound_ns: int
    compute_ns: int
    link_bytes_per_second: int
    scheduled_blocks: int
    resident_blocks: int
    streamed_blocks: int
    padding_bytes: int
    plan_bound_ns: int
    packed_resident_bytes: int
    unpack_bytes: int
    unpack_bytes_per_second: int


@dataclass(frozen=True)
class KindInfo:
    """A kind of step."""

    name: str
    steps: int
    compute_ns: int


@dataclass(frozen=True)
class SetInfo:
    """What a set has, and how well it served."""

    address: int
    stride: int
    slots: int
    members: int
    uses: int
    hits: int
    evictions: int


@dataclass(frozen=True)
class RuntimeStats:
    """Counters of a runtime."""

    lost: int
    steps: int
    acquires: int
    hits: int
    in_time: int
    misses: int
    loads: int
    load_pieces: int
    bytes_to_device: int
    bytes_to_host: int
    write_backs: int
    cancelled_loads: int
    failed_loads: int
    host_waits: int
    stall_ns: int
    plans: int
    remaps: int
    evictions: int
    given_up_bytes: int
    last_step_ns: int
    resident_bytes: int
    ring_bytes: int
    unordered_bytes: int
    held_bytes: int
    share_bytes: int
    protected_bytes: int
    reserved_bytes: int
    guest_bytes: int
    helped_bytes: int


@dataclass(frozen=True)
class TicketInfo:
    """What is known of a saved tensor at one moment."""

    state: TicketState
    bytes: int
    offset: int
    copy: int
    prefetched_address: int


@dataclass(frozen=True)
class SpillerStats:
    """Counters of a spiller."""

    steps: int
    saved: int
    spilled: int
    restored: int
    shared: int
    spill_bytes: int
    restore_bytes: int
    prefetched: int
    stall_count: int
    stall_ns: int
    pool_hits: int
    pool_misses: int
    failed_spills: int
    kept_bytes: int
    leaving_bytes: int
    away_bytes: int
    away_peak_bytes: int
    pool_bytes: int
    unpinned_bytes: int
    used_peak_bytes: int
    packed_bytes: int


@dataclass(frozen=True)
class ActivationFigures:
    """What a plan for saved storages costs."""

    meets_target: bool
    step_ns: int
    peak_bytes: int
    plain_peak_bytes: int
    recompute_ns: int
    kept_bytes: int
    spilled_bytes: int
    recomputed_bytes: int
    least_step_ns: int
    least_peak_bytes: int


@dataclass(frozen=True)
class OccupancyChange:
    """What a pause or a resume has done."""

    tag_count: int
    device_bytes: int
    copied_bytes: int
    ns: int
    unchanged_bytes: int
    packed_bytes: int


@dataclass(frozen=True)
class OccupancyInfo:
    """A tag, or all tags of a device together."""

    state: OccupancyState
    tag: str
    allocations: int
    bytes: int
    device_bytes: int
    staged_bytes: int
    host_bytes: int
    pinned_bytes: int
    cycles: int
    file_bytes: int
