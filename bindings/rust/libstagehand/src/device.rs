//! Devices: one physical device, and the memory budget that everything on it shares.

use std::ffi::CString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use libstagehand_sys as sys;

use crate::error::{Result, Status, c_path, c_string, check, field_text, init};
use crate::{PinnedMemory, Stream};

/// Memory of a device, in bytes, at one moment: the fields of the C struct.
pub type MemoryInfo = sys::sh_memory_info;

/// How a device is opened. Zero and `None` mean the default. More fields may come: fill up with `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Worker threads that read sources which are not pinned, at most 64.
    pub staging_threads: u32,
    /// Ceiling on device memory in bytes, page rounding included; 0: what is free less the margin.
    pub budget_bytes: u64,
    /// Left free by the automatic budget.
    pub margin_bytes: u64,
    /// Unit of device memory, a power of two.
    pub page_bytes: u64,
    /// Host-to-device speed that plans count with; 0: measured when first needed.
    pub link_bytes_per_second: u64,
    /// Host memory that sources which are not pinned pass through.
    pub staging_bytes: u64,
    /// Options of the backend, `key=value;key=value`.
    pub backend_options: Option<String>,
    /// Load the backend from this absolute path instead of searching.
    pub backend_path: Option<PathBuf>,
}

/// One reference to a device, given back when the last clone and the last [`Runtime`](crate::Runtime), [`Stream`] and
/// [`PinnedMemory`] made from it are dropped: none of them outlives the device. Opening a device that is open gives the same device,
/// counted, with one budget for all.
#[derive(Clone)]
pub struct Device {
    handle: Arc<Handle>,
}

struct Handle(*mut sys::sh_device);

// SAFETY: base.h: functions may be called from any thread unless their comment says otherwise, and none of device.h does.
unsafe impl Send for Handle {}
// SAFETY: the same; several threads may be in calls on one device at once.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this is the one reference that sh_device_open() gave. Runtimes, streams and memory of the device hold an Arc of it.
        unsafe { sys::sh_device_close(self.0) }
    }
}

impl Device {
    /// Opens a device by name: "host", "cuda:0", "hip:1", "sim"; without a number the first; "auto" is the first GPU that works, else
    /// the host. Blocks (it may load a driver).
    pub fn open(name: &str) -> Result<Device> {
        Device::open_with(name, &DeviceOptions::default())
    }

    /// Opens a device with options. If it is open already, another budget or page size (unless 0) is an error, and the other options are
    /// those of the first opening.
    pub fn open_with(name: &str, options: &DeviceOptions) -> Result<Device> {
        let name = c_string("device", name)?;
        let backend_options =
            options.backend_options.as_deref().map(|text| c_string("backend_options", text)).transpose()?;
        let backend_path =
            options.backend_path.as_deref().map(|path| c_path("backend_path", path)).transpose()?;
        let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        let mut raw = init!(sh_device_options);
        raw.staging_threads = options.staging_threads;
        raw.budget_bytes = options.budget_bytes;
        raw.margin_bytes = options.margin_bytes;
        raw.page_bytes = options.page_bytes;
        raw.link_bytes_per_second = options.link_bytes_per_second;
        raw.staging_bytes = options.staging_bytes;
        raw.backend_options = pointer(&backend_options);
        raw.backend_path = pointer(&backend_path);
        let mut device = std::ptr::null_mut();
        // SAFETY: the texts outlive the call, which copies them.
        check(unsafe { sys::sh_device_open(name.as_ptr(), &raw, &mut device) })?;
        Ok(Device { handle: Arc::new(Handle(device)) })
    }

    /// Takes over a reference.
    ///
    /// # Safety
    /// `device` is a reference of `sh_device_open()` that nobody else gives back.
    pub unsafe fn from_raw(device: *mut sys::sh_device) -> Device {
        Device { handle: Arc::new(Handle(device)) }
    }

    /// The C handle, valid while this device or anything made from it lives.
    pub fn as_raw(&self) -> *mut sys::sh_device {
        self.handle.0
    }

    /// Reads the memory figures; asks the driver.
    pub fn memory(&self) -> Result<MemoryInfo> {
        let mut info = init!(sh_memory_info);
        // SAFETY: the struct says its size.
        check(unsafe { sys::sh_device_memory(self.as_raw(), &mut info) })?;
        Ok(info)
    }

    /// Changes the budget; 0 is the automatic one. Runtimes shrink or grow when their next step begins. Blocks.
    pub fn set_budget(&self, budget_bytes: u64) -> Result<()> {
        // SAFETY: plain values.
        check(unsafe { sys::sh_device_set_budget(self.as_raw(), budget_bytes) }).map(drop)
    }

    /// What the device is and can do.
    pub fn capabilities(&self) -> Result<Capabilities> {
        let mut caps = init!(sh_device_caps);
        // SAFETY: the struct says its size.
        check(unsafe { sys::sh_device_capabilities(self.as_raw(), &mut caps) })?;
        Ok(Capabilities {
            flags: caps.flags,
            name: field_text(&caps.name),
            description: field_text(&caps.description),
            granularity_bytes: caps.granularity_bytes,
            page_bytes: caps.page_bytes,
            staging_piece_bytes: caps.staging_piece_bytes,
            staging_threads: caps.staging_threads,
        })
    }

    /// The device's clock in nanoseconds: monotonic; the virtual clock of a simulation.
    pub fn clock_ns(&self) -> Result<u64> {
        let mut now = 0;
        // SAFETY: plain values.
        check(unsafe { sys::sh_device_clock(self.as_raw(), &mut now) })?;
        Ok(now)
    }

    /// Makes a stream. Engines on a GPU have their own and take them in by [`Stream::from_raw`].
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Allocates zeroed host memory and pins it for this device, see [`PinnedMemory`]. Blocks.
    pub fn pinned_memory(&self, bytes: usize) -> Result<PinnedMemory> {
        PinnedMemory::new(self, bytes)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Device").field(&self.as_raw()).finish()
    }
}

/// What a device is and can do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// `SH_DEVICE_*` of [`sys`].
    pub flags: u32,
    /// The name that opens it, e.g. "cuda:0".
    pub name: String,
    /// The driver's name for it.
    pub description: String,
    /// Smallest page.
    pub granularity_bytes: u64,
    /// Page in use.
    pub page_bytes: u64,
    /// Size in which sources that are not pinned are moved.
    pub staging_piece_bytes: u64,
    /// Threads that read such sources.
    pub staging_threads: u32,
}

impl Capabilities {
    /// Blocks keep their address for life.
    pub fn fixed_addresses(&self) -> bool {
        self.flags & sys::SH_DEVICE_FIXED_ADDRESSES != 0
    }

    /// The host may read and write views through their address.
    pub fn host_addressable(&self) -> bool {
        self.flags & sys::SH_DEVICE_HOST_ADDRESSABLE != 0
    }

    /// A simulation: it has a clock and sizes, but no contents.
    pub fn virtual_time(&self) -> bool {
        self.flags & sys::SH_DEVICE_VIRTUAL_TIME != 0
    }

    /// It is a GPU.
    pub fn gpu(&self) -> bool {
        self.flags & sys::SH_DEVICE_IS_GPU != 0
    }
}

/// A backend that was found, or was looked for in vain.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendInfo {
    /// `Status::OK`: it works; else why not.
    pub status: Status,
    /// Devices that it has.
    pub device_count: u32,
    /// Part of the library, not a plugin.
    pub built_in: bool,
    /// "host", "cuda", …
    pub name: String,
    /// File of the plugin; empty when built in or not found.
    pub path: String,
    /// Why it does not work, in words; empty when it does.
    pub reason: String,
}

/// All backends, working or not. Blocks (it loads plugins).
pub fn backends() -> Result<Vec<BackendInfo>> {
    let mut count = 0;
    // SAFETY: nothing is written but the number.
    check(unsafe { sys::sh_backend_list(std::ptr::null_mut(), 0, &mut count) })?;
    let mut infos = vec![init!(sh_backend_info); count];
    // SAFETY: as many structs are there as is told, each with its size.
    check(unsafe { sys::sh_backend_list(infos.as_mut_ptr(), infos.len(), &mut count) })?;
    infos.truncate(count);
    let list = infos.iter().map(|info| BackendInfo {
        status: Status(info.status),
        device_count: info.device_count,
        built_in: info.built_in != 0,
        name: field_text(&info.name),
        path: field_text(&info.path),
        reason: field_text(&info.reason),
    });
    Ok(list.collect())
}
