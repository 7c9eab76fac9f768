//! Pinned host memory: what an engine loads its weights into, so that they are copied to the device without another copy.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use libstagehand_sys as sys;

use crate::Device;
use crate::error::{Error, Result, Status, check};

/// Zeroed, page-aligned host memory that was pinned for a device, if the system let it. It is a `[u8]`; as a source, share it
/// by `Arc<PinnedMemory>` ([`Source::shared`](crate::Source::shared)) or give it away ([`Source::pinned`](crate::Source::pinned)).
pub struct PinnedMemory {
    // Held so that the device does not close, and take the memory with it, before this is dropped.
    device: Device,
    memory: NonNull<u8>,
    bytes: usize,
    pinned: bool,
}

// SAFETY: it is memory that this value owns, as a Vec does; sh_host_free() may be called from any thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: a shared reference only reads it.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<PinnedMemory> {
        // A slice cannot be larger.
        if bytes > isize::MAX as usize {
            return Err(Error::new(Status::OUT_OF_HOST_MEMORY, format!("pinned memory: {bytes} bytes")));
        }
        let (mut memory, mut pinned) = (std::ptr::null_mut(), 0);
        // SAFETY: plain values.
        check(unsafe { sys::sh_host_alloc(device.as_raw(), bytes as u64, &mut memory, &mut pinned) })?;
        let memory = NonNull::new(memory.cast()).expect("sh_host_alloc() gives memory when it succeeds");
        Ok(PinnedMemory { device: device.clone(), memory, bytes, pinned: pinned != 0 })
    }

    /// False when the system refused to pin it: it is usable, and goes through the staging ring.
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
        // SAFETY: zeroed on allocation, owned, and alive as long as self.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes) }
    }
}

impl DerefMut for PinnedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the same, and nobody else has a reference.
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
        // SAFETY: from sh_host_alloc() of this device; whoever registered it as a source owned it, and has unregistered the blocks.
        unsafe { sys::sh_host_free(self.device.as_raw(), self.memory.as_ptr().cast()) };
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PinnedMemory")
            .field("bytes", &self.bytes)
            .field("pinned", &self.pinned)
            .finish()
    }
}
