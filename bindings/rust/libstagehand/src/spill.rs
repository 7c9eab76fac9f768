//! Spilling: tensors that a training step saves for its backward leave the device for host memory, and come back before
//! the backward needs them.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use libstagehand_sys as sys;

use crate::error::{Error, Result, Status, c_path, check, init};
use crate::runtime::lock;
use crate::{Device, Restored, Scope, Stream, Ticket, TicketId, TicketInfo, WeightFormat};

/// Counters of a spiller. The fields are those of the C struct.
pub type SpillerStats = sys::sh_spiller_stats;

/// A size class of a spiller's pool of pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillClass {
    /// Size of each buffer in bytes.
    pub bytes: u64,
    /// Number of buffers that the spiller allocates when it is created.
    pub count: u64,
}

/// Says how a spiller is created. Zero, `None` and an empty list mean the default. More fields may come, so end the
/// struct with `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct SpillerOptions {
    /// Compare every restored tensor with its contents in host memory. For debugging: restores then block.
    pub checksums: bool,
    /// Tensors with a [`SavedTensor::format`] leave packed without loss if they have 256 KiB or more and the device
    /// packs.
    pub pack: bool,
    /// Tensors leave, the oldest first, from the moment when more than this number of bytes is in use on the device.
    /// 0: no watermarks.
    pub high_watermark_bytes: u64,
    /// Tensors stop leaving when at most this number of bytes is in use. 0: three quarters of `high_watermark_bytes`.
    pub low_watermark_bytes: u64,
    /// At most this number of bytes of saved tensors stays on the device. `None`: no bound.
    pub keep_bytes: Option<u64>,
    /// Tensors with fewer bytes stay. 0: 4096.
    pub least_bytes: u64,
    /// Bytes of copies in flight to the host. 0: 256 MiB, or 1 GiB with `pack`.
    pub to_host_bytes: u64,
    /// Bytes that [`Spiller::upcoming`] names ahead of use. 0: 256 MiB, or 1 GiB with `pack`.
    pub to_device_bytes: u64,
    /// Number of copies in flight to the host. 0: no bound but `to_host_bytes`.
    pub to_host_copies: u32,
    /// Number of tickets that are prefetched and not restored. 0: no bound but `to_device_bytes`.
    pub to_device_copies: u32,
    /// The most pinned memory that the pool allocates, in bytes. 0: half of the host memory that is available now.
    pub pool_bytes: u64,
    /// Size classes of the pool, smallest first. Empty: the pool makes classes for the sizes that it sees.
    pub classes: Vec<SpillClass>,
}

/// A tensor that an engine saves. `..Default::default()` gives a value to the other fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct SavedTensor<'a> {
    /// Device address of the element whose indices are all 0.
    pub address: u64,
    /// Size of an element in bytes.
    pub element_bytes: u32,
    /// Format of the elements, for [`SpillerOptions::pack`]. `None`: unknown.
    pub format: Option<WeightFormat>,
    /// Size of each dimension. An empty slice: one element.
    pub sizes: &'a [i64],
    /// Stride of each dimension in elements. `None`: the last index runs fastest, without gaps.
    pub strides: Option<&'a [i64]>,
    /// Where the memory begins that the tensor is a view of. 0: the tensor's first byte.
    pub storage_address: u64,
    /// Size of that memory in bytes. 0: the bytes that the tensor spans.
    pub storage_bytes: u64,
    /// The engine's name for the contents of that memory. Tensors with the same key share one copy. The key must change
    /// when the contents change, and when the memory is given back. 0: the copy is not shared.
    pub storage_key: u64,
    /// Device memory in use now, in bytes, as the engine's allocator counts it. 0: the library asks the driver.
    pub used_bytes: u64,
}

/// Says whether a tensor leaves the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leave {
    /// The spiller decides by its options.
    #[default]
    ByOptions,
    /// The tensor leaves, whatever is in use.
    Now,
    /// The tensor never leaves, and does not count for [`SpillerOptions::keep_bytes`].
    Never,
}

/// The saved tensors of one training job on a device. A clone is cheap and refers to the same spiller.
///
/// The spiller ends when its last clone and its last [`Ticket`] are dropped. This drop waits for copies in flight. The
/// spiller keeps every [`Stream`] that it has seen until then.
#[derive(Clone)]
pub struct Spiller {
    handle: Arc<Handle>,
}

struct Handle {
    raw: *mut sys::sh_spiller,
    /// The streams that the library may still use. It gives the copy of a tensor the stream of the first ticket, and
    /// that ticket may end before the copy does.
    streams: Mutex<Vec<Stream>>,
    device: Device,
}

// SAFETY: functions may be called from any thread unless their comment says otherwise (base.h). No function of spill.h
// says otherwise.
unsafe impl Send for Handle {}
// SAFETY: as for Send. Several threads may call functions on one spiller at once.
unsafe impl Sync for Handle {}

impl Handle {
    fn keep(&self, stream: &Stream) {
        if !stream.is_owned() {
            return;
        }
        let mut streams = lock(&self.streams);
        if !streams.iter().any(|kept| kept.as_raw() == stream.as_raw()) {
            streams.push(stream.clone());
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: no clone and no ticket is left. The streams and the device are dropped after this call.
        unsafe { sys::sh_spiller_destroy(self.raw) }
    }
}

impl Spiller {
    /// Creates a spiller that lets only those tensors leave that are saved with [`Leave::Now`].
    ///
    /// # Errors
    /// As [`with_options`](Spiller::with_options).
    pub fn new(device: &Device) -> Result<Spiller> {
        Spiller::with_options(device, &SpillerOptions::default())
    }

    /// Creates a spiller with options. Blocks while it pins the buffers of `options.classes`.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`] if an option is out of range or contradicts another. The text names the option.
    /// - [`Status::BACKEND`] if the driver failed.
    pub fn with_options(device: &Device, options: &SpillerOptions) -> Result<Spiller> {
        let classes: Vec<sys::sh_spill_class> = options
            .classes
            .iter()
            .map(|class| {
                let mut raw = init!(sh_spill_class);
                raw.bytes = class.bytes;
                raw.count = class.count;
                raw
            })
            .collect();
        let mut raw = init!(sh_spiller_options);
        raw.flags = if options.checksums { sys::SH_SPILLER_CHECKSUMS } else { 0 }
            | if options.pack { sys::SH_SPILLER_PACK } else { 0 }
            | if options.keep_bytes.is_some() { sys::SH_SPILLER_KEEP_BYTES } else { 0 };
        raw.high_watermark_bytes = options.high_watermark_bytes;
        raw.low_watermark_bytes = options.low_watermark_bytes;
        raw.keep_bytes = options.keep_bytes.unwrap_or(0);
        raw.least_bytes = options.least_bytes;
        raw.to_host_bytes = options.to_host_bytes;
        raw.to_device_bytes = options.to_device_bytes;
        raw.to_host_copies = options.to_host_copies;
        raw.to_device_copies = options.to_device_copies;
        raw.pool_bytes = options.pool_bytes;
        raw.classes = if classes.is_empty() { std::ptr::null() } else { classes.as_ptr() };
        raw.class_count = classes.len() as u64;
        let mut spiller = std::ptr::null_mut();
        // SAFETY: struct_size is set in all structs, and the call copies the classes.
        check(unsafe { sys::sh_spiller_create(device.as_raw(), &raw, &mut spiller) })?;
        Ok(Spiller { handle: Arc::new(Handle { raw: spiller, streams: Mutex::default(), device: device.clone() }) })
    }

    /// Returns the C handle. The handle is valid while this spiller, a clone of it or a ticket of it lives.
    pub fn as_raw(&self) -> *mut sys::sh_spiller {
        self.handle.raw
    }

    /// Returns the spiller's device.
    pub fn device(&self) -> &Device {
        &self.handle.device
    }

    /// Begins a step: a forward and its backward. The step ends by [`SpillStep::end`], or when the guard is dropped.
    /// `number` is the engine's number of the step, for telemetry.
    ///
    /// # Errors
    /// [`Status::INVALID_STATE`] if a step is under way.
    pub fn step(&self, number: u64) -> Result<SpillStep<'_>> {
        // SAFETY: the spiller is alive.
        check(unsafe { sys::sh_spiller_begin_step(self.as_raw(), number) })?;
        Ok(SpillStep { spiller: self })
    }

    /// Saves a tensor that the work on `stream` produces. The copy comes after the work that is queued there now. The
    /// tensor stays on the device or leaves, now or later: [`collect`](Spiller::collect) tells.
    ///
    /// # Safety
    /// - The bytes that the tensor spans must be memory of the spiller's device. If `storage_bytes` is not 0, all bytes
    ///   of the storage must be.
    /// - This memory must stay valid, and nothing may write to it, until [`collect`](Spiller::collect) names the ticket
    ///   or until the last reference to the ticket is dropped. A ticket that is leaked keeps the memory until the
    ///   spiller ends. The memory must stay valid for ever if [`Ticket::release`] returns [`Status::DEVICE_LOST`]. A
    ///   drop does not tell.
    /// - Work that uses the memory again after `collect` must come after it in the order of the stream of `collect`.
    ///   Work that uses the memory again after the last reference must come after it in the order of `stream`.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`] if the description is impossible. The text names the field.
    /// - [`Status::UNSUPPORTED`] if the stream captures a graph.
    /// - [`Status::BACKEND`] if the driver failed. Nothing is saved then.
    pub unsafe fn spill(&self, tensor: &SavedTensor<'_>, stream: &Stream, leave: Leave) -> Result<Ticket> {
        let dimensions = tensor.sizes.len();
        if let Some(strides) = tensor.strides.filter(|strides| strides.len() != dimensions) {
            let text = format!("spill: {} strides for {dimensions} dimensions", strides.len());
            return Err(Error::new(Status::INVALID_ARGUMENT, text));
        }
        let mut raw = init!(sh_saved_tensor);
        raw.element_bytes = tensor.element_bytes;
        raw.format = tensor.format.map_or(0, |format| format as u32);
        raw.address = tensor.address;
        raw.dimensions = dimensions as u64;
        raw.sizes = tensor.sizes.as_ptr();
        raw.strides = tensor.strides.map_or(std::ptr::null(), |strides| strides.as_ptr());
        raw.storage_address = tensor.storage_address;
        raw.storage_bytes = tensor.storage_bytes;
        raw.storage_key = tensor.storage_key;
        raw.used_bytes = tensor.used_bytes;
        let flags = match leave {
            Leave::ByOptions => 0,
            Leave::Now => sys::SH_SPILL_NOW,
            Leave::Never => sys::SH_SPILL_KEEP,
        };
        self.handle.keep(stream);
        let mut ticket = 0;
        // SAFETY: the number of dimensions is that of the slices, and the call copies them. The caller promises the
        // memory, and the spiller keeps the stream.
        let status = check(unsafe { sys::sh_spill(self.as_raw(), &raw, stream.as_raw(), flags, &mut ticket) })?;
        Ok(Ticket::new(self, TicketId(ticket), status == Status::KEPT))
    }

    /// Appends the tickets whose device memory is not needed any more to `tickets`, even if this returns an error.
    /// Their copies have ended, or `stream` now waits for the copies. Each ticket is named once.
    ///
    /// # Errors
    /// [`Status::BACKEND`] if the driver failed. Tensors whose copies failed stay.
    pub fn collect(&self, tickets: &mut Vec<TicketId>, stream: &Stream) -> Result<()> {
        self.collect_with(tickets, stream, 0)
    }

    /// Works as [`collect`](Spiller::collect), but waits for everything that is leaving. Call this at the end of a
    /// forward.
    pub fn collect_all(&self, tickets: &mut Vec<TicketId>, stream: &Stream) -> Result<()> {
        self.collect_with(tickets, stream, sys::SH_COLLECT_ALL)
    }

    fn collect_with(&self, tickets: &mut Vec<TicketId>, stream: &Stream, flags: u32) -> Result<()> {
        const MOST: usize = 64;
        self.handle.keep(stream);
        loop {
            let (mut named, mut count) = ([0; MOST], 0);
            tickets.reserve(MOST); // before the call, because the call names each ticket only once
            // SAFETY: the pointer and the capacity describe `named`.
            let status = unsafe {
                sys::sh_spiller_collect(
                    self.as_raw(),
                    stream.as_raw(),
                    flags,
                    named.as_mut_ptr(),
                    MOST as u64,
                    &mut count,
                )
            };
            tickets.extend(named[..count as usize].iter().copied().map(TicketId));
            check(status)?;
            if count < MOST as u64 {
                return Ok(());
            }
        }
    }

    /// Reads a ticket.
    ///
    /// # Errors
    /// [`Status::INVALID_HANDLE`] if the ticket is not one of this spiller, or has ended.
    pub fn info(&self, ticket: TicketId) -> Result<TicketInfo> {
        let mut info = init!(sh_ticket_info);
        // SAFETY: struct_size is set.
        check(unsafe { sys::sh_ticket_get_info(self.as_raw(), ticket.0, &mut info) })?;
        Ok(info)
    }

    /// Names the tickets that will be restored next, in order. There are at most `most` of them. With watermarks,
    /// `used_bytes`, the device memory in use, tells how many there may be; 0 means that it is not known.
    pub fn upcoming(&self, most: usize, used_bytes: u64) -> Result<Vec<TicketId>> {
        let (mut tickets, mut count) = (vec![0; most], 0);
        let (handle, to) = (self.as_raw(), tickets.as_mut_ptr());
        // SAFETY: the pointer and the capacity describe `tickets`.
        check(unsafe { sys::sh_spiller_get_upcoming(handle, used_bytes, to, most as u64, &mut count) })?;
        tickets.truncate(count as usize);
        Ok(tickets.into_iter().map(TicketId).collect())
    }

    /// Begins to bring tensors back. Each ticket comes with the address of the memory for its tensor.
    /// [`Ticket::restore`] with the same address completes it. Tickets that are not away, or are prefetched already,
    /// are left out: their memory is not used.
    ///
    /// # Safety
    /// Each address must be that of [`TicketInfo::bytes`](TicketInfo) bytes of memory of the spiller's device. Work
    /// that still uses this memory must be queued on `stream`. The memory must stay valid, and nothing may use it,
    /// until a restore has taken it or until the last ticket of the copy has ended. It must stay valid for ever if this
    /// call, or the [`Ticket::release`] of that ticket, returns [`Status::DEVICE_LOST`]. A drop does not tell.
    ///
    /// # Errors
    /// - [`Status::INVALID_HANDLE`] if a ticket is not one of this spiller, or has ended.
    /// - [`Status::INVALID_ARGUMENT`] if an address is 0.
    /// - [`Status::UNSUPPORTED`] if the stream captures a graph.
    /// - [`Status::BACKEND`] if the driver failed. Copies that were queued before go on; [`info`](Spiller::info) tells.
    /// - [`Status::DEVICE_LOST`] if the driver cannot tell when a copy ends.
    pub unsafe fn prefetch(&self, tickets: &[(TicketId, u64)], stream: &Stream) -> Result<()> {
        let (ids, addresses): (Vec<sys::sh_ticket>, Vec<u64>) =
            tickets.iter().map(|(ticket, address)| (ticket.0, *address)).unzip();
        self.handle.keep(stream);
        let (ids, addresses, count) = (ids.as_ptr(), addresses.as_ptr(), tickets.len() as u64);
        // SAFETY: both arrays have this count. The caller promises the memory, and the spiller keeps the stream.
        check(unsafe { sys::sh_prefetch_spilled(self.as_raw(), ids, addresses, count, stream.as_raw()) }).map(drop)
    }

    /// Brings a tensor back that is known by its id; see [`Ticket::restore`].
    ///
    /// # Safety
    /// As for [`Ticket::restore`].
    pub unsafe fn restore(&self, ticket: TicketId, address: u64, stream: &Stream) -> Result<Restored> {
        self.handle.keep(stream);
        // SAFETY: the caller promises the memory, and the spiller keeps the stream.
        let status = check(unsafe { sys::sh_restore(self.as_raw(), ticket.0, address, stream.as_raw()) })?;
        Ok(if status == Status::KEPT { Restored::Kept } else { Restored::Filled })
    }

    /// Reads the counters.
    pub fn stats(&self) -> Result<SpillerStats> {
        let mut stats = init!(sh_spiller_stats);
        // SAFETY: struct_size is set.
        check(unsafe { sys::sh_spiller_get_stats(self.as_raw(), &mut stats) })?;
        Ok(stats)
    }

    /// Unpins and frees the buffers that no tensor is in. Returns the number of bytes that were freed. Blocks.
    pub fn trim(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the spiller is alive.
        check(unsafe { sys::sh_spiller_trim(self.as_raw(), &mut bytes) })?;
        Ok(bytes)
    }

    /// Writes one JSON object to the file `path` at the end of each step, until the scope ends.
    ///
    /// # Errors
    /// - [`Status::INVALID_STATE`] if another file is open.
    /// - [`Status::IO`] if the file cannot be opened.
    pub fn telemetry_start(&self, path: impl AsRef<Path>) -> Result<Scope<'_>> {
        let path = c_path("path", path.as_ref())?;
        // SAFETY: the path is valid during the call, and the call copies it.
        Scope::begin(|out| unsafe { sys::sh_telemetry_start(std::ptr::null_mut(), self.as_raw(), path.as_ptr(), out) })
    }
}

impl fmt::Debug for Spiller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Spiller").field(&self.as_raw()).finish()
    }
}

/// A step of a spiller that is under way. The step ends when this guard is dropped.
#[must_use = "a step ends when this is dropped"]
#[derive(Debug)]
pub struct SpillStep<'spiller> {
    spiller: &'spiller Spiller,
}

impl SpillStep<'_> {
    /// Ends the step now. The step has ended even if this returns an error. Unlike a drop, this call returns the error.
    pub fn end(self) -> Result<()> {
        let spiller = self.spiller;
        std::mem::forget(self);
        // SAFETY: the spiller is alive.
        check(unsafe { sys::sh_spiller_end_step(spiller.as_raw()) }).map(drop)
    }
}

impl Drop for SpillStep<'_> {
    fn drop(&mut self) {
        // SAFETY: the spiller is alive.
        unsafe { sys::sh_spiller_end_step(self.spiller.as_raw()) };
    }
}
