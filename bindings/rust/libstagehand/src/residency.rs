//! Residency: rules for which models keep their device memory when several models share a device.

use std::fmt;
use std::marker::PhantomData;

use libstagehand_sys as sys;

use crate::block::raw_blocks;
use crate::error::{Result, check, init};
use crate::runtime::lock;
use crate::{Block, Runtime};

/// Says whether the library may give a reservation up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// The reservation is never given up.
    #[default]
    Primary,
    /// The reservation is given up, with a warning, if a primary reservation, a runtime that begins, or a lowered
    /// budget cannot have its memory otherwise. The reservation is in force again when there is room.
    Secondary,
}

/// Says how a guest is let in. More fields may come, so end the struct with `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct GuestOptions {
    /// Accept less than `bytes` if there is less, as long as the guest's smallest plan fits.
    pub shrink: bool,
    /// Device memory for the guest's blocks, in bytes. 0: enough for all blocks at once.
    pub bytes: u64,
    /// Device memory in bytes that the engine itself allocates while the guest is there.
    pub workspace_bytes: u64,
    /// How long [`Runtime::as_guest`] waits until other runtimes have given the memory up. Zero: no wait.
    pub wait: std::time::Duration,
}

impl Runtime {
    /// Protects blocks until the guard is dropped. The library gives the protected blocks' device memory neither to
    /// other runtimes nor to other blocks of this runtime. Protections of a block are counted.
    ///
    /// # Errors
    /// [`Status::INVALID_HANDLE`](crate::Status::INVALID_HANDLE) if a block is not one of this runtime. No block is
    /// protected then.
    pub fn protect(&self, blocks: &[Block]) -> Result<Protection<'_>> {
        let blocks = blocks.to_vec();
        // SAFETY: the pointer and the count describe `blocks`.
        check(unsafe { sys::sh_protect_blocks(self.as_raw(), raw_blocks(&blocks), blocks.len() as u64) })?;
        Ok(Protection { runtime: self, blocks })
    }

    /// Keeps this runtime's device memory until the scope ends: the library does not take the memory for other
    /// runtimes. Scopes are counted.
    pub fn keep_resident(&self) -> Result<Scope<'_>> {
        let mut scope = std::ptr::null_mut();
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_keep_resident(self.as_raw(), &mut scope) })?;
        Ok(Scope { raw: scope, _runtimes: PhantomData })
    }

    /// Reserves `bytes` bytes of device memory for this runtime until the guard is dropped. 0 bytes: as many as the
    /// runtime's plan uses. Blocks.
    ///
    /// A runtime has at most one reservation. A second call replaces the first reservation, and dropping the first
    /// guard then does nothing.
    ///
    /// # Errors
    /// - [`Status::BUDGET`](crate::Status::BUDGET) if the reservation does not fit. The earlier reservation stays.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if `bytes` is 0 and the order of the blocks is not
    ///   known.
    /// - The errors of [`plan`](Runtime::plan) if `bytes` is 0.
    pub fn reserve(&self, bytes: u64, priority: Priority) -> Result<Reservation<'_>> {
        let priority = match priority {
            Priority::Primary => sys::SH_PRIORITY_PRIMARY,
            Priority::Secondary => sys::SH_PRIORITY_SECONDARY,
        };
        let mut last = lock(&self.reservation);
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_reserve(self.as_raw(), bytes, priority) })?;
        *last += 1;
        Ok(Reservation { runtime: self, number: *last })
    }

    /// Lets another runtime, the guest, use device memory that no runtime has reserved, until the scope ends. The guest
    /// is in no step and holds no view. Blocks.
    ///
    /// # Errors
    /// - [`Status::BUDGET`](crate::Status::BUDGET) if the guest does not fit. The text says what the guest needs and
    ///   which runtimes have reservations.
    /// - [`Status::BUSY`](crate::Status::BUSY) if other runtimes did not give the memory up within `options.wait`.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if the guest is in a step or holds a view, or if it
    ///   has no blocks and `options.bytes` is 0.
    pub fn as_guest<'a>(&self, guest: &'a Runtime, options: &GuestOptions) -> Result<Scope<'a>> {
        let mut raw = init!(sh_guest_options);
        raw.flags = if options.shrink { sys::SH_GUEST_SHRINK } else { 0 };
        raw.bytes = options.bytes;
        raw.workspace_bytes = options.workspace_bytes;
        raw.wait_ns = options.wait.as_nanos().try_into().unwrap_or(u64::MAX);
        let mut scope = std::ptr::null_mut();
        // SAFETY: the guest is alive, and struct_size is set.
        check(unsafe { sys::sh_guest_begin(guest.as_raw(), &raw, &mut scope) })?;
        Ok(Scope { raw: scope, _runtimes: PhantomData })
    }

    /// Gives device memory back now, down to `keep_bytes` or a little less. Returns the number of bytes that the
    /// runtime still holds. Blocks.
    ///
    /// # Errors
    /// [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if a step is under way, a view is held, or a graph holds
    /// the plan.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the runtime is alive, and the other arguments are plain values.
        check(unsafe { sys::sh_trim(self.as_raw(), keep_bytes, &mut bytes) })?;
        Ok(bytes)
    }
}

/// A scope in which a runtime is kept resident or is a guest. The scope ends when this guard is dropped.
///
/// A guest's blocks leave the device when its scope ends, except for memory that is protected or reserved for the
/// guest. A guest that is in a step then, or that holds a view or a graph, leaves when that ends.
#[must_use = "the scope ends when this is dropped"]
pub struct Scope<'a> {
    raw: *mut sys::sh_scope,
    _runtimes: PhantomData<&'a Runtime>,
}

// SAFETY: scopes may be ended on any thread (residency.h).
unsafe impl Send for Scope<'_> {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for Scope<'_> {}

impl Scope<'_> {
    /// Ends the scope now. The scope has ended even if this returns an error. Unlike a drop, this call returns the
    /// error.
    ///
    /// # Errors
    /// [`Status::BACKEND`](crate::Status::BACKEND) if dirty contents of the guest could not be written back.
    pub fn end(self) -> Result<()> {
        let raw = self.raw;
        std::mem::forget(self);
        // SAFETY: the scope was begun once and is ended once.
        check(unsafe { sys::sh_scope_end(raw) }).map(drop)
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        // SAFETY: the scope was begun once and is ended once.
        unsafe { sys::sh_scope_end(self.raw) };
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Scope").field(&self.raw).finish()
    }
}

/// A protection of blocks. Dropping this guard takes one protection from each block. Leak the guard with `mem::forget`
/// to protect the blocks for as long as they are registered.
#[must_use = "the protection ends when this is dropped"]
#[derive(Debug)]
pub struct Protection<'runtime> {
    runtime: &'runtime Runtime,
    blocks: Vec<Block>,
}

impl Drop for Protection<'_> {
    fn drop(&mut self) {
        let count = self.blocks.len() as u64;
        // SAFETY: the pointer and the count describe `blocks`.
        unsafe { sys::sh_unprotect_blocks(self.runtime.as_raw(), raw_blocks(&self.blocks), count) };
    }
}

/// A reservation of a runtime. Dropping this guard releases the reservation, unless another reservation has replaced
/// it. Leak the guard with `mem::forget` to keep the reservation for as long as the runtime lives.
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
            // SAFETY: the runtime is alive.
            unsafe { sys::sh_release_reservation(self.runtime.as_raw()) };
        }
    }
}
