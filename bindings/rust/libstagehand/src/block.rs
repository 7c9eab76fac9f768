//! Blocks: what is used, and moves, together.

use std::ffi::{CString, c_void};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use libstagehand_sys as sys;

use crate::callback::answered;
use crate::error::{Error, Result, Status, c_string, init};
use crate::graph::Capturing;
use crate::source::{Exclusive, Keep, Keeper, Source};
use crate::{Device, Runtime, stream};

/// A block of one runtime: a number that is not reused while the runtime lives. With another runtime, or after it was
/// unregistered, it is [`Status::INVALID_HANDLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Block(pub(crate) sys::sh_block);

impl Block {
    /// A block of the C interface.
    pub fn from_raw(block: sys::sh_block) -> Block {
        Block(block)
    }

    /// The number in the C interface.
    #[inline]
    pub fn as_raw(self) -> sys::sh_block {
        self.0
    }
}

/// The numbers of many blocks, as C wants them.
pub(crate) fn raw_blocks(blocks: &[Block]) -> *const sys::sh_block {
    // Block is transparent.
    blocks.as_ptr().cast()
}

type OnLoad = dyn Fn(&LoadedRange<'_>) -> io::Result<()> + Send + Sync;

/// A block to be registered: its size on the device, its sources and what it is.
pub struct BlockDesc {
    bytes: u64,
    flags: u32,
    name: Option<String>,
    sources: Vec<(u64, Source)>,
    on_load: Option<Arc<OnLoad>>,
}

impl BlockDesc {
    /// A block of so many bytes. What no source covers is undefined.
    pub fn new(bytes: u64) -> BlockDesc {
        BlockDesc { bytes, flags: 0, name: None, sources: Vec::new(), on_load: None }
    }

    /// A block that one source fills.
    pub fn from_source(source: Source) -> BlockDesc {
        BlockDesc::new(source.bytes()).source(0, source)
    }

    /// Adds a source, which begins at `offset` in the block. Sources must not overlap.
    pub fn source(mut self, offset: u64, source: Source) -> BlockDesc {
        self.sources.push((offset, source));
        self
    }

    /// A name for messages and traces.
    pub fn name(mut self, name: impl Into<String>) -> BlockDesc {
        self.name = Some(name.into());
        self
    }

    /// The engine changes it on the device: [`View::mark_dirty`](crate::View::mark_dirty) has it written back. All its sources must be
    /// memory given away ([`Source::owned`], [`Source::pinned`]) or the caller's ([`Source::raw`]).
    pub fn mutable(self) -> BlockDesc {
        self.flag(sys::SH_BLOCK_MUTABLE)
    }

    /// Never partly resident: [`on_load`](BlockDesc::on_load) sees the whole block at once.
    pub fn whole(self) -> BlockDesc {
        self.flag(sys::SH_BLOCK_WHOLE)
    }

    /// Not part of the order of use (an expert, a row shard): loaded when acquired, kept while there is room.
    pub fn unordered(self) -> BlockDesc {
        self.flag(sys::SH_BLOCK_UNORDERED)
    }

    /// Pin its memory while it is registered; if the system refuses, it is read unpinned, with a warning.
    pub fn pin(self) -> BlockDesc {
        self.flag(sys::SH_BLOCK_PIN)
    }

    fn flag(mut self, flag: u32) -> BlockDesc {
        self.flags |= flag;
        self
    }

    /// Calls a closure after each load of a range has been queued, once a load and contiguous range, so that an engine can dequantise or
    /// apply a patch exactly once a load. It runs on the thread that issues the load: one of the engine's, or the library's. Of
    /// the library it may call [`LoadedRange::launch`] and [`LoadedRange::launch_on_bytes`] only. An error or a panic fails the load, as
    /// [`Status::CALLBACK`].
    pub fn on_load<F>(mut self, on_load: F) -> BlockDesc
    where
        F: Fn(&LoadedRange<'_>) -> io::Result<()> + Send + Sync + 'static,
    {
        self.on_load = Some(Arc::new(on_load));
        self
    }
}

/// What a registered block keeps alive.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) _shared: Vec<Box<dyn Keep>>,
    /// By the index of the source.
    pub(crate) exclusive: Vec<(usize, Arc<Exclusive>)>,
}

/// Descriptors as C wants them, with what they point to.
pub(crate) struct Prepared {
    pub(crate) descs: Vec<sys::sh_block_desc>,
    pub(crate) kept: Vec<Kept>,
    _names: Vec<CString>,
    _segments: Vec<Vec<sys::sh_segment>>,
    _files: Vec<Arc<File>>,
}

impl Prepared {
    pub(crate) fn new(runtime: &Runtime, blocks: Vec<BlockDesc>) -> Result<Prepared> {
        let mut prepared = Prepared {
            descs: Vec::with_capacity(blocks.len()),
            kept: Vec::with_capacity(blocks.len()),
            _names: Vec::new(),
            _segments: Vec::with_capacity(blocks.len()),
            _files: Vec::new(),
        };
        for (index, block) in blocks.into_iter().enumerate() {
            prepared.add(runtime, index, block)?;
        }
        Ok(prepared)
    }

    fn add(&mut self, runtime: &Runtime, index: usize, block: BlockDesc) -> Result<()> {
        let mut desc = init!(sh_block_desc);
        desc.flags = block.flags;
        desc.bytes = block.bytes;
        let called = block.name.as_deref().map_or(format!("number {index}"), |name| format!("{name:?}"));
        if let Some(name) = &block.name {
            let name = c_string("name of a block", name)?;
            desc.name = name.as_ptr();
            self._names.push(name);
        }
        let mut kept = Kept::default();
        let mut segments = Vec::with_capacity(block.sources.len());
        for (number, (offset, source)) in block.sources.into_iter().enumerate() {
            // What is shared must not be written to.
            if block.flags & sys::SH_BLOCK_MUTABLE != 0 && !source.may_be_written() {
                let text =
                    format!("block {called}: source {number} of a mutable block is not memory given away");
                return Err(Error::new(Status::INVALID_ARGUMENT, text));
            }
            segments.push(sys::sh_segment { offset, ..source.segment });
            match source.keeper {
                Keeper::Caller => {}
                Keeper::Registration(file) => self._files.push(file),
                Keeper::Shared(keep) => kept._shared.push(keep),
                Keeper::Exclusive(memory) => kept.exclusive.push((number, memory)),
            }
        }
        if let Some(closure) = block.on_load {
            let hook = Arc::new(Hook {
                device: runtime.device().clone(),
                host_addressable: runtime.host_addressable,
                capturing: runtime.capturing.clone(),
                closure,
            });
            desc.on_load = Some(run_on_load);
            desc.user_data = Arc::as_ptr(&hook).cast_mut().cast();
            kept._shared.push(Box::new(hook));
        }
        desc.segments = segments.as_ptr();
        desc.segment_count = segments.len() as u64;
        self._segments.push(segments);
        self.descs.push(desc);
        self.kept.push(kept);
        Ok(())
    }
}

/// What `on_load` needs beside the closure.
struct Hook {
    device: Device,
    host_addressable: bool,
    capturing: Arc<Capturing>,
    closure: Arc<OnLoad>,
}

unsafe extern "C" fn run_on_load(range: *const sys::sh_loaded_range, user_data: *mut c_void) -> i32 {
    // SAFETY: the Arc's contents, which the runtime keeps until nothing calls this any more.
    let hook = unsafe { &*user_data.cast::<Hook>() };
    // SAFETY: runtime.h: valid during the call.
    let raw = unsafe { *range };
    answered(|| (hook.closure)(&LoadedRange { raw, hook, _call: PhantomData }))
}

/// A contiguous range of a block's device memory that was just loaded; the bytes need not be there yet.
pub struct LoadedRange<'call> {
    raw: sys::sh_loaded_range,
    hook: &'call Hook,
    // Of this thread and this call: what is under way is this load.
    _call: PhantomData<*const ()>,
}

impl LoadedRange<'_> {
    /// The block.
    pub fn block(&self) -> Block {
        Block(self.raw.block)
    }

    /// Device address of the range, not of the block.
    pub fn address(&self) -> *mut c_void {
        self.raw.address
    }

    /// Where the range begins in the block.
    pub fn offset(&self) -> u64 {
        self.raw.offset
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.raw.bytes
    }

    /// Size of the whole block.
    pub fn block_bytes(&self) -> u64 {
        self.raw.block_bytes
    }

    /// The copy stream: work queued on it runs after the load and before any use.
    pub fn stream(&self) -> sys::sh_stream {
        self.raw.stream
    }

    /// Queues a closure on the copy stream, see [`Stream::launch`](crate::Stream::launch). A panic in it is told on standard error only.
    /// While the runtime captures it is refused.
    pub fn launch(&self, busy: Duration, closure: impl FnOnce() + Send + 'static) -> Result<()> {
        self.hook.capturing.refuse("launch")?;
        // SAFETY: the copy stream is alive during the call, and is of the device.
        let status = unsafe { stream::launch(self.hook.device.as_raw(), self.raw.stream, busy, closure) };
        // The text of the error cannot be asked for here: sh_load_fn allows no other call.
        if status < 0 {
            return Err(Error::new(Status(status), "launch: the copy stream did not take the closure"));
        }
        Ok(())
    }

    /// Queues a closure that changes the bytes of the range in place, on a device whose memory the host can write to.
    pub fn launch_on_bytes(
        &self,
        busy: Duration,
        closure: impl FnOnce(&mut [u8]) + Send + 'static,
    ) -> Result<()> {
        if !self.hook.host_addressable {
            let text = "launch_on_bytes: the host cannot write to this device's memory";
            return Err(Error::new(Status::UNSUPPORTED, text));
        }
        let (address, bytes) = (self.raw.address as usize, self.raw.bytes as usize);
        self.launch(busy, move || {
            // SAFETY: the host can address it, and the range is this load's alone: after its copy, before any use (runtime.h).
            closure(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) });
        })
    }
}

/// What is known of a block at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockState {
    /// `SH_BLOCK_*` of [`sys`], as registered.
    pub flags: u32,
    /// `SH_BLOCK_UNLOADED` … `SH_BLOCK_DRAINING` of [`sys`].
    pub state: u32,
    /// Views held now.
    pub held: u32,
    /// Its device address; memory is behind it only while a view is held.
    pub address: *mut c_void,
    /// Size on the device.
    pub bytes: u64,
    /// Part that the plan in force keeps on the device.
    pub resident_bytes: u64,
    /// Part that shares memory, and is loaded again when others used it.
    pub streamed_bytes: u64,
    /// Part whose contents are on the device now.
    pub present_bytes: u64,
    /// Grows each time any of its contents are loaded.
    pub serial: u64,
    /// Cut to fit.
    pub name: String,
    /// Times that it is protected now.
    pub protections: u64,
}
