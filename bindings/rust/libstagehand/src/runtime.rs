//! Runtimes: one model on a device, with its blocks and the order in which an engine uses them.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libstagehand_sys as sys;

use crate::block::{Kept, Part, PartLimits, Prepared, raw_blocks};
use crate::callback::guarded;
use crate::error::{Result, c_path, c_string, check, field_text, init};
use crate::graph::Capturing;
use crate::source::Keep;
use crate::{Block, BlockDesc, BlockState, Device, Scope, SourceUpdate, Stream};

/// The figures of a plan. The fields are those of the C struct.
pub type PlanInfo = sys::sh_plan_info;

/// Counters of a runtime. The fields are those of the C struct.
pub type RuntimeStats = sys::sh_runtime_stats;

/// Says how a runtime is created. Zero and `None` mean the default. More fields may come, so end the struct with
/// `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// Number of views of blocks in the order that the engine holds at once. 0: 1. Acquiring one more view returns
    /// [`Status::HELD`](crate::Status::HELD) if the plan has no room for it.
    pub max_held: u32,
    /// Ceiling on this runtime's share of the device's budget, in bytes. 0: none.
    pub max_bytes: u64,
    /// Least device memory for blocks outside the order, in bytes. 0: the library chooses by the largest such block and
    /// by the blocks that were held at once.
    pub unordered_bytes: u64,
    /// How long a call that plans waits for memory that other runtimes hold beyond their shares. They give this memory
    /// up when their steps end. The call returns [`Status::BUSY`](crate::Status::BUSY) if the memory is not free after
    /// this time. Zero: the call does not wait. This is meant for models that several threads use.
    pub share_wait: Duration,
    /// Name of the runtime in messages and traces.
    pub name: Option<String>,
}

/// Says what to plan for.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Compute the plan only. Nothing on the device changes.
    pub dry_run: bool,
    /// Make graphs that hold the plan stale if the plan has to change. Such graphs keep the plan from changing if
    /// this is false.
    pub drop_graphs: bool,
    /// Budget of a dry run, in bytes. 0: the device's budget.
    pub budget_bytes: u64,
    /// Speed of the link in a dry run. 0: the speed of the device's link.
    pub link_bytes_per_second: u64,
}

/// One use of a block in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The block.
    pub block: Block,
    /// Time in nanoseconds that the device computes with the block. 0: the library measures the time.
    pub compute_ns: u64,
}

impl From<Block> for Use {
    fn from(block: Block) -> Use {
        Use { block, compute_ns: 0 }
    }
}

/// One model on a device.
///
/// Views, steps, scopes and updates borrow the runtime, so the runtime is dropped after them. Dropping the runtime
/// waits for its work in flight, gives its device memory back, and then drops the sources of its blocks. Dirty contents
/// that were not written back are lost.
///
/// A callback of the runtime must not drop the runtime.
pub struct Runtime {
    raw: *mut sys::sh_runtime,
    /// Whether the host can read and write the memory behind device addresses.
    pub(crate) host_addressable: bool,
    /// The stream of the last acquire, if `streams` keeps it. Most acquires use the same stream and need not search
    /// `streams`.
    pub(crate) last_stream: AtomicU64,
    pub(crate) streams: Mutex<Vec<Stream>>,
    pub(crate) capturing: Arc<Capturing>,
    blocks: Mutex<HashMap<Block, Kept>>,
    pressure: Mutex<Option<Box<dyn Keep>>>,
    device: Device,
}

// SAFETY: functions may be called from any thread unless their comment says otherwise (base.h). The functions of
// runtime.h, streaming.h and residency.h say otherwise only of callbacks.
unsafe impl Send for Runtime {}
// SAFETY: as for Send. Several threads may call functions on one runtime at once. Destroying the runtime needs it by
// value.
unsafe impl Sync for Runtime {}

/// Locks a mutex and ignores poison: the data stay valid even if a holder of the lock panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime {
    /// Creates a runtime without blocks.
    pub fn new(device: &Device) -> Result<Runtime> {
        Runtime::with_options(device, &RuntimeOptions::default())
    }

    /// Creates a runtime without blocks, with options.
    pub fn with_options(device: &Device, options: &RuntimeOptions) -> Result<Runtime> {
        let name = options.name.as_deref().map(|name| c_string("name of a runtime", name)).transpose()?;
        let mut raw_options = init!(sh_runtime_options);
        raw_options.max_held = options.max_held;
        raw_options.max_bytes = options.max_bytes;
        raw_options.unordered_bytes = options.unordered_bytes;
        raw_options.share_wait_ns = u64::try_from(options.share_wait.as_nanos()).unwrap_or(u64::MAX);
        raw_options.name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let capabilities = device.capabilities()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the name outlives the call, and the call copies it.
        check(unsafe { sys::sh_runtime_create(device.as_raw(), &raw_options, &mut raw) })?;
        let host_addressable = capabilities.host_addressable() && !capabilities.virtual_time();
        Ok(Runtime {
            raw,
            host_addressable,
            last_stream: AtomicU64::new(sys::SH_STREAM_HOST),
            streams: Mutex::default(),
            capturing: Arc::default(),
            blocks: Mutex::default(),
            pressure: Mutex::default(),
            device: device.clone(),
        })
    }

    /// Returns the C handle. The handle is valid while this runtime lives.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::sh_runtime {
        self.raw
    }

    /// Returns the runtime's device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until every load and write-back that has begun has finished. Blocks.
    ///
    /// # Errors
    /// The error of asynchronous work that no other call has returned yet.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_runtime_synchronize(self.raw) }).map(drop)
    }

    // --- blocks ---

    /// Registers blocks, all or none. Small blocks that are registered next to each other share pages, so pass them in
    /// the order of use.
    ///
    /// # Errors
    /// [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if a description is wrong. The text names the
    /// block and the field.
    pub fn register_blocks(&self, blocks: impl IntoIterator<Item = BlockDesc>) -> Result<Vec<Block>> {
        let prepared = Prepared::new(self, blocks.into_iter().collect())?;
        let mut ids = vec![Block(0); prepared.descs.len()];
        // SAFETY: the descriptors and the objects that they point to outlive the call, and the call copies them. The
        // sources live as long as their blocks are registered.
        check(unsafe {
            sys::sh_register_blocks(
                self.raw,
                prepared.descs.as_ptr(),
                prepared.descs.len() as u64,
                ids.as_mut_ptr().cast(),
            )
        })?;
        self.keep_sources(&ids, prepared.kept);
        Ok(ids)
    }

    /// Registers one block; see [`register_blocks`](Runtime::register_blocks).
    pub fn register_block(&self, block: BlockDesc) -> Result<Block> {
        self.register_blocks([block]).map(|blocks| blocks[0])
    }

    /// Divides a block that is used part by part, and registers each part as a block of its own. Parts begin at
    /// multiples of `unit_bytes`: a row of a matrix, for example. [`PartLimits`] says how large and how many they are.
    /// A [`SourceUpdate`](crate::SourceUpdate) of a part gives no access to the bytes of its source, which all parts
    /// share.
    ///
    /// # Errors
    /// The errors of [`register_blocks`](Runtime::register_blocks), and
    /// [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if `unit_bytes` or `limits.most` is 0.
    pub fn register_parts(&self, block: BlockDesc, unit_bytes: u64, limits: PartLimits) -> Result<Vec<Part>> {
        let mut prepared = Prepared::new(self, vec![block])?;
        let mut options = init!(sh_part_options);
        options.unit_bytes = unit_bytes;
        options.largest_bytes = limits.largest_bytes;
        let mut found = vec![init!(sh_part); limits.most];
        let mut count = 0;
        // SAFETY: the descriptor and the objects that it points to outlive the call, and the call copies them. The
        // sources live as long as a part is registered.
        check(unsafe {
            sys::sh_register_parts(
                self.raw,
                prepared.descs.as_ptr(),
                &options,
                found.as_mut_ptr(),
                found.len() as u64,
                &mut count,
            )
        })?;
        found.truncate(count as usize);
        let kept = Arc::new(prepared.kept.remove(0));
        let parts = found.iter().map(|part| Part { block: Block(part.block), offset: part.offset, bytes: part.bytes });
        let parts: Vec<Part> = parts.collect();
        lock(&self.blocks).extend(parts.iter().map(|part| (part.block, Kept::sharing(&kept))));
        Ok(parts)
    }

    /// Unregisters blocks, all or none, and drops their sources. The call writes dirty contents back and waits for the
    /// blocks' loads. Blocks.
    ///
    /// # Errors
    /// [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if a view of a block is held, or if a graph uses a
    /// block.
    pub fn unregister_blocks(&self, blocks: &[Block]) -> Result<()> {
        // SAFETY: the pointer and the count describe `blocks`.
        check(unsafe { sys::sh_unregister_blocks(self.raw, raw_blocks(blocks), blocks.len() as u64) })?;
        self.drop_sources(blocks);
        Ok(())
    }

    /// Keeps alive what blocks need that were just registered.
    pub(crate) fn keep_sources(&self, blocks: &[Block], kept: Vec<Kept>) {
        lock(&self.blocks).extend(blocks.iter().copied().zip(kept));
    }

    /// Drops what blocks needed that were just unregistered.
    pub(crate) fn drop_sources(&self, blocks: &[Block]) {
        let mut kept = lock(&self.blocks);
        let dropped: Vec<Option<Kept>> = blocks.iter().map(|block| kept.remove(block)).collect();
        drop(kept);
        // The lock is not held here, because the drop of a source may run any code of the user.
        drop(dropped);
    }

    /// Reads the state of a block. This also works in a lost runtime.
    pub fn block_info(&self, block: Block) -> Result<BlockState> {
        let mut state = init!(sh_block_state);
        // SAFETY: struct_size is set.
        check(unsafe { sys::sh_block_get_state(self.raw, block.0, &mut state) })?;
        Ok(BlockState {
            flags: state.flags,
            state: state.state,
            held: state.held,
            address: state.address,
            bytes: state.bytes,
            resident_bytes: state.resident_bytes,
            streamed_bytes: state.streamed_bytes,
            present_bytes: state.present_bytes,
            serial: state.serial,
            name: field_text(&state.name),
            protections: state.protections,
        })
    }

    /// Marks the device contents of blocks as out of date. The next acquire loads the contents again. Changes of the
    /// engine that were marked dirty and are not written back yet are lost.
    pub fn invalidate(&self, blocks: &[Block]) -> Result<()> {
        // SAFETY: the pointer and the count describe `blocks`.
        check(unsafe { sys::sh_invalidate_blocks(self.raw, raw_blocks(blocks), blocks.len() as u64) }).map(drop)
    }

    /// Begins the time in which the blocks' sources may be changed. The call waits until no load reads the sources, and
    /// no load starts until the update ends. Blocks.
    ///
    /// [`SourceUpdate::bytes_mut`] gives access to the bytes of sources that were given away. The owner of memory of
    /// [`Source::raw`](crate::Source::raw) changes the memory directly.
    ///
    /// # Errors
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if a source is being updated already.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if a view of a dirty block is held, or if a graph that
    ///   uses a block has been entered.
    pub fn update_sources(&self, blocks: &[Block]) -> Result<SourceUpdate<'_>> {
        SourceUpdate::begin(self, blocks)
    }

    /// Returns the memory that was given away with a block, with the indices of its sources.
    pub(crate) fn exclusive_of(&self, block: Block) -> Vec<(usize, Arc<crate::source::Exclusive>)> {
        lock(&self.blocks).get(&block).map(|kept| kept.exclusive.clone()).unwrap_or_default()
    }

    /// Returns `None` if this runtime did not register the block, and so keeps nothing alive for it.
    pub(crate) fn is_mutable(&self, block: Block) -> Option<bool> {
        lock(&self.blocks).get(&block).map(|kept| kept.mutable)
    }

    /// Keeps alive what a block's new sources need, in place of what the sources before needed.
    pub(crate) fn replace_kept(&self, block: Block, kept: Kept) {
        // The lock is not held when this is dropped, because the drop of a source may run any code of the user.
        let _before = lock(&self.blocks).get_mut(&block).map(|now| now.replace(kept));
    }

    /// Writes dirty contents of these blocks back to their sources, and waits until they are written. An empty set
    /// writes nothing back. Blocks.
    ///
    /// # Errors
    /// [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if a view of a dirty block is held.
    pub fn write_back(&self, blocks: &[Block]) -> Result<()> {
        // SAFETY: the pointer and the count describe `blocks`.
        check(unsafe { sys::sh_write_back(self.raw, raw_blocks(blocks), blocks.len() as u64) }).map(drop)
    }

    /// Writes all dirty contents back; see [`write_back`](Runtime::write_back). Blocks.
    pub fn write_back_all(&self) -> Result<()> {
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_write_back(self.raw, std::ptr::null(), 0) }).map(drop)
    }

    // --- order and plan ---

    /// Sets the order in which a step uses the blocks. The order is a hint: any order of acquires is correct. The
    /// library learns the order if `uses` is empty.
    ///
    /// # Errors
    /// [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if an unordered block occurs.
    pub fn set_schedule(&self, uses: &[Use]) -> Result<()> {
        let uses: Vec<sys::sh_use> = uses
            .iter()
            .map(|one| {
                let mut raw = init!(sh_use);
                raw.block = one.block.0;
                raw.compute_ns = one.compute_ns;
                raw
            })
            .collect();
        // SAFETY: the pointer and the count describe `uses`, and struct_size is set in each element. The call copies
        // them.
        check(unsafe { sys::sh_set_schedule(self.raw, uses.as_ptr(), uses.len() as u64) }).map(drop)
    }

    /// Decides which blocks stay and which blocks stream, and puts this plan into force. The plan is in force at once,
    /// or from the next step on if a step is under way. Blocks.
    ///
    /// # Errors
    /// - [`Status::BUDGET`](crate::Status::BUDGET) if the share is too small. The text names the smallest budget.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if no order is known yet, if views are held outside a
    ///   step, or if graphs hold the plan.
    /// - [`Status::BUSY`](crate::Status::BUSY) if other runtimes still hold a part of the share.
    pub fn plan(&self) -> Result<PlanInfo> {
        self.plan_with(&PlanOptions::default())
    }

    /// Plans with options; see [`plan`](Runtime::plan). Blocks.
    pub fn plan_with(&self, options: &PlanOptions) -> Result<PlanInfo> {
        let mut raw = init!(sh_plan_options);
        raw.flags = if options.dry_run { sys::SH_PLAN_DRY_RUN } else { 0 }
            | if options.drop_graphs { sys::SH_PLAN_DROP_GRAPHS } else { 0 };
        raw.budget_bytes = options.budget_bytes;
        raw.link_bytes_per_second = options.link_bytes_per_second;
        let mut info = init!(sh_plan_info);
        // SAFETY: struct_size is set in both structs.
        check(unsafe { sys::sh_plan(self.raw, &raw, &mut info) })?;
        Ok(info)
    }

    // --- pressure and counters ---

    /// Sets a closure that is called when another runtime needs memory that this runtime holds beyond its share. This
    /// runtime cannot give the memory up at once, because a step is under way or a view is held. The closure gets the
    /// number of bytes.
    ///
    /// The closure runs on the thread that needs the memory. It must neither call the library nor block. It may set a
    /// flag, so that the engine ends its step or releases views. A panic of the closure leaves only its message on
    /// standard error.
    pub fn set_pressure<F>(&self, pressure: F) -> Result<()>
    where
        F: Fn(u64) + Send + Sync + 'static,
    {
        let pressure = Arc::new(pressure);
        let user_data = Arc::as_ptr(&pressure).cast_mut().cast();
        self.change_pressure(Some(run_pressure::<F>), user_data, Some(Box::new(pressure)))
    }

    /// Removes the closure of [`set_pressure`](Runtime::set_pressure). The closure is not called any more when this
    /// returns.
    pub fn clear_pressure(&self) -> Result<()> {
        self.change_pressure(None, std::ptr::null_mut(), None)
    }

    fn change_pressure(&self, run: sys::sh_pressure_fn, data: *mut c_void, keep: Option<Box<dyn Keep>>) -> Result<()> {
        let mut kept = lock(&self.pressure);
        // SAFETY: `kept` holds the closure until the next call of this function has returned, or until the runtime is
        // destroyed.
        check(unsafe { sys::sh_set_pressure(self.raw, run, data) })?;
        let before = std::mem::replace(&mut *kept, keep);
        drop(kept);
        drop(before);
        Ok(())
    }

    /// Reads the counters. This also works for a lost runtime.
    pub fn stats(&self) -> Result<RuntimeStats> {
        let mut stats = init!(sh_runtime_stats);
        // SAFETY: struct_size is set.
        check(unsafe { sys::sh_runtime_get_stats(self.raw, &mut stats) })?;
        Ok(stats)
    }

    /// Writes one JSON object to the file `path` at the end of each step, and when a graph's launch ends outside a
    /// step, until the scope ends.
    ///
    /// # Errors
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if another file is open.
    /// - [`Status::IO`](crate::Status::IO) if the file cannot be opened.
    pub fn telemetry_start(&self, path: impl AsRef<Path>) -> Result<Scope<'_>> {
        let path = c_path("path", path.as_ref())?;
        // SAFETY: the path is valid during the call, and the call copies it.
        Scope::begin(|out| unsafe { sys::sh_telemetry_start(self.raw, std::ptr::null_mut(), path.as_ptr(), out) })
    }
}

unsafe extern "C" fn run_pressure<F>(_runtime: *mut sys::sh_runtime, bytes: u64, user_data: *mut c_void)
where
    F: Fn(u64) + Send + Sync + 'static,
{
    // SAFETY: this points into the Arc, which the runtime keeps until the library calls this function no more.
    let pressure = unsafe { &*user_data.cast::<F>() };
    // The library takes no error from a pressure callback.
    let _ = guarded(|| pressure(bytes));
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // SAFETY: nothing borrows the runtime any more. No callback runs and no source is read when the call returns.
        // The fields that hold callbacks, sources and streams are dropped after it.
        unsafe { sys::sh_runtime_destroy(self.raw) }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Runtime").field(&self.raw).finish()
    }
}
