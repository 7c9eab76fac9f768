//! Residency: which models keep their device memory when several share a device.

use std::fmt;
use std::marker::PhantomData;

use libstagehand_sys as sys;

use crate::block::raw_blocks;
use crate::error::{Result, check, init};
use crate::runtime::lock;
use crate::{Block, Runtime};

/// What is given up first when memory cannot be had otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Never given up while it is reserved.
    #[default]
    Primary,
    /// Given up when nothing else is left, with a warning; in force again when there is room.
    Secondary,
}

/// How a guest is let in. More fields may come: fill up with `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct GuestOptions {
    /// If there is less than `bytes`, let it in with what there is, as long as its smallest plan fits.
    pub shrink: bool,
    /// Device memory for its blocks; 0: all of them at once.
    pub bytes: u64,
    /// Device memory that the engine itself allocates while the guest is there.
    pub workspace_bytes: u64,
}

impl Runtime {
    /// Protects blocks until the guard is dropped: what they have on the device is not given up, neither to other runtimes nor to other
    /// blocks of this one. Counted.
    pub fn protect(&self, blocks: &[Block]) -> Result<Protection<'_>> {
        let blocks = blocks.to_vec();
        // SAFETY: as many numbers as are told.
        check(unsafe { sys::sh_protect_blocks(self.as_raw(), raw_blocks(&blocks), blocks.len() as u64) })?;
        Ok(Protection { runtime: self, blocks })
    }

    /// This runtime keeps the device memory that it has until the scope ends. Counted.
    pub fn keep_resident(&self) -> Result<Scope<'_>> {
        let mut scope = std::ptr::null_mut();
        // SAFETY: both runtimes are this one.
        check(unsafe { sys::sh_keep_resident(self.as_raw(), std::ptr::null_mut(), &mut scope) })?;
        Ok(Scope { raw: scope, _runtimes: PhantomData })
    }

    /// Reserves device memory for this runtime until the guard is dropped; 0 bytes: as many as its plan uses. A runtime has one
    /// reservation at most: a second call replaces the first, whose guard then ends nothing. Blocks.
    pub fn reserve(&self, bytes: u64, priority: Priority) -> Result<Reservation<'_>> {
        let priority = match priority {
            Priority::Primary => sys::SH_PRIORITY_PRIMARY,
            Priority::Secondary => sys::SH_PRIORITY_SECONDARY,
        };
        let mut last = lock(&self.reservation);
        // SAFETY: both runtimes are this one.
        check(unsafe { sys::sh_reserve(self.as_raw(), std::ptr::null_mut(), bytes, priority) })?;
        *last += 1;
        Ok(Reservation { runtime: self, number: *last })
    }

    /// `guest`, another runtime of the same device that is in no step and holds no view, may use what nobody has reserved until the
    /// scope ends. Blocks.
    pub fn as_guest<'a>(&'a self, guest: &'a Runtime, options: &GuestOptions) -> Result<Scope<'a>> {
        let mut raw = init!(sh_guest_options);
        raw.flags = if options.shrink { sys::SH_GUEST_SHRINK } else { 0 };
        raw.bytes = options.bytes;
        raw.workspace_bytes = options.workspace_bytes;
        let mut scope = std::ptr::null_mut();
        // SAFETY: both runtimes are alive; the struct says its size.
        check(unsafe { sys::sh_guest_begin(self.as_raw(), guest.as_raw(), &raw, &mut scope) })?;
        Ok(Scope { raw: scope, _runtimes: PhantomData })
    }

    /// Gives device memory back now, down to `keep_bytes` or a little less, and returns what it holds then. Blocks.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: plain values.
        check(unsafe { sys::sh_trim(self.as_raw(), keep_bytes, &mut bytes) })?;
        Ok(bytes)
    }
}

/// A scope in which a runtime is kept resident, or is a guest: ended when it is dropped, on every path. A guest's
/// blocks are off the device then.
#[must_use = "the scope ends when this is dropped"]
pub struct Scope<'a> {
    raw: *mut sys::sh_scope,
    _runtimes: PhantomData<&'a Runtime>,
}

// SAFETY: residency.h: scopes may be ended on any thread.
unsafe impl Send for Scope<'_> {}
// SAFETY: a shared reference does nothing.
unsafe impl Sync for Scope<'_> {}

impl Scope<'_> {
    /// Ends it now, and says what an end by dropping cannot: that what is dirty could not be written back. It has ended even if this is an
    /// error.
    pub fn end(self) -> Result<()> {
        let raw = self.raw;
        std::mem::forget(self);
        // SAFETY: begun once, ended once.
        check(unsafe { sys::sh_scope_end(raw) }).map(drop)
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        // SAFETY: begun once, ended once.
        unsafe { sys::sh_scope_end(self.raw) };
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Scope").field(&self.raw).finish()
    }
}

/// Blocks that are protected: once less when this is dropped. To protect them for as long as they are registered, `mem::forget` it.
#[must_use = "the protection ends when this is dropped"]
#[derive(Debug)]
pub struct Protection<'runtime> {
    runtime: &'runtime Runtime,
    blocks: Vec<Block>,
}

impl Drop for Protection<'_> {
    fn drop(&mut self) {
        let count = self.blocks.len() as u64;
        // SAFETY: as many numbers as are told.
        unsafe { sys::sh_unprotect_blocks(self.runtime.as_raw(), raw_blocks(&self.blocks), count) };
    }
}

/// A runtime's reservation: released when this is dropped, unless another has replaced it. To hold it for as long as the runtime lives, `mem::forget` it.
#[must_use = "the reservation ends when this is dropped"]
#[derive(Debug)]
pub struct Reservation<'runtime> {
    runtime: &'runtime Runtime,
    number: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let last = lock(&self.runtime.reservation);
        if *last == self.number {
            // SAFETY: both runtimes are this one.
            unsafe { sys::sh_release_reservation(self.runtime.as_raw(), std::ptr::null_mut()) };
        }
    }
}
