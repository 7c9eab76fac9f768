//! Sources: where the bytes of a block come from, and what keeps them there for as long as the library may read them.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libstagehand_sys as sys;

use crate::PinnedMemory;
use crate::callback::answered;
use crate::error::{Error, Result, Status, init};

/// Anything that is kept alive while the library may use it, and dropped on whichever thread ends that.
pub(crate) trait Keep: Send + Sync {}
impl<T: Send + Sync> Keep for T {}

/// Memory that belongs to one source alone: the library may write to it, and between
/// [`update_sources`](crate::Runtime::update_sources) and its end the caller may.
pub(crate) struct Exclusive {
    pointer: *mut u8,
    bytes: usize,
    // Pointers into a Vec or a PinnedMemory stay right when these move; nothing reaches the bytes through them.
    _memory: Box<dyn Keep>,
}

// SAFETY: it owns the memory behind the pointer.
unsafe impl Send for Exclusive {}
// SAFETY: the pointer is followed only while its holder has the bytes for itself, see SourceUpdate.
unsafe impl Sync for Exclusive {}

impl Exclusive {
    /// The bytes.
    pub(crate) fn as_raw(&self) -> (*mut u8, usize) {
        (self.pointer, self.bytes)
    }
}

pub(crate) enum Keeper {
    /// The caller has promised to keep it.
    Caller,
    /// Needed until the block is registered, and no longer.
    Registration(Arc<File>),
    Shared(Box<dyn Keep>),
    Exclusive(Arc<Exclusive>),
}

/// A range of bytes that a block, or a part of one, is loaded from. A source keeps what it reads alive: once registered, until its
/// blocks are unregistered or the runtime is dropped, so that safe code cannot free or change bytes that the library still reads.
pub struct Source {
    pub(crate) segment: sys::sh_segment,
    pub(crate) keeper: Keeper,
}

// SAFETY: the pointers in the segment are to memory that the keeper owns and that may be read on any thread, or of which the caller has
// promised that.
unsafe impl Send for Source {}

impl Source {
    /// Shared memory that nobody changes: an `Arc` of a `Vec<u8>`, a `[u8]`, a [`PinnedMemory`]. Memory that is pinned is copied
    /// without a detour.
    pub fn shared<T>(memory: Arc<T>) -> Source
    where
        T: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
    {
        Source::kept(sys::SH_SOURCE_POINTER, memory)
    }

    /// A mapped file, e.g. an `Arc` of a `memmap2::Mmap`. It is read by calls that return an error, so a file that shrinks is
    /// [`Status::SOURCE`] and not a signal.
    pub fn mapped<T>(map: Arc<T>) -> Source
    where
        T: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
    {
        Source::kept(sys::SH_SOURCE_MAPPED, map)
    }

    fn kept<T>(kind: u32, memory: Arc<T>) -> Source
    where
        T: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
    {
        // The slice lives as long as the Arc, which does not move what it holds and lets nobody borrow it mutably.
        let slice: &[u8] = (*memory).as_ref();
        let mut segment = init!(sh_segment);
        segment.kind = kind;
        segment.bytes = slice.len() as u64;
        segment.pointer = slice.as_ptr().cast_mut().cast();
        Source::new(segment, Keeper::Shared(Box::new(memory)))
    }

    fn new(segment: sys::sh_segment, keeper: Keeper) -> Source {
        Source { segment, keeper }
    }

    /// Memory given away: the only kind for [mutable](crate::BlockDesc::mutable) blocks, and for contents that
    /// [`SourceUpdate::bytes_mut`](crate::SourceUpdate::bytes_mut) changes.
    pub fn owned(memory: Vec<u8>) -> Source {
        let mut memory = memory;
        let (pointer, bytes) = (memory.as_mut_ptr(), memory.len());
        Source::exclusive(pointer, bytes, Box::new(memory))
    }

    /// Pinned memory given away; otherwise as [`Source::owned`].
    pub fn pinned(memory: PinnedMemory) -> Source {
        let mut memory = memory;
        let (pointer, bytes) = (memory.as_mut_ptr(), memory.len());
        Source::exclusive(pointer, bytes, Box::new(memory))
    }

    fn exclusive(pointer: *mut u8, bytes: usize, memory: Box<dyn Keep>) -> Source {
        let mut segment = init!(sh_segment);
        segment.kind = sys::SH_SOURCE_POINTER;
        segment.bytes = bytes as u64;
        segment.pointer = pointer.cast();
        Source::new(segment, Keeper::Exclusive(Arc::new(Exclusive { pointer, bytes, _memory: memory })))
    }

    /// `bytes` bytes of a file from `offset` on, read when they are loaded. The library keeps a descriptor of its own.
    pub fn file(file: Arc<File>, offset: u64, bytes: u64) -> Source {
        let mut segment = init!(sh_segment);
        segment.kind = sys::SH_SOURCE_FILE;
        segment.bytes = bytes;
        segment.file = file.as_raw_fd().into();
        segment.file_offset = offset;
        Source::new(segment, Keeper::Registration(file))
    }

    /// `bytes` bytes that a closure writes: it gets a buffer, and the offset in this source where the buffer begins. It is called on
    /// threads of the library, several at once for different ranges, in any order and again for each load, and must not call the
    /// library. An error or a panic fails the load, and the acquire that waits for it, as [`Status::CALLBACK`] with its text.
    pub fn fill<F>(bytes: u64, fill: F) -> Source
    where
        F: Fn(&mut [u8], u64) -> io::Result<()> + Send + Sync + 'static,
    {
        let fill = Arc::new(fill);
        let mut segment = init!(sh_segment);
        segment.kind = sys::SH_SOURCE_FILL;
        segment.bytes = bytes;
        segment.fill = Some(run_fill::<F>);
        segment.user_data = Arc::as_ptr(&fill).cast_mut().cast();
        Source::new(segment, Keeper::Shared(Box::new(fill)))
    }

    /// A part of a shared or mapped source.
    pub fn range(mut self, range: Range<usize>) -> Result<Source> {
        let whole = 0..self.segment.bytes as usize;
        let simple = matches!(self.segment.kind, sys::SH_SOURCE_POINTER | sys::SH_SOURCE_MAPPED);
        if !simple || matches!(self.keeper, Keeper::Exclusive(_)) {
            return Err(Error::new(
                Status::INVALID_ARGUMENT,
                "range: only shared and mapped sources have parts",
            ));
        }
        if range.start > range.end || range.end > whole.end {
            let text = format!("range: {range:?} is not in a source of {} bytes", whole.end);
            return Err(Error::new(Status::INVALID_ARGUMENT, text));
        }
        self.segment.pointer = self.segment.pointer.cast::<u8>().wrapping_add(range.start).cast();
        self.segment.bytes = range.len() as u64;
        Ok(self)
    }

    /// Memory that the caller keeps.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until the blocks of this source are unregistered or their runtime is dropped (but between
    /// [`update_sources`](crate::Runtime::update_sources) and its end, when they may be changed). In a mutable block the library
    /// also writes to them, and nobody else may use them meanwhile.
    pub unsafe fn raw(memory: *mut u8, bytes: u64) -> Source {
        // SAFETY: passed on.
        unsafe { Source::from_raw(sys::SH_SOURCE_POINTER, memory.cast(), bytes) }
    }

    /// Memory of this device, or of another one that its driver can copy from.
    ///
    /// # Safety
    /// As for [`Source::raw`], on the device.
    pub unsafe fn device(address: *mut c_void, bytes: u64) -> Source {
        // SAFETY: passed on.
        unsafe { Source::from_raw(sys::SH_SOURCE_DEVICE, address, bytes) }
    }

    /// # Safety
    /// As for [`Source::raw`].
    unsafe fn from_raw(kind: u32, pointer: *mut c_void, bytes: u64) -> Source {
        let mut segment = init!(sh_segment);
        segment.kind = kind;
        segment.bytes = bytes;
        segment.pointer = pointer;
        Source::new(segment, Keeper::Caller)
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.segment.bytes
    }

    /// Whether the library may write to it.
    pub(crate) fn may_be_written(&self) -> bool {
        matches!(self.keeper, Keeper::Caller | Keeper::Exclusive(_))
    }
}

unsafe extern "C" fn run_fill<F>(buffer: *mut c_void, offset: u64, bytes: u64, user_data: *mut c_void) -> i32
where
    F: Fn(&mut [u8], u64) -> io::Result<()> + Send + Sync + 'static,
{
    if bytes == 0 {
        return 0;
    }
    // SAFETY: the Arc's contents, which the runtime keeps until nothing calls this any more.
    let fill = unsafe { &*user_data.cast::<F>() };
    // SAFETY: runtime.h: a buffer of so many bytes, valid during the call, for this call alone. It is the library's staging memory,
    // which the system has zeroed once and which held other weights since.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes as usize) };
    answered(|| fill(buffer, offset))
}
