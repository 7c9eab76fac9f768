//! Sources: where the bytes of a block come from, and the objects that keep these bytes valid while the library may
//! read them.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use libstagehand_sys as sys;

use crate::PinnedMemory;
use crate::callback::answered;
use crate::error::{Error, Result, Status, check, init};

/// Any value that is kept alive while the library may use it. It is dropped on the thread that ends this use.
pub(crate) trait Keep: Send + Sync {}
impl<T: Send + Sync> Keep for T {}

/// Memory that belongs to one source alone. The library may write to it. The caller may write to it between
/// [`update_sources`](crate::Runtime::update_sources) and the end of that update.
pub(crate) struct Exclusive {
    pointer: *mut u8,
    bytes: usize,
    // Moving a Vec or a PinnedMemory does not invalidate pointers to its bytes. Nothing accesses the bytes through this
    // field.
    _memory: Box<dyn Keep>,
}

// SAFETY: the value owns the memory behind the pointer.
unsafe impl Send for Exclusive {}
// SAFETY: the pointer is dereferenced only by a holder that has the bytes for itself; see SourceUpdate.
unsafe impl Sync for Exclusive {}

impl Exclusive {
    /// Returns the address and the length of the bytes.
    pub(crate) fn as_raw(&self) -> (*mut u8, usize) {
        (self.pointer, self.bytes)
    }
}

pub(crate) enum Keeper {
    /// The caller has promised to keep the bytes.
    Caller,
    /// The file, or the memory, is needed only until the block is registered.
    Registration(Box<dyn Keep>),
    Shared(Box<dyn Keep>),
    Exclusive(Arc<Exclusive>),
}

/// Formats of floating-point weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WeightFormat {
    /// 8 bits of exponent and 7 of mantissa.
    Bf16 = sys::SH_FORMAT_BF16,
    /// 5 bits of exponent and 10 of mantissa.
    F16 = sys::SH_FORMAT_F16,
    /// 8 bits of exponent and 23 of mantissa.
    F32 = sys::SH_FORMAT_F32,
    /// 4 bits of exponent and 3 of mantissa.
    F8E4M3 = sys::SH_FORMAT_F8_E4M3,
    /// 5 bits of exponent and 2 of mantissa.
    F8E5M2 = sys::SH_FORMAT_F8_E5M2,
}

/// A range of bytes that a block, or a part of a block, is loaded from.
///
/// A registered source keeps its bytes alive until its blocks are unregistered or the runtime is dropped. So safe code
/// cannot free or change bytes that the library still reads.
pub struct Source {
    pub(crate) segment: sys::sh_segment,
    pub(crate) keeper: Keeper,
}

// SAFETY: the keeper owns the memory behind the segment's pointers, and the memory may be read on any thread. For
// Keeper::Caller, the caller has promised this.
unsafe impl Send for Source {}

impl Source {
    /// Makes a source of shared memory that nobody changes: an `Arc` of a `Vec<u8>`, of a `[u8]` or of a
    /// [`PinnedMemory`]. The device copies pinned memory directly, without the staging buffers.
    pub fn shared<T>(memory: Arc<T>) -> Source
    where
        T: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
    {
        Source::kept(sys::SH_SOURCE_POINTER, memory)
    }

    /// Makes a source of a mapped file, e.g. of an `Arc` of a `memmap2::Mmap`. The library reads the file by calls that
    /// return an error. A file that has shrunk therefore gives [`Status::SOURCE`] and not a signal.
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
        // The slice lives as long as the Arc. The Arc does not move its value and gives no mutable borrow of it.
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

    /// Makes a source of memory that is given away. Only memory that is given away can be a source of
    /// [mutable](crate::BlockDesc::mutable) blocks, or be changed by
    /// [`SourceUpdate::bytes_mut`](crate::SourceUpdate::bytes_mut).
    pub fn owned(memory: Vec<u8>) -> Source {
        let mut memory = memory;
        let (pointer, bytes) = (memory.as_mut_ptr(), memory.len());
        Source::exclusive(pointer, bytes, Box::new(memory))
    }

    /// Makes a source of pinned memory that is given away. Otherwise as [`Source::owned`].
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

    /// Makes a source of `bytes` bytes of a file, beginning at `offset`. The library reads the bytes when it loads
    /// them. The library keeps its own duplicate of the file descriptor.
    pub fn file(file: Arc<File>, offset: u64, bytes: u64) -> Source {
        let mut segment = init!(sh_segment);
        segment.kind = sys::SH_SOURCE_FILE;
        segment.bytes = bytes;
        segment.file = file.as_raw_fd().into();
        segment.file_offset = offset;
        Source::new(segment, Keeper::Registration(Box::new(file)))
    }

    /// Takes the source as a packed tensor of `stagehand pack`, and uses `bytes` bytes of its contents, from `offset`.
    /// It crosses the link packed, and the device unpacks it. Registering the block returns
    /// [`Status::INVALID_ARGUMENT`] if the source is no packed tensor, is a closure, or has fewer contents. The packed
    /// tensor must not change while the block is registered: a load returns [`Status::SOURCE`] if a checksum shows it.
    ///
    /// # Errors
    /// [`Status::INVALID_ARGUMENT`] if the source is empty, or if it is taken as packed, or to be packed, already.
    pub fn packed(mut self, offset: u64, bytes: u64) -> Result<Source> {
        if self.segment.bytes == 0 || self.segment.packed_bytes != 0 || self.segment.format != 0 {
            return Err(Error::new(Status::INVALID_ARGUMENT, "packed: the source is empty, or is packed already"));
        }
        self.segment.packed_bytes = self.segment.bytes;
        self.segment.packed_offset = offset;
        self.segment.bytes = bytes;
        Ok(self)
    }

    /// Takes the source as weights of this format, which the registration packs without loss into pinned memory of the
    /// library. The source's memory is dropped afterwards, and
    /// [`SourceUpdate::replace`](crate::SourceUpdate::replace) gives the block new contents. The memory stays if the
    /// block is [mutable](crate::BlockDesc::mutable): changes are written there, and the block is plain from the first
    /// one on.
    ///
    /// # Errors
    /// [`Status::INVALID_ARGUMENT`] if the source is not memory, or is packed already.
    pub fn pack(mut self, format: WeightFormat) -> Result<Source> {
        if self.segment.kind != sys::SH_SOURCE_POINTER || self.segment.packed_bytes != 0 {
            return Err(Error::new(Status::INVALID_ARGUMENT, "pack: the source is not memory, or is packed already"));
        }
        self.segment.format = format as u32;
        Ok(self)
    }

    /// Makes a source of `bytes` bytes that a closure writes. The closure gets a buffer, and the offset in this source
    /// at which the buffer begins.
    ///
    /// The library calls the closure on its own threads, several times at once for different ranges, in any order, and
    /// again for each load. The closure must not call the library.
    ///
    /// An error or a panic of the closure fails the load. The acquire that waits for the load then returns
    /// [`Status::CALLBACK`] with the text of the error or of the panic.
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

    /// Returns a part of a shared or mapped source. The range is in bytes.
    ///
    /// # Errors
    /// [`Status::INVALID_ARGUMENT`] if the source is neither shared nor mapped, or if the range is not within the
    /// source.
    pub fn range(mut self, range: Range<usize>) -> Result<Source> {
        let whole = 0..self.segment.bytes as usize;
        let simple = matches!(self.segment.kind, sys::SH_SOURCE_POINTER | sys::SH_SOURCE_MAPPED);
        if !simple || matches!(self.keeper, Keeper::Exclusive(_)) || self.segment.packed_bytes != 0 {
            return Err(Error::new(Status::INVALID_ARGUMENT, "range: only shared and mapped sources have parts"));
        }
        if range.start > range.end || range.end > whole.end {
            let text = format!("range: {range:?} is not within the source, which has {} bytes", whole.end);
            return Err(Error::new(Status::INVALID_ARGUMENT, text));
        }
        self.segment.pointer = self.segment.pointer.cast::<u8>().wrapping_add(range.start).cast();
        self.segment.bytes = range.len() as u64;
        Ok(self)
    }

    /// Makes a source of memory that the caller keeps.
    ///
    /// # Safety
    /// The bytes must stay readable and unchanged until the blocks of this source are unregistered or their runtime is
    /// dropped. They may be changed between [`update_sources`](crate::Runtime::update_sources) and the end of that
    /// update. In a mutable block, the library also writes to the bytes, and no other code may use them meanwhile.
    pub unsafe fn raw(memory: *mut u8, bytes: u64) -> Source {
        // SAFETY: the caller keeps the contract of this function.
        unsafe { Source::from_raw(sys::SH_SOURCE_POINTER, memory.cast(), bytes) }
    }

    /// Makes a source of memory of this device, or of another device that this device's driver can copy from.
    ///
    /// # Safety
    /// As for [`Source::raw`], with device memory.
    pub unsafe fn device(address: *mut c_void, bytes: u64) -> Source {
        // SAFETY: the caller keeps the contract of this function.
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

    /// Returns the length of the source in bytes.
    pub fn bytes(&self) -> u64 {
        self.segment.bytes
    }

    /// Returns whether the library may write to the source.
    pub(crate) fn may_be_written(&self) -> bool {
        matches!(self.keeper, Keeper::Caller | Keeper::Exclusive(_))
    }
}

/// Unpacks a range of the contents of a packed tensor (`stagehand pack`), which begins at `offset`, into `out`.
///
/// # Errors
/// [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if the range ends behind the contents, and
/// [`Status::SOURCE`](crate::Status::SOURCE) if `packed` is not a whole packed tensor, or is damaged.
pub fn unpack(packed: &[u8], offset: u64, out: &mut [u8]) -> Result<()> {
    // SAFETY: both slices are valid for their lengths during the call.
    check(unsafe {
        sys::sh_unpack(packed.as_ptr().cast(), packed.len() as u64, offset, out.len() as u64, out.as_mut_ptr().cast())
    })?;
    Ok(())
}

unsafe extern "C" fn run_fill<F>(buffer: *mut c_void, offset: u64, bytes: u64, user_data: *mut c_void) -> i32
where
    F: Fn(&mut [u8], u64) -> io::Result<()> + Send + Sync + 'static,
{
    if bytes == 0 {
        return 0;
    }
    // SAFETY: this points into the Arc, which the runtime keeps until the library calls this function no more.
    let fill = unsafe { &*user_data.cast::<F>() };
    // SAFETY: the buffer has `bytes` bytes, is valid during the call and belongs to this call alone (runtime.h). The
    // buffer is staging memory of the library. The system zeroed it once, so it is initialised, although it may hold
    // other weights now.
    let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes as usize) };
    answered(|| fill(buffer, offset))
}
