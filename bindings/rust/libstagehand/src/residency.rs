//! Residency: rules for which models keep their device memory when several models share a device.

use std::fmt;
use std::marker::PhantomData;

use libstagehand_sys as sys;

use crate::block::raw_blocks;
use crate::error::{Result, check, init};
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
    /// Protects blocks until the scope ends. The library gives the protected blocks' device memory neither to other
    /// runtimes nor to other blocks of this runtime. Protections of a block are counted.
    ///
    /// # Errors
    /// [`Status::INVALID_HANDLE`](crate::Status::INVALID_HANDLE) if a block is not one of this runtime. No block is
    /// protected then.
    pub fn protect(&self, blocks: &[Block]) -> Result<Scope<'_>> {
        // SAFETY: the runtime is alive, and the pointer and the count describe `blocks`.
        Scope::begin(|out| unsafe {
            sys::sh_protect_blocks(self.as_raw(), raw_blocks(blocks), blocks.len() as u64, out)
        })
    }

    /// Keeps this runtime's device memory until the scope ends: the library does not take the memory for other
    /// runtimes. Scopes are counted.
    pub fn keep_resident(&self) -> Result<Scope<'_>> {
        // SAFETY: the runtime is alive.
        Scope::begin(|out| unsafe { sys::sh_keep_resident(self.as_raw(), out) })
    }

    /// Reserves `bytes` bytes of device memory for this runtime until the scope ends. 0 bytes: as many as the runtime's
    /// plan uses. Blocks.
    ///
    /// A runtime has at most one reservation. A second call puts another one in its place, and the end of the first
    /// scope then does nothing.
    ///
    /// # Errors
    /// - [`Status::BUDGET`](crate::Status::BUDGET) if the reservation does not fit. The earlier reservation stays.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if `bytes` is 0 and the order of the blocks is not
    ///   known.
    /// - The errors of [`plan`](Runtime::plan) if `bytes` is 0.
    pub fn reserve(&self, bytes: u64, priority: Priority) -> Result<Scope<'_>> {
        let priority = match priority {
            Priority::Primary => sys::SH_PRIORITY_PRIMARY,
            Priority::Secondary => sys::SH_PRIORITY_SECONDARY,
        };
        // SAFETY: the runtime is alive.
        Scope::begin(|out| unsafe { sys::sh_reserve(self.as_raw(), bytes, priority, out) })
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
        // SAFETY: the guest is alive, and struct_size is set.
        Scope::begin(|out| unsafe { sys::sh_guest_begin(guest.as_raw(), &raw, out) })
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

/// A protection, a reservation, a guest's stay, a trace, telemetry or a control without a device. The scope ends when
/// this guard is dropped. Leak the guard with `mem::forget` to let the scope last as long as its runtime or process.
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
    /// Begins a scope by a call that writes its handle.
    pub(crate) fn begin(call: impl FnOnce(*mut *mut sys::sh_scope) -> sys::sh_status) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        check(call(&mut raw))?;
        Ok(Self { raw, _runtimes: PhantomData })
    }

    /// Ends the scope now. The scope has ended even if this returns an error. Unlike a drop, this call returns the
    /// error.
    ///
    /// # Errors
    /// - [`Status::BACKEND`](crate::Status::BACKEND) if dirty contents of the guest could not be written back.
    /// - [`Status::IO`](crate::Status::IO) if the file of a trace or of telemetry could not be written.
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
