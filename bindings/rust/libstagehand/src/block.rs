//! Blocks: the units that an engine uses and the library moves as a whole.

use std::ffi::{CString, c_void};
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

/// A block of one runtime. The number is not reused while the runtime lives.
///
/// Calls return [`Status::INVALID_HANDLE`] if the block belongs to another runtime or was unregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Block(pub(crate) sys::sh_block);

impl Block {
    /// Wraps a block id of the C interface.
    pub fn from_raw(block: sys::sh_block) -> Block {
        Block(block)
    }

    /// Returns the block id of the C interface.
    #[inline]
    pub fn as_raw(self) -> sys::sh_block {
        self.0
    }
}

/// Returns the blocks as an array of ids for the C interface.
pub(crate) fn raw_blocks(blocks: &[Block]) -> *const sys::sh_block {
    // Block is `repr(transparent)` over the id.
    blocks.as_ptr().cast()
}

type OnLoad = dyn Fn(&LoadedRange<'_>) -> io::Result<()> + Send + Sync;

/// Describes a block that is to be registered: its size on the device, its sources and its properties.
pub struct BlockDesc {
    bytes: u64,
    flags: u32,
    name: Option<String>,
    sources: Vec<(u64, Source)>,
    on_load: Option<Arc<OnLoad>>,
}

impl BlockDesc {
    /// Describes a block of `bytes` bytes on the device. Bytes that no source covers are undefined.
    pub fn new(bytes: u64) -> BlockDesc {
        BlockDesc { bytes, flags: 0, name: None, sources: Vec::new(), on_load: None }
    }

    /// Describes a block that one source fills.
    pub fn from_source(source: Source) -> BlockDesc {
        BlockDesc::new(source.bytes()).source(0, source)
    }

    /// Adds a source that begins at `offset` in the block, in bytes. Sources must not overlap.
    pub fn source(mut self, offset: u64, source: Source) -> BlockDesc {
        self.sources.push((offset, source));
        self
    }

    /// Sets a name for messages and traces.
    pub fn name(mut self, name: impl Into<String>) -> BlockDesc {
        self.name = Some(name.into());
        self
    }

    /// Declares that the engine changes the block on the device. The library writes the changes back to the sources
    /// after [`View::mark_dirty`](crate::View::mark_dirty).
    ///
    /// Every source must be memory that was given away ([`Source::owned`], [`Source::pinned`]) or memory of the caller
    /// ([`Source::raw`]). Registering the block returns [`Status::INVALID_ARGUMENT`] if another source is among them.
    pub fn mutable(self) -> BlockDesc {
        self.flag(sys::SH_BLOCK_MUTABLE)
    }

    /// Keeps the block from being divided into a resident and a streamed part. [`on_load`](BlockDesc::on_load) gets the
    /// whole block in one range.
    pub fn whole(self) -> BlockDesc {
        self.flag(sys::SH_BLOCK_WHOLE)
    }

    /// Takes the block out of the order of use, for example because it is an expert or a row shard. The library loads
    /// the block when it is acquired, and keeps the block while there is room.
    pub fn unordered(self) -> BlockDesc {
        self.flag(sys::SH_BLOCK_UNORDERED)
    }

    /// Pins the block's memory while the block is registered. The library logs a warning and reads the memory unpinned
    /// if the system refuses to pin it.
    pub fn pin(self) -> BlockDesc {
        self.flag(sys::SH_BLOCK_PIN)
    }

    fn flag(mut self, flag: u32) -> BlockDesc {
        self.flags |= flag;
        self
    }

    /// Sets a closure that runs after a load of a range was queued, so that an engine can dequantise or patch the bytes
    /// exactly once per load. The closure runs once per load and contiguous range.
    ///
    /// The closure runs on the thread that issues the load. This is a thread of the engine or of the library. Of the
    /// library, the closure may call only [`LoadedRange::launch`] and [`LoadedRange::launch_on_bytes`].
    ///
    /// An error or a panic of the closure fails the load. The acquire then returns [`Status::CALLBACK`] with the text
    /// of the error or of the panic.
    pub fn on_load<F>(mut self, on_load: F) -> BlockDesc
    where
        F: Fn(&LoadedRange<'_>) -> io::Result<()> + Send + Sync + 'static,
    {
        self.on_load = Some(Arc::new(on_load));
        self
    }
}

/// The objects that a registered block keeps alive.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) mutable: bool,
    hook: Option<Arc<Hook>>,
    _shared: Vec<Box<dyn Keep>>,
    /// Pairs of the source's index and its memory.
    pub(crate) exclusive: Vec<(usize, Arc<Exclusive>)>,
}

impl Kept {
    /// What one part of a divided block keeps alive. No update of a part has the memory for itself, because the other
    /// parts read it too.
    pub(crate) fn sharing(all: &Arc<Kept>) -> Kept {
        Kept {
            mutable: all.mutable,
            hook: all.hook.clone(),
            _shared: vec![Box::new(all.clone())],
            exclusive: Vec::new(),
        }
    }

    /// Takes what other sources of the block keep alive, and returns what the sources before kept alive.
    pub(crate) fn replace(&mut self, mut other: Kept) -> Kept {
        other.hook.clone_from(&self.hook);
        std::mem::replace(self, other)
    }
}

/// Segments for the C interface, and what keeps them alive.
pub(crate) struct Segments {
    pub(crate) all: Vec<sys::sh_segment>,
    pub(crate) kept: Kept,
    until_registered: Vec<Box<dyn Keep>>,
}

impl Segments {
    /// `called` names the block in errors.
    pub(crate) fn new(
        sources: impl IntoIterator<Item = (u64, Source)>,
        mutable: bool,
        called: &str,
    ) -> Result<Segments> {
        let mut segments =
            Segments { all: Vec::new(), kept: Kept { mutable, ..Kept::default() }, until_registered: Vec::new() };
        for (number, (offset, source)) in sources.into_iter().enumerate() {
            // The library writes to the sources of a mutable block. It must not write to shared memory.
            if mutable && !source.may_be_written() {
                let text = format!(
                    "block {called}: the block is mutable, but source {number} is not memory that was given away"
                );
                return Err(Error::new(Status::INVALID_ARGUMENT, text));
            }
            let is_copied = source.segment.format != 0 && !mutable;
            segments.all.push(sys::sh_segment { offset, ..source.segment });
            match source.keeper {
                Keeper::Caller => {}
                Keeper::Registration(keep) => segments.until_registered.push(keep),
                Keeper::Shared(keep) if is_copied => segments.until_registered.push(keep),
                Keeper::Exclusive(memory) if is_copied => segments.until_registered.push(Box::new(memory)),
                Keeper::Shared(keep) => segments.kept._shared.push(keep),
                Keeper::Exclusive(memory) => segments.kept.exclusive.push((number, memory)),
            }
        }
        Ok(segments)
    }
}

/// How large and how many the parts of a divided block are. The default leaves the size to the library, and makes at
/// most 1,024 parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLimits {
    /// The most bytes of a part. A part of one unit may have more. 0: the library chooses.
    pub largest_bytes: u64,
    /// The most parts, at least 1. Parts are larger if there would be more.
    pub most: usize,
}

impl Default for PartLimits {
    fn default() -> PartLimits {
        PartLimits { largest_bytes: 0, most: 1024 }
    }
}

/// A part of a block that [`Runtime::register_parts`] divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// The part's block.
    pub block: Block,
    /// Offset of the part in the divided block, in bytes.
    pub offset: u64,
    /// Size of the part in bytes.
    pub bytes: u64,
}

/// Descriptors for the C interface, together with everything that they point to.
pub(crate) struct Prepared {
    pub(crate) descs: Vec<sys::sh_block_desc>,
    pub(crate) kept: Vec<Kept>,
    _names: Vec<CString>,
    _segments: Vec<Vec<sys::sh_segment>>,
    _until_registered: Vec<Box<dyn Keep>>,
}

impl Prepared {
    pub(crate) fn new(runtime: &Runtime, blocks: Vec<BlockDesc>) -> Result<Prepared> {
        let mut prepared = Prepared {
            descs: Vec::with_capacity(blocks.len()),
            kept: Vec::with_capacity(blocks.len()),
            _names: Vec::new(),
            _segments: Vec::with_capacity(blocks.len()),
            _until_registered: Vec::new(),
        };
        for (index, block) in blocks.into_iter().enumerate() {
            prepared.add(runtime, index, block)?;
        }
        Ok(prepared)
    }

    fn add(&mut self, runtime: &Runtime, index: usize, block: BlockDesc) -> Result<()> {
        let mut desc = init!(sh_block_desc);
        let packs = block.sources.iter().any(|(_, source)| source.segment.format != 0);
        desc.flags = block.flags | if packs { sys::SH_BLOCK_PACK } else { 0 };
        desc.bytes = block.bytes;
        let called = block.name.as_deref().map_or(format!("number {index}"), |name| format!("{name:?}"));
        if let Some(name) = &block.name {
            let name = c_string("name of a block", name)?;
            desc.name = name.as_ptr();
            self._names.push(name);
        }
        let mutable = block.flags & sys::SH_BLOCK_MUTABLE != 0;
        let Segments { all: segments, mut kept, until_registered } = Segments::new(block.sources, mutable, &called)?;
        self._until_registered.extend(until_registered);
        if let Some(closure) = block.on_load {
            let hook = Arc::new(Hook {
                device: runtime.device().clone(),
                host_addressable: runtime.host_addressable,
                capturing: runtime.capturing.clone(),
                closure,
            });
            desc.on_load = Some(run_on_load);
            desc.user_data = Arc::as_ptr(&hook).cast_mut().cast();
            kept.hook = Some(hook);
        }
        desc.segments = segments.as_ptr();
        desc.segment_count = segments.len() as u64;
        self._segments.push(segments);
        self.descs.push(desc);
        self.kept.push(kept);
        Ok(())
    }
}

/// The closure of `on_load`, and the objects that a `LoadedRange` needs.
struct Hook {
    device: Device,
    host_addressable: bool,
    capturing: Arc<Capturing>,
    closure: Arc<OnLoad>,
}

unsafe extern "C" fn run_on_load(range: *const sys::sh_loaded_range, user_data: *mut c_void) -> i32 {
    // SAFETY: this points into the Arc, which the runtime keeps until the library calls this function no more.
    let hook = unsafe { &*user_data.cast::<Hook>() };
    // SAFETY: the range is valid during the call (runtime.h).
    let raw = unsafe { *range };
    answered(|| (hook.closure)(&LoadedRange { raw, hook, _call: PhantomData }))
}

/// A contiguous range of a block's device memory whose load was just queued. The bytes need not be there yet.
pub struct LoadedRange<'call> {
    raw: sys::sh_loaded_range,
    hook: &'call Hook,
    // The raw pointer makes the type !Send: the range belongs to this call, on this thread.
    _call: PhantomData<*const ()>,
}

impl LoadedRange<'_> {
    /// Returns the block that the range belongs to.
    pub fn block(&self) -> Block {
        Block(self.raw.block)
    }

    /// Returns the device address of the range's first byte. This is not the address of the block.
    pub fn address(&self) -> *mut c_void {
        self.raw.address
    }

    /// Returns the offset in the block at which the range begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.raw.offset
    }

    /// Returns the length of the range in bytes.
    pub fn bytes(&self) -> u64 {
        self.raw.bytes
    }

    /// Returns the size of the whole block in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.raw.block_bytes
    }

    /// Returns the copy stream. Work that is queued on this stream runs after the load and before any use of the bytes.
    pub fn stream(&self) -> sys::sh_stream {
        self.raw.stream
    }

    /// Queues a closure on the copy stream; see [`Stream::launch`](crate::Stream::launch). A panic of the closure
    /// leaves only its message on standard error.
    ///
    /// # Errors
    /// - [`Status::INVALID_STATE`] if the runtime captures.
    /// - The status of [`sh_stream_launch`](sys::sh_stream_launch) if the stream refuses the closure.
    pub fn launch(&self, busy: Duration, closure: impl FnOnce() + Send + 'static) -> Result<()> {
        self.hook.capturing.refuse("launch")?;
        // SAFETY: the copy stream belongs to the device and is alive during the call.
        let status = unsafe { stream::launch(self.hook.device.as_raw(), self.raw.stream, busy, closure) };
        // The error's text is not available here, because sh_load_fn allows no other call.
        if status < 0 {
            return Err(Error::new(Status(status), "launch: the copy stream refused the closure"));
        }
        Ok(())
    }

    /// Queues a closure that changes the bytes of the range in place.
    ///
    /// # Errors
    /// - [`Status::UNSUPPORTED`] if the host cannot write to the device's memory.
    /// - The errors of [`launch`](LoadedRange::launch).
    pub fn launch_on_bytes(&self, busy: Duration, closure: impl FnOnce(&mut [u8]) + Send + 'static) -> Result<()> {
        if !self.hook.host_addressable {
            let text = "launch_on_bytes: the host cannot write to this device's memory";
            return Err(Error::new(Status::UNSUPPORTED, text));
        }
        let (address, bytes) = (self.raw.address as usize, self.raw.bytes as usize);
        self.launch(busy, move || {
            // SAFETY: the host can address the memory. The range belongs to this load alone: the closure runs after the
            // load's copy and before any use (runtime.h).
            closure(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) });
        })
    }
}

/// The state of a block at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockState {
    /// The flags that the block was registered with: `SH_BLOCK_*` of [`sys`].
    pub flags: u32,
    /// One of `SH_BLOCK_UNLOADED` … `SH_BLOCK_DRAINING` of [`sys`].
    pub state: u32,
    /// Number of views that are held now.
    pub held: u32,
    /// The block's device address. Memory is behind the address only while a view is held. NULL if the block has no
    /// address yet, on a device without fixed addresses.
    pub address: *mut c_void,
    /// Size on the device in bytes.
    pub bytes: u64,
    /// Size of the part that the plan in force keeps on the device. 0 for blocks outside the order.
    pub resident_bytes: u64,
    /// Size of the part that shares memory with other blocks. The library loads this part again if another block has
    /// used the memory. 0 for blocks outside the order.
    pub streamed_bytes: u64,
    /// Size of the part whose contents are on the device now.
    pub present_bytes: u64,
    /// Grows each time any of the block's contents are loaded.
    pub serial: u64,
    /// The block's name, cut to fit.
    pub name: String,
    /// Number of times that the block is protected now.
    pub protections: u64,
}
