//! Occupancy: device memory of an engine, which leaves the device and comes back at the same addresses.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libstagehand_sys as sys;

use crate::Device;
use crate::WeightFormat;
use crate::callback::guarded;
use crate::error::{Result, c_path, c_string, check, field_text, init};

/// What [`Device::pause`] or [`Device::resume`] has done. The fields are those of the C struct.
pub type OccupancyChange = sys::sh_occupancy_change;

/// Device memory: its address, and its size in bytes.
pub type MemoryRange = sys::sh_memory_range;

/// What becomes of the contents of an allocation while its tag is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// For [`Device::alloc`]: `Stage`. For [`Device::pause`]: as each allocation says.
    #[default]
    Default,
    /// Host memory keeps them. They come back bit for bit.
    Stage,
    /// They are lost. The contents are undefined after a resume.
    Drop,
    /// They are lost. All bytes are 0 after a resume.
    Zero,
    /// A file keeps them: see [`PauseOptions::folder`]. They come back bit for bit.
    File,
}

impl Contents {
    fn raw(self) -> u32 {
        match self {
            Contents::Default => sys::SH_CONTENTS_DEFAULT,
            Contents::Stage => sys::SH_CONTENTS_STAGE,
            Contents::Drop => sys::SH_CONTENTS_DROP,
            Contents::Zero => sys::SH_CONTENTS_ZERO,
            Contents::File => sys::SH_CONTENTS_FILE,
        }
    }
}

/// Says how [`Device::alloc`] allocates. More fields may come, so end the struct with `..Default::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocOptions<'a> {
    /// 1 to 63 bytes. `None`: "default".
    pub tag: Option<&'a str>,
    /// What becomes of the contents in a pause.
    pub contents: Contents,
    /// The contents do not change any more after the first pause, and later pauses do not look at them.
    pub constant: bool,
    /// Of most elements of the contents, which then cross the link packed in pauses. `None`: unknown.
    pub format: Option<WeightFormat>,
}

/// Says what [`Device::pause`] releases. More fields may come, so end the struct with `..Default::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub struct PauseOptions<'a> {
    /// `None`: all tags that run. An empty slice: none.
    pub tags: Option<&'a [&'a str]>,
    /// Instead of what the allocations say.
    pub contents: Contents,
    /// The format of their elements, see [`AllocOptions::format`].
    pub format: Option<WeightFormat>,
    /// Return [`Status::BUSY`](crate::Status::BUSY) instead of waiting for another call.
    pub no_wait: bool,
    /// Leave out tags that are released already, so that the call may be repeated.
    pub repeat: bool,
    /// Copy contents also if host memory still has them from the pause before.
    pub copy_all: bool,
    /// Ranges that hold nothing. They are not copied, and their contents are undefined after the call.
    pub unused: &'a [MemoryRange],
    /// The folder of files that keep contents. `None`: the folder that the environment names in `TMPDIR`, else
    /// `/var/tmp`. With a folder, contents that the machine has too little memory for go to files, too.
    pub folder: Option<&'a Path>,
    /// Host memory that contents of all tags may take together. Further allocations go to files. 0: no limit.
    pub host_bytes: u64,
    /// Do not pin host memory that is taken now.
    pub unpinned: bool,
    /// Pause nothing. Threads of the library begin to pin the host memory that this pause will need, and the call
    /// returns.
    pub prepare: bool,
}

impl PauseOptions<'_> {
    /// The pointers are those of `tags`, `folder` and `unused`.
    fn raw(&self, tags: &Tags, folder: Option<&CString>) -> sys::sh_pause_options {
        let mut raw = init!(sh_pause_options);
        raw.flags = flags(self.no_wait, self.repeat);
        if self.copy_all {
            raw.flags |= sys::SH_OCCUPANCY_COPY_ALL;
        }
        if self.unpinned {
            raw.flags |= sys::SH_OCCUPANCY_UNPINNED;
        }
        if self.prepare {
            raw.flags |= sys::SH_OCCUPANCY_PREPARE;
        }
        raw.folder = folder.map_or(std::ptr::null(), |folder| folder.as_ptr());
        raw.host_bytes = self.host_bytes;
        raw.contents = self.contents.raw();
        raw.format = self.format.map_or(0, |format| format as u32);
        raw.tags = tags.pointers.as_ptr();
        raw.tag_count = tags.pointers.len() as u64;
        raw.unused = self.unused.as_ptr();
        raw.unused_count = self.unused.len() as u64;
        raw
    }
}

/// Says what [`Device::resume`] brings back. More fields may come, so end the struct with `..Default::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResumeOptions<'a> {
    /// `None`: all tags that are released. An empty slice: none.
    pub tags: Option<&'a [&'a str]>,
    /// Return [`Status::BUSY`](crate::Status::BUSY) instead of waiting for another call.
    pub no_wait: bool,
    /// Leave out tags that run already, so that the call may be repeated.
    pub repeat: bool,
}

/// A tag, or all tags of a device together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OccupancyInfo {
    /// `SH_OCCUPANCY_*` of [`sys`].
    pub state: u32,
    /// Empty for all tags together.
    pub tag: String,
    /// Number of allocations.
    pub allocations: u64,
    /// Sum of their sizes, as the engine asked for them.
    pub bytes: u64,
    /// Device memory that they hold. During a pause or a resume: before that call.
    pub device_bytes: u64,
    /// Contents that only host memory has.
    pub staged_bytes: u64,
    /// Host memory that is kept for contents, staged or not.
    pub host_bytes: u64,
    /// The part of `host_bytes` that is pinned.
    pub pinned_bytes: u64,
    /// How often a resume brought the tag back. For all tags: the sum.
    pub cycles: u64,
    /// Room in files that is kept for contents, staged or not.
    pub file_bytes: u64,
}

impl OccupancyInfo {
    fn new(raw: &sys::sh_occupancy_info) -> OccupancyInfo {
        OccupancyInfo {
            state: raw.state,
            tag: field_text(&raw.tag),
            allocations: raw.allocations,
            bytes: raw.bytes,
            device_bytes: raw.device_bytes,
            staged_bytes: raw.staged_bytes,
            host_bytes: raw.host_bytes,
            pinned_bytes: raw.pinned_bytes,
            cycles: raw.cycles,
            file_bytes: raw.file_bytes,
        }
    }

    /// Returns whether the engine may use the memory of the tag.
    pub fn is_running(&self) -> bool {
        self.state == sys::SH_OCCUPANCY_RUNNING
    }
}

/// Tags as C texts, and the pointers to them.
struct Tags {
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Tags {
    fn new(tags: Option<&[&str]>) -> Result<Tags> {
        let texts: Vec<CString> = tags.unwrap_or(&[]).iter().map(|tag| c_string("tag", tag)).collect::<Result<_>>()?;
        let pointers = texts.iter().map(|text| text.as_ptr()).collect();
        Ok(Tags { _texts: texts, pointers })
    }
}

fn flags(no_wait: bool, repeat: bool) -> u32 {
    (if no_wait { sys::SH_OCCUPANCY_NO_WAIT } else { 0 }) | (if repeat { sys::SH_OCCUPANCY_REPEAT } else { 0 })
}

impl Device {
    /// Allocates `bytes` bytes of device memory. Their contents are undefined. Blocks while runtimes give memory up.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if `bytes` is 0, or if the tag is empty or too
    ///   long.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if the tag is released.
    /// - [`Status::BUDGET`](crate::Status::BUDGET) if the budget leaves too little. The text names the figures.
    /// - [`Status::BUSY`](crate::Status::BUSY) if runtimes hold part of the memory until their steps and views end.
    /// - [`Status::OUT_OF_DEVICE_MEMORY`](crate::Status::OUT_OF_DEVICE_MEMORY) if the driver has no memory left.
    /// - [`Status::BACKEND`](crate::Status::BACKEND) if the driver failed.
    pub fn alloc(&self, bytes: u64, options: &AllocOptions<'_>) -> Result<Allocation> {
        let tag = options.tag.map(|tag| c_string("tag", tag)).transpose()?;
        let mut raw = init!(sh_alloc_options);
        raw.contents = options.contents.raw();
        raw.format = options.format.map_or(0, |format| format as u32);
        raw.flags = if options.constant { sys::SH_ALLOC_CONST } else { 0 };
        raw.tag = tag.as_ref().map_or(std::ptr::null(), |tag| tag.as_ptr());
        let mut address = 0;
        // SAFETY: the tag outlives the call, and the call copies it.
        check(unsafe { sys::sh_alloc(self.as_raw(), bytes, &raw, &mut address) })?;
        Ok(Allocation { device: self.clone(), address, bytes })
    }

    /// Releases tags: waits for all work on the device that was queued before, copies the contents to host memory, and
    /// gives the device memory back. The engine must not use the memory until [`resume`](Device::resume). Blocks.
    ///
    /// # Errors
    /// - [`Status::NOT_FOUND`](crate::Status::NOT_FOUND) if there is no tag of a name.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if a tag is released already, or if this thread uses
    ///   blocks of a runtime: end its step, and drop its views first.
    /// - [`Status::BUSY`](crate::Status::BUSY) if other threads use blocks of a runtime, or if another call runs, with
    ///   `no_wait`.
    /// - [`Status::OUT_OF_HOST_MEMORY`](crate::Status::OUT_OF_HOST_MEMORY) if there is too little host memory for the
    ///   contents. The tags run then.
    /// - [`Status::IO`](crate::Status::IO) if a file could not be made or written. The tags run then.
    /// - [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED) if the device does not map memory by pages, or cannot wait
    ///   for all work.
    /// - [`Status::BACKEND`](crate::Status::BACKEND) if the driver failed. The text tells whether the tags run, or are
    ///   released with all their contents.
    pub fn pause(&self, options: &PauseOptions<'_>) -> Result<OccupancyChange> {
        let mut change = init!(sh_occupancy_change);
        let tags = Tags::new(options.tags)?;
        let folder = options.folder.map(|folder| c_path("folder", folder)).transpose()?;
        let raw = options.raw(&tags, folder.as_ref());
        // For the C interface no tags are all tags.
        if options.tags.is_none_or(|tags| !tags.is_empty()) {
            // SAFETY: the pointers and the counts describe `tags` and `unused`, which outlive the call.
            check(unsafe { sys::sh_pause(self.as_raw(), &raw, &mut change) })?;
        }
        Ok(change)
    }

    /// Brings released tags back: same addresses, same contents. All tags of a call come back together, or none does.
    /// Blocks until the contents are there.
    ///
    /// # Errors
    /// On failure the tags stay released, with their contents.
    /// - [`Status::NOT_FOUND`](crate::Status::NOT_FOUND) if there is no tag of a name.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if a tag is not released.
    /// - [`Status::BUDGET`](crate::Status::BUDGET) if the budget leaves too little. The text names the figures.
    /// - [`Status::BUSY`](crate::Status::BUSY) if runtimes hold part of the memory, or if another call runs, with
    ///   `no_wait`.
    /// - [`Status::OUT_OF_DEVICE_MEMORY`](crate::Status::OUT_OF_DEVICE_MEMORY) if the driver has too little memory.
    /// - [`Status::BACKEND`](crate::Status::BACKEND) if the driver failed.
    pub fn resume(&self, options: &ResumeOptions<'_>) -> Result<OccupancyChange> {
        let mut change = init!(sh_occupancy_change);
        let tags = Tags::new(options.tags)?;
        let mut raw = init!(sh_resume_options);
        raw.flags = flags(options.no_wait, options.repeat);
        raw.tags = tags.pointers.as_ptr();
        raw.tag_count = tags.pointers.len() as u64;
        // For the C interface no tags are all tags.
        if options.tags.is_none_or(|tags| !tags.is_empty()) {
            // SAFETY: the pointer and the count describe `tags`, which outlive the call.
            check(unsafe { sys::sh_resume(self.as_raw(), &raw, &mut change) })?;
        }
        Ok(change)
    }

    /// Reads the state and the figures of a tag. `None`: all tags together. Never blocks.
    ///
    /// # Errors
    /// [`Status::NOT_FOUND`](crate::Status::NOT_FOUND) if there is no tag of that name.
    pub fn occupancy(&self, tag: Option<&str>) -> Result<OccupancyInfo> {
        let tag = tag.map(|tag| c_string("tag", tag)).transpose()?;
        let name = tag.as_ref().map_or(std::ptr::null(), |tag| tag.as_ptr());
        let mut info = init!(sh_occupancy_info);
        // SAFETY: struct_size is set, and the tag outlives the call.
        check(unsafe { sys::sh_occupancy_get_info(self.as_raw(), name, &mut info) })?;
        Ok(OccupancyInfo::new(&info))
    }

    /// Lists all tags, by name. A tag that another thread adds meanwhile may be missing. Never blocks.
    pub fn occupancies(&self) -> Result<Vec<OccupancyInfo>> {
        let mut count = 0;
        // SAFETY: with a capacity of 0, the call writes only the number.
        check(unsafe { sys::sh_occupancy_list(self.as_raw(), std::ptr::null_mut(), 0, &mut count) })?;
        let mut infos = vec![init!(sh_occupancy_info); count as usize];
        // SAFETY: the pointer and the capacity describe `infos`, and struct_size is set in each element.
        check(unsafe { sys::sh_occupancy_list(self.as_raw(), infos.as_mut_ptr(), infos.len() as u64, &mut count) })?;
        Ok(infos.iter().map(OccupancyInfo::new).collect())
    }

    /// Reads contents of an allocation while its tag is released. The tag stays released. Contents that host memory
    /// does not keep, because they are zeroed or unused, are 0. Blocks while another call runs.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if the range does not lie in an allocation.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if the tag runs.
    /// - [`Status::NOT_FOUND`](crate::Status::NOT_FOUND) if the contents were dropped.
    /// - [`Status::IO`](crate::Status::IO) if the file that has the contents cannot be read.
    /// - [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED) if the device has no contents.
    pub fn read_released(&self, address: u64, contents: &mut [u8]) -> Result<()> {
        let (bytes, to) = (contents.len() as u64, contents.as_mut_ptr().cast::<c_void>());
        // SAFETY: `to` has room for `bytes` bytes.
        check(unsafe { sys::sh_occupancy_read(self.as_raw(), address, bytes, to) }).map(drop)
    }

    /// Has `before` called before a pause and `after` when the tags run again: after a resume, and after a pause that
    /// failed. They get the names of the tags, and run on the thread that pauses or resumes. Those that were added
    /// first are called first before a pause, and last after a resume. If `before` returns an error or panics, nothing
    /// is paused, and the pause fails with the text. A panic of `after` is lost. They must not allocate, free, pause or
    /// resume memory of the device. The calls end when the result is dropped.
    ///
    /// # Errors
    /// [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if such a function makes the call.
    pub fn on_pause(
        &self,
        before: impl FnMut(&[&str]) -> io::Result<()> + Send + 'static,
        after: impl FnMut(&[&str]) + Send + 'static,
    ) -> Result<PauseCallbacks> {
        let functions = Box::new(Mutex::new(Functions { before: Box::new(before), after: Box::new(after) }));
        let data = std::ptr::from_ref(&*functions).cast_mut().cast::<c_void>();
        let mut scope = std::ptr::null_mut();
        // SAFETY: the box is freed when the callbacks are gone, or never.
        let added = unsafe {
            sys::sh_occupancy_add_callbacks(self.as_raw(), Some(call_before), Some(call_after), data, &mut scope)
        };
        check(added)?;
        Ok(PauseCallbacks { _device: self.clone(), scope, functions: Some(functions) })
    }

    /// Frees the host memory that holds no contents now. Returns the number of bytes that were freed. Blocks.
    ///
    /// # Errors
    /// [`Status::BACKEND`](crate::Status::BACKEND) if the driver cannot tell whether copies still use the memory.
    pub fn trim_occupancy(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the device is alive.
        check(unsafe { sys::sh_occupancy_trim(self.as_raw(), &mut bytes) })?;
        Ok(bytes)
    }
}

type Before = dyn FnMut(&[&str]) -> io::Result<()> + Send;
type After = dyn FnMut(&[&str]) + Send;

struct Functions {
    before: Box<Before>,
    after: Box<After>,
}

/// The functions of [`Device::on_pause`]. They are called until this value is dropped.
pub struct PauseCallbacks {
    // Keeps the device open, and with it the callbacks.
    _device: Device,
    scope: *mut sys::sh_scope,
    functions: Option<Box<Mutex<Functions>>>,
}

// SAFETY: scopes may be ended on any thread (base.h), and the functions may be sent to any thread.
unsafe impl Send for PauseCallbacks {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for PauseCallbacks {}

impl Drop for PauseCallbacks {
    fn drop(&mut self) {
        // SAFETY: the scope is ended once, or goes on.
        let status = unsafe { sys::sh_scope_end(self.scope) };
        // One of the functions cannot end the calls: they go on.
        if status == sys::SH_ERROR_INVALID_STATE {
            std::mem::forget(self.functions.take());
        }
    }
}

impl fmt::Debug for PauseCallbacks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PauseCallbacks").field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// # Safety
/// As the library calls a callback of [`Device::on_pause`].
unsafe fn with_tags<T>(
    tags: *const *const c_char,
    count: u64,
    functions: *mut c_void,
    call: impl FnOnce(&mut Functions, &[&str]) -> T,
) -> std::result::Result<T, String> {
    guarded(|| {
        // SAFETY: on_pause() gave this pointer, and the box lives until the callbacks are removed.
        let functions = unsafe { &*functions.cast::<Mutex<Functions>>() };
        let names: Vec<_> = (0..count as usize)
            // SAFETY: the library gives `count` texts, which are valid during the call.
            .map(|i| unsafe { CStr::from_ptr(*tags.add(i)) }.to_string_lossy())
            .collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        call(&mut functions.lock().unwrap_or_else(PoisonError::into_inner), &names)
    })
}

unsafe extern "C" fn call_before(
    tags: *const *const c_char,
    count: u64,
    message: *mut c_char,
    message_bytes: u64,
    functions: *mut c_void,
) -> i32 {
    // SAFETY: the library makes this call.
    let text = match unsafe { with_tags(tags, count, functions, |functions, names| (functions.before)(names)) } {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("it panicked: {panic}"),
    };
    let bytes = text.len().min((message_bytes as usize).saturating_sub(1));
    // SAFETY: there is room for `message_bytes` bytes, which are 0 before the call.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), message, bytes) };
    1
}

unsafe extern "C" fn call_after(tags: *const *const c_char, count: u64, functions: *mut c_void) {
    // SAFETY: the library makes this call.
    let _ = unsafe { with_tags(tags, count, functions, |functions, names| (functions.after)(names)) };
}

/// Device memory of an engine. The memory is freed when this value is dropped. The drop waits for the work on the
/// device, unless the tag is released.
///
/// The address is a number. Every access through it is `unsafe`, and is forbidden while the tag is released.
pub struct Allocation {
    // Keeps the device open: the device would free the memory when it closes.
    device: Device,
    address: u64,
    bytes: u64,
}

impl Allocation {
    /// Returns the device address, which stays the same in a pause.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes, as it was asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the device of the memory.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Frees the memory now. Unlike a drop, this call returns the error.
    ///
    /// # Errors
    /// [`Status::BACKEND`](crate::Status::BACKEND) if the driver failed to wait. The memory then stays allocated until
    /// the device closes.
    pub fn free(mut self) -> Result<()> {
        let address = std::mem::take(&mut self.address); // the drop ignores 0
        // SAFETY: the device is alive, and the address is from sh_alloc() of this device.
        check(unsafe { sys::sh_free(self.device.as_raw(), address) }).map(drop)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the device is alive, and the address is 0 or from sh_alloc() of this device.
        unsafe { sys::sh_free(self.device.as_raw(), self.address) };
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = format!("{:#x}", self.address);
        formatter
            .debug_struct("Allocation")
            .field("address", &format_args!("{address}"))
            .field("bytes", &self.bytes)
            .finish()
    }
}
