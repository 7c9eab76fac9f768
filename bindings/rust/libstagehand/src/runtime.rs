//! Runtimes: one model on a device. Its blocks, and the order in which they are used.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libstagehand_sys as sys;

use crate::block::{Kept, Prepared, raw_blocks};
use crate::callback::guarded;
use crate::error::{Result, c_path, c_string, check, field_text, init};
use crate::graph::Capturing;
use crate::source::Keep;
use crate::{Block, BlockDesc, BlockState, Device, SourceUpdate, Stream};

/// A plan in figures: the fields of the C struct.
pub type PlanInfo = sys::sh_plan_info;

/// Counters of a runtime: the fields of the C struct.
pub type RuntimeStats = sys::sh_runtime_stats;

/// How a runtime is created. Zero and `None` mean the default. More fields may come: fill up with `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// Views of scheduled blocks held at once; 0: 1. Acquiring one more, where the plan has no room, is [`Status::HELD`](crate::Status::HELD).
    pub max_held: u32,
    /// Ceiling on this runtime's share of the device's budget, in bytes.
    pub max_bytes: u64,
    /// Device memory for blocks outside the order, at least the largest one; 0: by what was held at once.
    pub unordered_bytes: u64,
    /// How long a call that plans waits for what others hold beyond their shares until their steps end, before it returns
    /// [`Status::BUSY`](crate::Status::BUSY). For models that several threads use.
    pub share_wait: Duration,
    /// Names the runtime in messages and traces.
    pub name: Option<String>,
}

/// What to plan for.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Compute the plan only: nothing on the device changes.
    pub dry_run: bool,
    /// Graphs that hold the plan become stale instead of standing in the way.
    pub drop_graphs: bool,
    /// In a dry run: plan for this budget; 0: the device's.
    pub budget_bytes: u64,
    /// In a dry run: plan for this link; 0: the device's.
    pub link_bytes_per_second: u64,
}

/// One use of a block in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The block.
    pub block: Block,
    /// Time that the device computes with it; 0: measured.
    pub compute_ns: u64,
}

impl From<Block> for Use {
    fn from(block: Block) -> Use {
        Use { block, compute_ns: 0 }
    }
}

/// One model on a device. Views, steps, scopes and updates borrow it, so it is dropped after them; dropping it waits for its work in
/// flight, gives back its device memory, and then drops the sources of its blocks. Dirty contents that were not written back are lost.
///
/// It must not be dropped inside a callback of its own.
pub struct Runtime {
    raw: *mut sys::sh_runtime,
    /// The host can read and write what is behind device addresses.
    pub(crate) host_addressable: bool,
    /// The stream of the last acquire that is kept below: most acquires have the same one, and need not look.
    pub(crate) last_stream: AtomicU64,
    pub(crate) streams: Mutex<Vec<Stream>>,
    pub(crate) capturing: Arc<Capturing>,
    blocks: Mutex<HashMap<Block, Kept>>,
    pressure: Mutex<Option<Box<dyn Keep>>>,
    /// The number of the last reservation: whoever has it ends it.
    pub(crate) reservation: Mutex<u64>,
    device: Device,
}

// SAFETY: base.h: functions may be called from any thread unless their comment says otherwise, and none of runtime.h, streaming.h and
// residency.h does but for callbacks.
unsafe impl Send for Runtime {}
// SAFETY: the same: several threads may be in calls on one runtime at once. Destroying it needs the runtime by value.
unsafe impl Sync for Runtime {}

/// A lock whose holders keep it right even if they panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime {
    /// A runtime without blocks.
    pub fn new(device: &Device) -> Result<Runtime> {
        Runtime::with_options(device, &RuntimeOptions::default())
    }

    /// A runtime without blocks, with options.
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
        // SAFETY: the name outlives the call, which copies it.
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
            reservation: Mutex::default(),
            device: device.clone(),
        })
    }

    /// The C handle, valid while this runtime lives.
    #[inline]
    pub fn as_raw(&self) -> *mut sys::sh_runtime {
        self.raw
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until every load and write-back that was begun has finished, and returns the error of asynchronous work that no other call
    /// has returned yet. Blocks.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_runtime_synchronize(self.raw) }).map(drop)
    }

    // --- blocks ---

    /// Registers blocks, all or none. Small ones that stand next to each other share pages: give them in the order of use.
    pub fn register_blocks(&self, blocks: impl IntoIterator<Item = BlockDesc>) -> Result<Vec<Block>> {
        let prepared = Prepared::new(self, blocks.into_iter().collect())?;
        let mut ids = vec![Block(0); prepared.descs.len()];
        // SAFETY: what the descriptors point to outlives the call, which copies them; sources live as long as they are registered.
        check(unsafe {
            sys::sh_register_blocks(
                self.raw,
                prepared.descs.as_ptr(),
                prepared.descs.len() as u64,
                ids.as_mut_ptr().cast(),
            )
        })?;
        lock(&self.blocks).extend(ids.iter().copied().zip(prepared.kept));
        Ok(ids)
    }

    /// Registers one block.
    pub fn register_block(&self, block: BlockDesc) -> Result<Block> {
        self.register_blocks([block]).map(|blocks| blocks[0])
    }

    /// Unregisters blocks, all or none, and drops their sources: writes back what is dirty, and waits for their loads. Blocks.
    pub fn unregister_blocks(&self, blocks: &[Block]) -> Result<()> {
        // SAFETY: as many numbers as are told.
        check(unsafe { sys::sh_unregister_blocks(self.raw, raw_blocks(blocks), blocks.len() as u64) })?;
        let mut kept = lock(&self.blocks);
        let dropped: Vec<Option<Kept>> = blocks.iter().map(|block| kept.remove(block)).collect();
        drop(kept);
        // Here, and not under the lock: sources may do anything when they are dropped.
        drop(dropped);
        Ok(())
    }

    /// The state of a block, also in a lost runtime.
    pub fn block_info(&self, block: Block) -> Result<BlockState> {
        let mut state = init!(sh_block_state);
        // SAFETY: the struct says its size.
        check(unsafe { sys::sh_block_info(self.raw, block.0, &mut state) })?;
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

    /// Marks the device contents of blocks as out of date: the next acquire loads them again.
    pub fn invalidate(&self, blocks: &[Block]) -> Result<()> {
        // SAFETY: as many numbers as are told.
        check(unsafe { sys::sh_invalidate_blocks(self.raw, raw_blocks(blocks), blocks.len() as u64) })
            .map(drop)
    }

    /// Begins the time in which sources may be changed, through [`SourceUpdate::bytes_mut`] or by whoever keeps what
    /// [`Source::raw`](crate::Source::raw) names: waits until no load reads them and keeps new loads from starting. Blocks.
    pub fn update_sources(&self, blocks: &[Block]) -> Result<SourceUpdate<'_>> {
        SourceUpdate::begin(self, blocks)
    }

    /// The memory given away with a block.
    pub(crate) fn exclusive_of(&self, block: Block) -> Vec<(usize, Arc<crate::source::Exclusive>)> {
        lock(&self.blocks).get(&block).map(|kept| kept.exclusive.clone()).unwrap_or_default()
    }

    /// Writes dirty contents of these blocks back to their sources and waits for it. An empty set writes nothing back. Blocks.
    pub fn write_back(&self, blocks: &[Block]) -> Result<()> {
        if blocks.is_empty() {
            return Ok(()); // in the C interface it means all
        }
        // SAFETY: as many numbers as are told.
        check(unsafe { sys::sh_write_back(self.raw, raw_blocks(blocks), blocks.len() as u64) }).map(drop)
    }

    /// Writes all dirty contents back. Blocks.
    pub fn write_back_all(&self) -> Result<()> {
        // SAFETY: no numbers, and none are told.
        check(unsafe { sys::sh_write_back(self.raw, std::ptr::null(), 0) }).map(drop)
    }

    // --- order and plan ---

    /// Tells the order in which a step uses the blocks: a hint, any order of acquires is correct. An empty order is learned.
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
        // SAFETY: as many structs as are told, each with its size; copied.
        check(unsafe { sys::sh_set_schedule(self.raw, uses.as_ptr(), uses.len() as u64) }).map(drop)
    }

    /// Plans what stays and what streams, and puts the plan into force: now, or when the next step begins. Blocks.
    pub fn plan(&self) -> Result<PlanInfo> {
        self.plan_with(&PlanOptions::default())
    }

    /// Plans with options. Blocks.
    pub fn plan_with(&self, options: &PlanOptions) -> Result<PlanInfo> {
        let mut raw = init!(sh_plan_options);
        raw.flags = if options.dry_run { sys::SH_PLAN_DRY_RUN } else { 0 }
            | if options.drop_graphs { sys::SH_PLAN_DROP_GRAPHS } else { 0 };
        raw.budget_bytes = options.budget_bytes;
        raw.link_bytes_per_second = options.link_bytes_per_second;
        let mut info = init!(sh_plan_info);
        // SAFETY: the structs say their sizes.
        check(unsafe { sys::sh_plan(self.raw, &raw, &mut info) })?;
        Ok(info)
    }

    // --- pressure and counters ---

    /// Calls a closure when others want device memory that this runtime has beyond its share and cannot give up at once. It gets the
    /// number of bytes. It runs on the thread that asks for the memory, and must neither call the library nor block: it may set a flag, so
    /// that the engine ends its step or releases views. A panic in it is told on standard error only.
    pub fn set_pressure<F>(&self, pressure: F) -> Result<()>
    where
        F: Fn(u64) + Send + Sync + 'static,
    {
        let pressure = Arc::new(pressure);
        let user_data = Arc::as_ptr(&pressure).cast_mut().cast();
        self.change_pressure(Some(run_pressure::<F>), user_data, Some(Box::new(pressure)))
    }

    /// Ends [`set_pressure`](Runtime::set_pressure): when it returns, the closure is not called any more.
    pub fn clear_pressure(&self) -> Result<()> {
        self.change_pressure(None, std::ptr::null_mut(), None)
    }

    fn change_pressure(
        &self,
        run: sys::sh_pressure_fn,
        data: *mut c_void,
        keep: Option<Box<dyn Keep>>,
    ) -> Result<()> {
        let mut kept = lock(&self.pressure);
        // SAFETY: the closure is kept until this is called again and has returned, or the runtime is destroyed.
        check(unsafe { sys::sh_set_pressure(self.raw, run, data) })?;
        let before = std::mem::replace(&mut *kept, keep);
        drop(kept);
        drop(before);
        Ok(())
    }

    /// Reads the counters, also of a lost runtime.
    pub fn stats(&self) -> Result<RuntimeStats> {
        let mut stats = init!(sh_runtime_stats);
        // SAFETY: the struct says its size.
        check(unsafe { sys::sh_stats(self.raw, &mut stats) })?;
        Ok(stats)
    }

    /// Writes one JSON object a step to a file.
    pub fn telemetry_open(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = c_path("path", path.as_ref())?;
        // SAFETY: the path is copied.
        check(unsafe { sys::sh_telemetry_open(self.raw, path.as_ptr()) }).map(drop)
    }

    /// Ends that.
    pub fn telemetry_close(&self) -> Result<()> {
        // SAFETY: NULL stops it.
        check(unsafe { sys::sh_telemetry_open(self.raw, std::ptr::null()) }).map(drop)
    }
}

unsafe extern "C" fn run_pressure<F>(_runtime: *mut sys::sh_runtime, bytes: u64, user_data: *mut c_void)
where
    F: Fn(u64) + Send + Sync + 'static,
{
    // SAFETY: the Arc's contents, which the runtime keeps until nothing calls this any more.
    let pressure = unsafe { &*user_data.cast::<F>() };
    // There is nobody to tell of a panic.
    let _ = guarded(|| pressure(bytes));
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // SAFETY: nothing borrows the runtime any more. When it returns, no callback runs and no source is read; these and the streams
        // are dropped after it.
        unsafe { sys::sh_runtime_destroy(self.raw) }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Runtime").field(&self.raw).finish()
    }
}
