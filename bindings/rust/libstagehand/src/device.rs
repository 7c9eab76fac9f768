//! Devices: one physical device, and the memory budget that all its runtimes share.

use std::ffi::CString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use libstagehand_sys as sys;

use crate::error::{Result, Status, c_path, c_string, check, field_text, init};
use crate::{PinnedMemory, Stream};

/// The memory figures of a device at one moment, in bytes. The fields are those of the C struct.
pub type MemoryInfo = sys::sh_memory_info;

/// Says how a device is opened. Zero and `None` mean the default. More fields may come, so end the struct with
/// `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Number of worker threads that read sources which are not pinned, at most 64. 0: 2 to 12, by the number of cores.
    pub staging_threads: u32,
    /// Ceiling on device memory in bytes, page rounding included. 0: the free memory less the margin.
    pub budget_bytes: u64,
    /// Memory in bytes that the automatic budget leaves free. 0: 1 GiB, but at most a tenth of the device.
    pub margin_bytes: u64,
    /// Unit of device memory in bytes, a power of two. 0: the library chooses by the budget.
    pub page_bytes: u64,
    /// Speed of copies from the host to the device that plans assume. 0: the library measures the speed when a plan
    /// first needs it.
    pub link_bytes_per_second: u64,
    /// Host memory in bytes that sources which are not pinned pass through. 0: the library chooses by the backend and
    /// the number of threads.
    pub staging_bytes: u64,
    /// Processors that the worker threads run on, such as `0-7,16`. `None`: all that the process may use.
    pub staging_cpus: Option<String>,
    /// NUMA node that host memory comes from.
    pub host_node: HostNode,
    /// Host memory has small pages. Otherwise the library asks for huge ones.
    pub small_host_pages: bool,
    /// Devices of the same backend whose links bring a part of the weights, such as `cuda:1,cuda:2`, or `auto`: all
    /// open devices that [help](DeviceOptions::helps). `None`: none.
    pub helpers: Option<String>,
    /// The device may help others whose `helpers` are `auto`.
    pub helps: bool,
    /// Options of the backend, in the form `key=value;key=value`.
    pub backend_options: Option<String>,
    /// Absolute path that the backend is loaded from. `None`: the library searches for the backend.
    pub backend_path: Option<PathBuf>,
}

/// The NUMA node that the library's host memory for a device comes from. It is only advice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostNode {
    /// The node that is closest to the device, if the backend knows it.
    #[default]
    Nearest,
    /// Any node.
    Any,
    /// The node with this number.
    Node(u16),
}

/// A reference to a device.
///
/// The library gets the reference back when the last clone of this value and the last [`Runtime`](crate::Runtime),
/// [`Stream`] and [`PinnedMemory`] made from it are dropped. None of these objects outlives the device. Opening a
/// device that is open already gives the same device and counts one more reference. There is one budget for all
/// references.
#[derive(Clone)]
pub struct Device {
    handle: Arc<Handle>,
}

struct Handle(*mut sys::sh_device);

// SAFETY: functions may be called from any thread unless their comment says otherwise (base.h). No function of device.h
// says otherwise.
unsafe impl Send for Handle {}
// SAFETY: as for Send. Several threads may call functions on one device at once.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this is the one reference that sh_device_open() gave. Runtimes, streams and pinned memory of the
        // device hold an Arc of this handle.
        unsafe { sys::sh_device_close(self.0) }
    }
}

impl Device {
    /// Opens a device by name: "host", "cuda:0", "hip:1" or "sim". A name without a number means the first device.
    /// "auto" means the first GPU that works, or else the host. Blocks, because the call may load a driver.
    ///
    /// # Errors
    /// As [`open_with`](Device::open_with).
    pub fn open(name: &str) -> Result<Device> {
        Device::open_with(name, &DeviceOptions::default())
    }

    /// Opens a device with options. Blocks, because the call may load a driver.
    ///
    /// # Errors
    /// - [`Status::NOT_FOUND`] if there is no such backend or device.
    /// - [`Status::BACKEND_UNAVAILABLE`] if the backend cannot run here; the text says why.
    /// - [`Status::BACKEND_LOAD`] if the plugin cannot be loaded.
    /// - [`Status::BUDGET`] if the budget is smaller than one page.
    /// - [`Status::INVALID_ARGUMENT`] if an option is out of range, or if the device is open already with another
    ///   budget or page size (unless the new value is 0). The other options of the first opening stay in force without
    ///   an error.
    /// - [`Status::DUPLICATE_LIBRARY`] if another copy of the library manages devices in this process.
    pub fn open_with(name: &str, options: &DeviceOptions) -> Result<Device> {
        let name = c_string("device", name)?;
        let backend_options =
            options.backend_options.as_deref().map(|text| c_string("backend_options", text)).transpose()?;
        let staging_cpus = options.staging_cpus.as_deref().map(|text| c_string("staging_cpus", text)).transpose()?;
        let helpers = options.helpers.as_deref().map(|text| c_string("helpers", text)).transpose()?;
        let backend_path = options.backend_path.as_deref().map(|path| c_path("backend_path", path)).transpose()?;
        let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        let mut raw = init!(sh_device_options);
        raw.budget_bytes = options.budget_bytes;
        raw.margin_bytes = options.margin_bytes;
        raw.page_bytes = options.page_bytes;
        raw.link_bytes_per_second = options.link_bytes_per_second;
        let mut host = init!(sh_host_options);
        host.staging_threads = options.staging_threads;
        host.staging_bytes = options.staging_bytes;
        host.staging_cpus = pointer(&staging_cpus);
        host.node = match options.host_node {
            HostNode::Nearest => 0,
            HostNode::Any => sys::SH_HOST_NODE_ANY,
            HostNode::Node(number) => u32::from(number) + 1,
        };
        host.flags = if options.small_host_pages { sys::SH_HOST_SMALL_PAGES } else { 0 };
        let mut others = init!(sh_helper_options);
        others.devices = pointer(&helpers);
        others.flags = if options.helps { sys::SH_HELPS_OTHERS } else { 0 };
        raw.host = &host;
        raw.helpers = &others;
        raw.backend_options = pointer(&backend_options);
        raw.backend_path = pointer(&backend_path);
        let mut device = std::ptr::null_mut();
        // SAFETY: the texts and structs outlive the call, which copies them.
        check(unsafe { sys::sh_device_open(name.as_ptr(), &raw, &mut device) })?;
        Ok(Device { handle: Arc::new(Handle(device)) })
    }

    /// Takes over a reference of the C interface.
    ///
    /// # Safety
    /// `device` must be a reference from `sh_device_open()` that no other owner gives back.
    pub unsafe fn from_raw(device: *mut sys::sh_device) -> Device {
        Device { handle: Arc::new(Handle(device)) }
    }

    /// Returns the C handle. The handle is valid while this device or an object made from it lives.
    pub fn as_raw(&self) -> *mut sys::sh_device {
        self.handle.0
    }

    /// Reads the memory figures. The library asks the driver for some of them.
    pub fn memory(&self) -> Result<MemoryInfo> {
        let mut info = init!(sh_memory_info);
        // SAFETY: struct_size is set.
        check(unsafe { sys::sh_device_get_memory(self.as_raw(), &mut info) })?;
        Ok(info)
    }

    /// Changes the budget. 0 means the automatic budget. Runtimes shrink or grow when their next step begins. Blocks.
    ///
    /// # Errors
    /// - [`Status::BUDGET`] if the budget is smaller than a page, or smaller than the sum of the runtimes' smallest
    ///   plans. Nothing changes then, and the text names the sum.
    pub fn set_budget(&self, budget_bytes: u64) -> Result<()> {
        // SAFETY: the handle is alive, and the other arguments are plain values.
        check(unsafe { sys::sh_device_set_budget(self.as_raw(), budget_bytes) }).map(drop)
    }

    /// Returns the properties and abilities of the device.
    pub fn capabilities(&self) -> Result<Capabilities> {
        let mut caps = init!(sh_device_caps);
        // SAFETY: struct_size is set.
        check(unsafe { sys::sh_device_get_caps(self.as_raw(), &mut caps) })?;
        Ok(Capabilities {
            flags: caps.flags,
            kind: caps.kind,
            ordinal: caps.ordinal,
            backend: field_text(&caps.backend),
            name: field_text(&caps.name),
            description: field_text(&caps.description),
            granularity_bytes: caps.granularity_bytes,
            page_bytes: caps.page_bytes,
            staging_piece_bytes: caps.staging_piece_bytes,
            staging_threads: caps.staging_threads,
            host_node: caps.host_node.checked_sub(1),
            bus_id: field_text(&caps.bus_id),
        })
    }

    /// Returns the time of the device's clock in nanoseconds. The clock is monotonic. A simulation has a virtual clock.
    pub fn clock_ns(&self) -> Result<u64> {
        let mut now = 0;
        // SAFETY: the handle is alive, and the other arguments are plain values.
        check(unsafe { sys::sh_device_get_clock(self.as_raw(), &mut now) })?;
        Ok(now)
    }

    /// Makes a stream. Engines on a GPU have streams of their own and wrap them with [`Stream::from_raw`].
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Allocates `bytes` bytes of zeroed host memory and pins the memory for this device; see [`PinnedMemory`]. Blocks.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`] if `bytes` is 0.
    /// - [`Status::OUT_OF_HOST_MEMORY`] if the memory cannot be allocated.
    pub fn pinned_memory(&self, bytes: usize) -> Result<PinnedMemory> {
        PinnedMemory::new(self, bytes)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Device").field(&self.as_raw()).finish()
    }
}

/// The properties and abilities of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// `SH_DEVICE_*` of [`sys`].
    pub flags: u32,
    /// `SH_DEVICE_KIND_*` of [`sys`], or another `DLDeviceType` of DLPack. 0 if other libraries cannot use its memory.
    pub kind: u32,
    /// Number of the device among its backend's devices: 1 for "cuda:1".
    pub ordinal: u32,
    /// Name of its backend, e.g. "cuda".
    pub backend: String,
    /// The name that opens the device, e.g. "cuda:0".
    pub name: String,
    /// The driver's name for the device.
    pub description: String,
    /// Size of the smallest page that the device supports, in bytes.
    pub granularity_bytes: u64,
    /// Size of the pages in use, in bytes.
    pub page_bytes: u64,
    /// Size in bytes of the pieces in which the library moves sources that are not pinned.
    pub staging_piece_bytes: u64,
    /// Number of threads that read such sources.
    pub staging_threads: u32,
    /// NUMA node of the host that is closest to the device, if the driver knows it.
    pub host_node: Option<u64>,
    /// Address on the PCI bus, e.g. "0000:17:00.0". Empty if it is not known.
    pub bus_id: String,
}

impl Capabilities {
    /// Returns whether a block keeps its address while it is registered.
    pub fn fixed_addresses(&self) -> bool {
        self.flags & sys::SH_DEVICE_FIXED_ADDRESSES != 0
    }

    /// Returns whether the host may read and write views through their addresses.
    pub fn host_addressable(&self) -> bool {
        self.flags & sys::SH_DEVICE_HOST_ADDRESSABLE != 0
    }

    /// Returns whether the device is a simulation. A simulation has a clock and sizes, but no contents.
    pub fn virtual_time(&self) -> bool {
        self.flags & sys::SH_DEVICE_VIRTUAL_TIME != 0
    }

    /// Returns whether the device is a GPU.
    pub fn gpu(&self) -> bool {
        self.flags & sys::SH_DEVICE_IS_GPU != 0
    }
}

/// A backend that the library found, or searched for without success.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendInfo {
    /// [`Status::OK`] if the backend works; otherwise the reason.
    pub status: Status,
    /// Number of devices that the backend has.
    pub device_count: u32,
    /// Whether the backend is part of the library and not a plugin.
    pub built_in: bool,
    /// "host", "cuda", …
    pub name: String,
    /// File of the plugin. Empty if the backend is built in or was not found.
    pub path: String,
    /// Text that says why the backend does not work. Empty if the backend works.
    pub reason: String,
}

/// Lists all backends, including those that do not work. Blocks, because the call loads plugins.
pub fn backends() -> Result<Vec<BackendInfo>> {
    let mut count = 0;
    // SAFETY: with a capacity of 0, the call writes only the number.
    check(unsafe { sys::sh_backend_list(std::ptr::null_mut(), 0, &mut count) })?;
    let mut infos = vec![init!(sh_backend_info); count as usize];
    // SAFETY: the pointer and the capacity describe `infos`, and struct_size is set in each element.
    check(unsafe { sys::sh_backend_list(infos.as_mut_ptr(), infos.len() as u64, &mut count) })?;
    infos.truncate(count as usize);
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
