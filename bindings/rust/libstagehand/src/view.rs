//! Views: the device addresses of blocks that are held.

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Index;

use libstagehand_sys as sys;

use crate::error::{Result, check};
use crate::{Block, Runtime, Stream};

/// A block that is held. The block's device address is valid for work that is queued on the view's stream before the
/// release. Dropping the view releases the block.
///
/// The view borrows the runtime and the stream, so neither is dropped before the view.
#[must_use = "the block is released when this is dropped"]
pub struct View<'a> {
    runtime: &'a Runtime,
    stream: &'a Stream,
    view: sys::sh_view,
    /// Number of the runtime's captures that had been cancelled before the acquire.
    cancelled: u64,
}

// SAFETY: any thread may release, read or mark a block (streaming.h). The address is only a number here.
unsafe impl Send for View<'_> {}
// SAFETY: as for Send. The bytes that bytes() returns do not change while the view is held.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Takes over one acquire.
    #[inline]
    pub(crate) fn new(runtime: &'a Runtime, stream: &'a Stream, view: sys::sh_view, cancelled: u64) -> View<'a> {
        View { runtime, stream, view, cancelled }
    }

    /// Returns the device address of the block's first byte.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        self.view.address
    }

    /// Returns the size of the block in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.view.bytes
    }

    /// Returns whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.view.bytes == 0
    }

    /// Returns the block.
    pub fn block(&self) -> Block {
        Block(self.view.block)
    }

    /// Returns the serial. The serial grows each time any of the block's contents are loaded. The device contents are
    /// unchanged if the serial is unchanged.
    pub fn serial(&self) -> u64 {
        self.view.serial
    }

    /// Returns `SH_VIEW_*` of [`sys`].
    pub fn flags(&self) -> u32 {
        self.view.flags
    }

    /// Returns the bytes themselves. Returns `None` if the host cannot read the device's memory, or if the view is not
    /// on [`Stream::host`], because the bytes need not be there yet.
    ///
    /// The bytes do not change while the view is held, unless unsafe code writes through an address.
    #[inline]
    pub fn bytes(&self) -> Option<&[u8]> {
        self.runtime.bytes_of(self.stream, &self.view)
    }

    /// Copies bytes of the block into `buffer`, from `offset` on, after the work that is queued on the view's stream.
    /// Blocks.
    ///
    /// # Errors
    /// [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if the range is not within the block.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let (to, bytes) = (buffer.as_mut_ptr().cast(), buffer.len() as u64);
        // SAFETY: the pointer and the length describe `buffer`.
        check(unsafe {
            sys::sh_read_block(self.runtime.as_raw(), self.view.block, self.stream.as_raw(), offset, to, bytes)
        })
        .map(drop)
    }

    /// Reads the sources of the block again, and compares them with its bytes on the device, after the work that is
    /// queued on the view's stream. For verification and debugging. Blocks.
    ///
    /// # Errors
    /// - [`Status::CHECKSUM`](crate::Status::CHECKSUM) if a byte differs. The text names the byte.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if the block has changes that are not written back,
    ///   was invalidated, or is being updated.
    /// - [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED) if the block has an `on_load`.
    pub fn verify(&self) -> Result<()> {
        // SAFETY: the runtime, the block and the stream are alive.
        check(unsafe { sys::sh_verify_block(self.runtime.as_raw(), self.view.block, self.stream.as_raw()) }).map(drop)
    }

    /// Says that the engine has changed the device contents of a mutable block, or will change them before the release.
    ///
    /// # Errors
    /// [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if the block is not mutable, or if its source is being
    /// updated.
    pub fn mark_dirty(&self) -> Result<()> {
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_mark_dirty(self.runtime.as_raw(), self.view.block) }).map(drop)
    }

    /// Releases the block now. The block is released even if this returns an error. Unlike a drop, this call returns
    /// the error.
    #[inline]
    pub fn release(self) -> Result<()> {
        check(ManuallyDrop::new(self).end()).map(drop)
    }

    #[inline]
    fn end(&mut self) -> sys::sh_status {
        if self.cancelled != self.runtime.capturing.cancelled() {
            return sys::SH_OK; // the capture has released this view, and other views may hold the block now
        }
        // SAFETY: this is the only release of the acquire, on the same stream.
        let status = unsafe { sys::sh_release(self.runtime.as_raw(), self.view.block, self.stream.as_raw()) };
        self.runtime.keep(self.stream);
        status
    }
}

impl Drop for View<'_> {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(formatter)
    }
}

/// Views of a set of blocks that were acquired together and are released together. Indexing gives the C struct.
///
/// # Panics
/// Indexing panics if the index is out of range.
#[must_use = "the blocks are released when this is dropped"]
pub struct Views<'a> {
    runtime: &'a Runtime,
    stream: &'a Stream,
    views: Vec<sys::sh_view>,
    /// Number of the runtime's captures that had been cancelled before the acquire.
    cancelled: u64,
}

// SAFETY: as for View.
unsafe impl Send for Views<'_> {}
// SAFETY: as for View.
unsafe impl Sync for Views<'_> {}

impl<'a> Views<'a> {
    pub(crate) fn new(runtime: &'a Runtime, stream: &'a Stream, views: Vec<sys::sh_view>, cancelled: u64) -> Views<'a> {
        Views { runtime, stream, views, cancelled }
    }

    /// Returns the number of views.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    /// Returns whether there are no views.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// Returns the C structs in the order of the acquire.
    pub fn iter(&self) -> std::slice::Iter<'_, sys::sh_view> {
        self.views.iter()
    }

    /// Returns the bytes of one view, as [`View::bytes`]. Returns `None` if `index` is out of range.
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        self.runtime.bytes_of(self.stream, self.views.get(index)?)
    }

    /// Releases all blocks now, even if this returns an error. The error is that of the first release that failed.
    pub fn release(mut self) -> Result<()> {
        self.release_all()
    }

    /// Makes one call for each view, because this needs no memory.
    fn release_all(&mut self) -> Result<()> {
        let mut first = Ok(());
        let views = std::mem::take(&mut self.views);
        if self.cancelled != self.runtime.capturing.cancelled() {
            return first; // the capture has released these views
        }
        for view in &views {
            // SAFETY: this is the only release of the acquire, on the same stream.
            let status = unsafe { sys::sh_release(self.runtime.as_raw(), view.block, self.stream.as_raw()) };
            let result = check(status).map(drop);
            if first.is_ok() {
                first = result;
            }
        }
        if !views.is_empty() {
            self.runtime.keep(self.stream);
        }
        first
    }
}

impl Index<usize> for Views<'_> {
    type Output = sys::sh_view;

    fn index(&self, index: usize) -> &sys::sh_view {
        &self.views[index]
    }
}

impl<'a> IntoIterator for &'a Views<'_> {
    type Item = &'a sys::sh_view;
    type IntoIter = std::slice::Iter<'a, sys::sh_view>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Drop for Views<'_> {
    fn drop(&mut self) {
        let _ = self.release_all();
    }
}

impl fmt::Debug for Views<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(&self.views).finish()
    }
}
