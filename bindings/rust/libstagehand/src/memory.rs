//! Pinned host memory. An engine loads its weights into this memory, so that the library copies them to the device
//! without an intermediate copy.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use libstagehand_sys as sys;

use crate::Device;
use crate::error::{Error, Result, Status, check};

/// Zeroed, page-aligned host memory that was pinned for a device, unless the system refused to pin it.
///
/// The memory dereferences to `[u8]`. To use it as a source, share it by an `Arc<PinnedMemory>`
/// ([`Source::shared`](crate::Source::shared)) or give it away ([`Source::pinned`](crate::Source::pinned)).
pub struct PinnedMemory {
    // Keeps the device open: the device would free the memory when it closes.
    device: Device,
    memory: NonNull<u8>,
    bytes: usize,
    pinned: bool,
}

// SAFETY: the value owns the memory, as a Vec does. sh_host_free() may be called from any thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: a shared reference only reads the memory.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<PinnedMemory> {
        // A slice cannot be larger than this.
        if bytes > isize::MAX as usize {
            return Err(Error::new(
                Status::OUT_OF_HOST_MEMORY,
                format!("pinned_memory: {bytes} bytes are more than a slice can have"),
            ));
        }
        let (mut memory, mut pinned) = (std::ptr::null_mut(), 0);
        // SAFETY: the device is alive, and the outputs are places on the stack.
        check(unsafe { sys::sh_host_alloc(device.as_raw(), bytes as u64, &mut memory, &mut pinned) })?;
        let memory = NonNull::new(memory.cast()).expect("sh_host_alloc() returns memory when it succeeds");
        Ok(PinnedMemory { device: device.clone(), memory, bytes, pinned: pinned != 0 })
    }

    /// Returns false if the system refused to pin the memory. The memory is usable all the same, but copies go through
    /// the staging buffers.
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr()
    }
}

impl Deref for PinnedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the library zeroed the memory. This value owns the memory, which lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes) }
    }
}

impl AsRef<[u8]> for PinnedMemory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: the memory is from sh_host_alloc() of this device. A source that used the memory owned this value, so
        // its blocks are unregistered.
        unsafe { sys::sh_host_free(self.device.as_raw(), self.memory.as_ptr().cast()) };
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PinnedMemory").field("bytes", &self.bytes).field("pinned", &self.pinned).finish()
    }
}
