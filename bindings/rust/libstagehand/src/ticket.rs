//! Tickets: the tensors that a spiller has saved.

use std::fmt;

use libstagehand_sys as sys;

use crate::error::{Result, check};
use crate::{Spiller, Stream};

/// What a spiller knows of a ticket. The fields are those of the C struct. `state` is one of `SH_TICKET_*` of [`sys`].
pub type TicketInfo = sys::sh_ticket_info;

/// Says which memory has the bytes of a tensor after a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the memory of the restore has the bytes only with `Filled`"]
pub enum Restored {
    /// The memory of the restore has the bytes, in the order of the stream.
    Filled,
    /// The memory of the spill has the bytes. The memory of the restore was not used.
    Kept,
}

/// The number of a [`Ticket`]. No spiller uses a number twice.
///
/// Calls return [`Status::INVALID_HANDLE`](crate::Status::INVALID_HANDLE) if the ticket belongs to another spiller or
/// has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TicketId(pub(crate) sys::sh_ticket);

impl TicketId {
    /// Wraps a ticket of the C interface.
    pub fn from_raw(ticket: sys::sh_ticket) -> TicketId {
        TicketId(ticket)
    }

    /// Returns the ticket of the C interface.
    pub fn as_raw(self) -> sys::sh_ticket {
        self.0
    }
}

/// A saved tensor. Dropping it ends the ticket. The ticket keeps its spiller, so that it may be stored anywhere and
/// dropped on any thread.
///
/// A drop cannot return an error. Engines that reuse the tensor's memory call [`release`](Ticket::release), which says
/// whether they may.
#[must_use = "the ticket ends when this is dropped"]
pub struct Ticket {
    spiller: Spiller,
    id: TicketId,
    stayed: bool,
}

impl Ticket {
    /// Takes over the ticket.
    pub(crate) fn new(spiller: &Spiller, id: TicketId, stayed: bool) -> Ticket {
        Ticket { spiller: spiller.clone(), id, stayed }
    }

    /// Returns the number by which [`Spiller::collect`] and [`Spiller::upcoming`] name the ticket.
    pub fn id(&self) -> TicketId {
        self.id
    }

    /// Returns the ticket's spiller.
    pub fn spiller(&self) -> &Spiller {
        &self.spiller
    }

    /// Returns whether the tensor stayed on the device when it was saved. The tensor may have left since then.
    pub fn stayed(&self) -> bool {
        self.stayed
    }

    /// Reads the ticket.
    pub fn info(&self) -> Result<TicketInfo> {
        self.spiller.info(self.id)
    }

    /// Brings the tensor back. Work that is queued on `stream` after this call sees the bytes. The tensor may be
    /// restored several times. [`sh_restore`](sys::sh_restore) says when the call blocks.
    ///
    /// The tensor stays from now on if the memory of the spill still has the bytes. `address` is not used then, and may
    /// be 0.
    ///
    /// # Safety
    /// `address` must be that of [`TicketInfo::bytes`](TicketInfo) bytes of memory of the spiller's device, unless it
    /// is 0. Work that still uses this memory must be queued on `stream`. Work that uses the memory later must come
    /// after this call in the order of `stream`. The memory must stay valid until then. The memory of the copy's
    /// prefetch may be given here, once.
    ///
    /// The memory must stay valid for ever if the error is [`Status::DEVICE_LOST`](crate::Status::DEVICE_LOST). After
    /// another error nothing writes to it.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if `address` is 0 and the tensor is away.
    /// - [`Status::CHECKSUM`](crate::Status::CHECKSUM) if the restored bytes differ. Only with
    ///   [`SpillerOptions::checksums`](crate::SpillerOptions::checksums).
    /// - [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED) if the stream captures a graph.
    /// - [`Status::BACKEND`](crate::Status::BACKEND) if the driver failed now, or if the copy to the host did. A later
    ///   call tries again.
    /// - [`Status::DEVICE_LOST`](crate::Status::DEVICE_LOST) if the driver cannot tell when the copy ends.
    pub unsafe fn restore(&self, address: u64, stream: &Stream) -> Result<Restored> {
        // SAFETY: the caller promises the same.
        unsafe { self.spiller.restore(self.id, address, stream) }
    }

    /// Ends the ticket now. It has ended even if this returns an error. Unlike a drop, this call returns the error.
    ///
    /// # Errors
    /// [`Status::DEVICE_LOST`](crate::Status::DEVICE_LOST) if the driver cannot tell when copies end that use the
    /// tensor's memory. This memory must stay valid for ever then.
    pub fn release(mut self) -> Result<()> {
        check(self.end()).map(drop)
    }

    /// The id of a ticket that has ended is 0.
    fn end(&mut self) -> sys::sh_status {
        match std::mem::replace(&mut self.id, TicketId(0)) {
            TicketId(0) => sys::SH_OK,
            // SAFETY: this value owned the ticket.
            TicketId(raw) => unsafe { sys::sh_ticket_release(self.spiller.as_raw(), raw) },
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Ticket").field(&self.id.0).finish()
    }
}
