//! Plans for what a training step saves: what stays on the device, what is spilled, and what is computed again.

use libstagehand_sys as sys;

use crate::error::{Error, Result, Status, check, init};

/// What a plan costs, by a simulation of the step, and what no choice can beat. The fields are those of the C struct.
pub type ActivationFigures = sys::sh_activation_plan;

/// A storage that a step saves for its backward. Times are nanoseconds since the step began, in a step that neither
/// spills nor computes anything again. `..Default::default()` gives a value to the other fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Activation<'a> {
    /// Size in bytes.
    pub bytes: u64,
    /// The storage takes memory from here on, and its copy to the host can begin.
    pub produced_ns: u64,
    /// End of its last use in the forward. 0: `produced_ns`.
    pub released_ns: u64,
    /// Beginning of its first use in the backward.
    pub first_use_ns: u64,
    /// End of its last use in the backward, which frees the memory.
    pub last_use_ns: u64,
    /// How long it takes to compute the storage again. `None`: it is never computed again.
    pub recompute_ns: Option<u64>,
    /// The places, in the list of all storages, of those that it is computed from. The others that it is computed from
    /// are on the device anyway.
    pub inputs: &'a [u32],
}

/// Memory in use besides the saved storages, from a moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPoint {
    /// The moment, in nanoseconds since the step began.
    pub ns: u64,
    /// Weights, gradients, and what an operation holds meanwhile.
    pub bytes: u64,
}

/// A recorded step. `..Default::default()` gives a value to the other fields. The fields are those of
/// [`sh_training_step`](sys::sh_training_step).
#[derive(Clone, Copy, Debug, Default)]
pub struct TrainingStep<'a> {
    /// In the order of saving: `produced_ns` never falls.
    pub activations: &'a [Activation<'a>],
    /// By time. Empty: the device has nothing but the saved storages.
    pub others: &'a [MemoryPoint],
    /// End of the forward.
    pub forward_end_ns: u64,
    /// End of the step.
    pub end_ns: u64,
    /// Speed of the link. 0: nothing is spilled.
    pub to_host_bytes_per_second: u64,
    /// Speed of the link. 0: nothing is spilled.
    pub to_device_bytes_per_second: u64,
    /// The part of it that other copies take.
    pub other_to_host_bytes_per_second: u64,
    /// The part of it that other copies take.
    pub other_to_device_bytes_per_second: u64,
    /// Of each copy.
    pub copy_latency_ns: u64,
    /// As [`SpillerOptions::to_host_bytes`](crate::SpillerOptions::to_host_bytes).
    pub to_host_bytes: u64,
    /// As [`SpillerOptions::to_device_bytes`](crate::SpillerOptions::to_device_bytes).
    pub to_device_bytes: u64,
    /// As [`SpillerOptions::least_bytes`](crate::SpillerOptions::least_bytes).
    pub least_bytes: u64,
}

/// What a plan has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The plan takes the least time in which the peak is not above this number of bytes.
    PeakBytes(u64),
    /// The plan has the lowest peak of all plans that take no longer than this number of nanoseconds.
    StepNs(u64),
}

/// What becomes of a saved storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fate {
    /// The storage stays on the device.
    Keep,
    /// It leaves after its last use in the forward, and comes back before the backward.
    Spill,
    /// It is dropped after its last use in the forward, and computed again.
    Recompute,
}

impl Fate {
    fn as_raw(self) -> u32 {
        match self {
            Fate::Keep => sys::SH_FATE_KEEP,
            Fate::Spill => sys::SH_FATE_SPILL,
            Fate::Recompute => sys::SH_FATE_RECOMPUTE,
        }
    }

    fn from_raw(fate: u32) -> Result<Fate> {
        match fate {
            sys::SH_FATE_KEEP => Ok(Fate::Keep),
            sys::SH_FATE_SPILL => Ok(Fate::Spill),
            sys::SH_FATE_RECOMPUTE => Ok(Fate::Recompute),
            other => {
                Err(Error::new(Status::UNSUPPORTED, format!("this crate does not know the fate {other} of a storage")))
            }
        }
    }
}

/// What becomes of each saved storage, and what that costs.
#[derive(Clone, Debug)]
pub struct ActivationPlan {
    /// One for each storage.
    pub fates: Vec<Fate>,
    /// What the plan costs.
    pub figures: ActivationFigures,
}

/// Chooses for each saved storage of a step whether it is kept, spilled or computed again. No device is needed. The
/// same arguments give the same plan on every machine. A plan that misses its target is no error:
/// `figures.meets_target` is 0 then.
///
/// # Errors
/// [`Status::INVALID_ARGUMENT`] if the step is impossible, or the target is 0. The text names the field.
pub fn plan_activations(step: &TrainingStep<'_>, target: Target) -> Result<ActivationPlan> {
    let (activations, others) = raw_lists(step);
    let mut raw = raw_step(step, &activations, &others);
    match target {
        Target::PeakBytes(bytes) => raw.target_peak_bytes = bytes,
        Target::StepNs(ns) => raw.target_step_ns = ns,
    }
    let mut fates = vec![0; activations.len()];
    let mut figures = init!(sh_activation_plan);
    // SAFETY: struct_size is set in all structs, the counts are those of the arrays, and the arrays and the inputs live
    // until the call has returned. There is room for a fate of each storage.
    check(unsafe { sys::sh_plan_activations(&raw, fates.as_mut_ptr(), &mut figures) })?;
    Ok(ActivationPlan { fates: fates.into_iter().map(Fate::from_raw).collect::<Result<_>>()?, figures })
}

/// What a choice of fates costs, and the memory in use over the step.
#[derive(Clone, Debug)]
pub struct SimulatedActivations {
    /// What the choice costs. The bounds are 0.
    pub figures: ActivationFigures,
    /// The memory in use, by time. The last point holds until the step's end.
    pub memory: Vec<MemoryPoint>,
}

/// Simulates a step in which each saved storage has a given fate. `fates` is empty if everything is kept. If more
/// memory than `peak_bytes` would be in use, the compute and the restores wait. 0: nothing waits for room.
///
/// # Errors
/// [`Status::INVALID_ARGUMENT`] if the step is impossible, or a fate is. The text names it.
pub fn simulate_activations(step: &TrainingStep<'_>, fates: &[Fate], peak_bytes: u64) -> Result<SimulatedActivations> {
    if !fates.is_empty() && fates.len() != step.activations.len() {
        let text = format!("simulate_activations: {} fates, but {} activations", fates.len(), step.activations.len());
        return Err(Error::new(Status::INVALID_ARGUMENT, text));
    }
    let (activations, others) = raw_lists(step);
    let mut raw = raw_step(step, &activations, &others);
    raw.target_peak_bytes = peak_bytes;
    let fates: Vec<u32> = fates.iter().map(|fate| fate.as_raw()).collect();
    let mut points = vec![init!(sh_memory_point); 8 * activations.len() + 2 * others.len()];
    let (mut figures, mut count) = (init!(sh_activation_plan), 0);
    // SAFETY: as in plan_activations(). There is a fate for each storage, and the pointer and the capacity describe
    // `points`.
    check(unsafe {
        sys::sh_simulate_activations(
            &raw,
            if fates.is_empty() { std::ptr::null() } else { fates.as_ptr() },
            &mut figures,
            points.as_mut_ptr(),
            points.len() as u64,
            &mut count,
        )
    })?;
    points.truncate(count as usize);
    let memory = points.iter().map(|point| MemoryPoint { ns: point.ns, bytes: point.bytes }).collect();
    Ok(SimulatedActivations { figures, memory })
}

fn raw_lists(step: &TrainingStep<'_>) -> (Vec<sys::sh_activation>, Vec<sys::sh_memory_point>) {
    (step.activations.iter().map(raw_activation).collect(), step.others.iter().map(raw_point).collect())
}

/// The step without a target. It points to the lists.
fn raw_step(
    step: &TrainingStep<'_>,
    activations: &[sys::sh_activation],
    others: &[sys::sh_memory_point],
) -> sys::sh_training_step {
    let mut raw = init!(sh_training_step);
    raw.activations = if activations.is_empty() { std::ptr::null() } else { activations.as_ptr() };
    raw.activation_count = activations.len() as u64;
    raw.others = if others.is_empty() { std::ptr::null() } else { others.as_ptr() };
    raw.other_count = others.len() as u64;
    raw.forward_end_ns = step.forward_end_ns;
    raw.end_ns = step.end_ns;
    raw.to_host_bytes_per_second = step.to_host_bytes_per_second;
    raw.to_device_bytes_per_second = step.to_device_bytes_per_second;
    raw.other_to_host_bytes_per_second = step.other_to_host_bytes_per_second;
    raw.other_to_device_bytes_per_second = step.other_to_device_bytes_per_second;
    raw.copy_latency_ns = step.copy_latency_ns;
    raw.to_host_bytes = step.to_host_bytes;
    raw.to_device_bytes = step.to_device_bytes;
    raw.least_bytes = step.least_bytes;
    raw
}

fn raw_activation(from: &Activation<'_>) -> sys::sh_activation {
    let mut raw = init!(sh_activation);
    raw.flags = if from.recompute_ns.is_some() { sys::SH_ACTIVATION_CHEAP } else { 0 };
    raw.bytes = from.bytes;
    raw.produced_ns = from.produced_ns;
    raw.released_ns = from.released_ns;
    raw.first_use_ns = from.first_use_ns;
    raw.last_use_ns = from.last_use_ns;
    raw.recompute_ns = from.recompute_ns.unwrap_or(0);
    raw.inputs = if from.inputs.is_empty() { std::ptr::null() } else { from.inputs.as_ptr() };
    raw.input_count = from.inputs.len() as u64;
    raw
}

fn raw_point(from: &MemoryPoint) -> sys::sh_memory_point {
    let mut raw = init!(sh_memory_point);
    raw.ns = from.ns;
    raw.bytes = from.bytes;
    raw
}
