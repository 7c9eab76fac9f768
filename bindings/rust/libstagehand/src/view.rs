//! Views: blocks that are held.

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Index;

use libstagehand_sys as sys;

use crate::error::{Result, check};
use crate::{Block, Runtime, Stream};

/// A block that is held: its device address is valid for work queued on the view's stream before it is released, which dropping
/// does. It borrows the runtime and the stream, so neither is gone before it.
#[must_use = "the block is released when this is dropped"]
pub struct View<'a> {
    runtime: &'a Runtime,
    stream: &'a Stream,
    view: sys::sh_view,
    /// How many captures of the runtime had been cancelled before the acquire.
    cancelled: u64,
}

// SAFETY: streaming.h: any thread may release, read or mark a block; the address is only a number here.
unsafe impl Send for View<'_> {}
// SAFETY: the same; what is read through bytes() does not change while the view is held.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// Takes over one acquire.
    #[inline]
    pub(crate) fn new(
        runtime: &'a Runtime,
        stream: &'a Stream,
        view: sys::sh_view,
        cancelled: u64,
    ) -> View<'a> {
        View { runtime, stream, view, cancelled }
    }

    /// Device address of the block's first byte.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        self.view.address
    }

    /// Size of the block.
    #[inline]
    pub fn len(&self) -> u64 {
        self.view.bytes
    }

    /// Whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.view.bytes == 0
    }

    /// The block.
    pub fn block(&self) -> Block {
        Block(self.view.block)
    }

    /// Grows each time any of the contents are loaded: unchanged serial, unchanged device contents.
    pub fn serial(&self) -> u64 {
        self.view.serial
    }

    /// `SH_VIEW_*` of [`sys`].
    pub fn flags(&self) -> u32 {
        self.view.flags
    }

    /// The bytes themselves, where the host can read the device's memory and the view is on [`Stream::host`], so that they are there.
    /// They do not change while it is held, but by whoever writes through an address, which is unsafe.
    #[inline]
    pub fn bytes(&self) -> Option<&[u8]> {
        self.runtime.bytes_of(self.stream, &self.view)
    }

    /// Copies bytes of the block, from `offset` on, to host memory, after the work queued on the view's stream. Blocks.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let (to, bytes) = (buffer.as_mut_ptr().cast(), buffer.len() as u64);
        // SAFETY: the buffer has so many bytes.
        check(unsafe {
            sys::sh_read_block(
                self.runtime.as_raw(),
                self.view.block,
                self.stream.as_raw(),
                offset,
                to,
                bytes,
            )
        })
        .map(drop)
    }

    /// Says that the engine has changed, or will before this is released, the contents on the device of a mutable block.
    pub fn mark_dirty(&self) -> Result<()> {
        // SAFETY: plain values.
        check(unsafe { sys::sh_mark_dirty(self.runtime.as_raw(), self.view.block) }).map(drop)
    }

    /// Releases now, and says what a release by dropping cannot. It is released even if this is an error.
    #[inline]
    pub fn release(self) -> Result<()> {
        check(ManuallyDrop::new(self).end()).map(drop)
    }

    #[inline]
    fn end(&mut self) -> sys::sh_status {
        if self.cancelled != self.runtime.capturing.cancelled() {
            return sys::SH_OK; // its capture has released it; the block may be held by others now
        }
        // SAFETY: one release for one acquire, on its stream.
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

/// A set of blocks that were acquired together, and are released together. Indexing gives the C struct.
#[must_use = "the blocks are released when this is dropped"]
pub struct Views<'a> {
    runtime: &'a Runtime,
    stream: &'a Stream,
    views: Vec<sys::sh_view>,
    /// As for View.
    cancelled: u64,
}

// SAFETY: as for View.
unsafe impl Send for Views<'_> {}
// SAFETY: as for View.
unsafe impl Sync for Views<'_> {}

impl<'a> Views<'a> {
    pub(crate) fn new(
        runtime: &'a Runtime,
        stream: &'a Stream,
        views: Vec<sys::sh_view>,
        cancelled: u64,
    ) -> Views<'a> {
        Views { runtime, stream, views, cancelled }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// The C structs, in the order of the acquire.
    pub fn iter(&self) -> std::slice::Iter<'_, sys::sh_view> {
        self.views.iter()
    }

    /// The bytes of one, as [`View::bytes`].
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        self.runtime.bytes_of(self.stream, self.views.get(index)?)
    }

    /// Releases now: all, even if this is an error, which is then the first.
    pub fn release(mut self) -> Result<()> {
        self.release_all()
    }

    /// One call a view, so that releasing needs no memory.
    fn release_all(&mut self) -> Result<()> {
        let mut first = Ok(());
        let views = std::mem::take(&mut self.views);
        if self.cancelled != self.runtime.capturing.cancelled() {
            return first; // as for View
        }
        for view in &views {
            // SAFETY: one release for one acquire, on its stream.
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
