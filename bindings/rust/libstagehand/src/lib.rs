#![doc = include_str!("../README.md")]

mod activations;
mod block;
mod callback;
mod control;
mod device;
mod error;
mod graph;
mod members;
mod memory;
mod occupancy;
mod process;
mod residency;
mod runtime;
mod source;
mod spill;
mod stream;
mod streaming;
mod ticket;
mod update;
mod view;

pub use activations::{
    Activation, ActivationFigures, ActivationPlan, Fate, MemoryPoint, SimulatedActivations, Target, TrainingStep,
    plan_activations, simulate_activations,
};
pub use block::{Block, BlockDesc, BlockState, LoadedRange, Part, PartLimits};
pub use control::{Control, ControlOptions};
pub use device::{BackendInfo, Capabilities, Device, DeviceOptions, HostNode, MemoryInfo, backends};
pub use error::{Error, Group, Result, Status};
pub use graph::{Capture, Graph, Launch};
pub use members::{MemberSet, Members, SetInfo, SetOptions};
pub use memory::PinnedMemory;
pub use occupancy::{
    AllocOptions, Allocation, Contents, MemoryRange, OccupancyChange, OccupancyInfo, PauseCallbacks, PauseOptions,
    ResumeOptions,
};
pub use process::{LogLevel, clear_log, monitor_start, set_log, trace_start, version};
pub use residency::{GuestOptions, Priority, Scope};
pub use runtime::{PlanInfo, PlanOptions, Runtime, RuntimeOptions, RuntimeStats, Use};
pub use source::{Source, WeightFormat, unpack};
pub use spill::{Leave, SavedTensor, SpillClass, SpillStep, Spiller, SpillerOptions, SpillerStats};
pub use stream::Stream;
pub use streaming::{KindInfo, Step};
pub use ticket::{Restored, Ticket, TicketId, TicketInfo};
pub use update::SourceUpdate;
pub use view::{View, Views};

/// The C interface, for calls that have no safe method and for foreign handles.
pub use libstagehand_sys as sys;

// Examples that the compiler must refuse. They are tests and not part of the documentation.
#[cfg(doctest)]
mod borrow_rules;
