//! Sets: blocks of one size of which a call uses a few, such as the experts of a model.

use std::ffi::c_void;
use std::fmt;

use libstagehand_sys as sys;

use crate::block::Prepared;
use crate::error::{Error, Result, Status, c_string, check, init};
use crate::{Block, BlockDesc, Runtime, Stream};

/// What a set has, and how well it served. The fields are those of the C struct.
pub type SetInfo = sys::sh_set_info;

/// Says how a set is registered. Zero and `None` mean the default. More fields may come, so end the struct with
/// `..Default::default()`.
#[derive(Clone, Debug, Default)]
pub struct SetOptions {
    /// The most members that one call uses at once. The plan always has slots for them. 0: one.
    pub call_members: u64,
    /// Number of members of a group, if a call uses the members of one group, such as the experts of one layer. Groups
    /// are numbered one after the other, and each step calls them in this order as a rule. 0: all are one group.
    pub group_members: u64,
    /// The most slots that the pool gets. 0: one for each member.
    pub slots: u64,
    /// Distance between slots in bytes: a multiple of 256, at least the size of a member. 0: that size, rounded up.
    pub stride: u64,
    /// Name of the set in messages.
    pub name: Option<String>,
}

impl Runtime {
    /// Registers blocks of one size as a set, all or none. A member's number is its place in `members`. The members
    /// share slots of device memory, and [`MemberSet::acquire`] tells which slots they are in. They are blocks outside
    /// the order, too, and all calls for such blocks take them.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`] if there are no members, if their sizes differ, or if a description or an option
    ///   is wrong. The text names it.
    /// - The errors of [`register_blocks`](Runtime::register_blocks).
    pub fn register_set(
        &self,
        members: impl IntoIterator<Item = BlockDesc>,
        options: &SetOptions,
    ) -> Result<MemberSet<'_>> {
        let name = options.name.as_deref().map(|name| c_string("name of a set", name)).transpose()?;
        let prepared = Prepared::new(self, members.into_iter().collect())?;
        let mut raw_options = init!(sh_set_options);
        raw_options.call_members = options.call_members;
        raw_options.group_members = options.group_members;
        raw_options.slots = options.slots;
        raw_options.stride = options.stride;
        raw_options.name = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let mut blocks = vec![Block(0); prepared.descs.len()];
        let mut raw = 0;
        // SAFETY: the options, the descriptors and the objects that they point to outlive the call, and the call copies
        // them. The sources live as long as their blocks are registered.
        check(unsafe {
            sys::sh_set_create(
                self.as_raw(),
                &raw_options,
                prepared.descs.as_ptr(),
                prepared.descs.len() as u64,
                blocks.as_mut_ptr().cast(),
                &mut raw,
            )
        })?;
        let member_bytes = prepared.descs.first().map_or(0, |desc| desc.bytes);
        self.keep_sources(&blocks, prepared.kept);
        let mut set = MemberSet { runtime: self, raw, blocks, member_bytes, stride: 0 };
        set.stride = set.info()?.stride;
        Ok(set)
    }
}

/// A set of a runtime, from [`Runtime::register_set`].
///
/// Dropping this value leaves the set registered, as dropping a [`Block`] leaves the block registered. The set lives
/// until [`unregister`](MemberSet::unregister), or until the runtime is dropped.
#[derive(Clone)]
pub struct MemberSet<'runtime> {
    runtime: &'runtime Runtime,
    raw: sys::sh_set,
    blocks: Vec<Block>,
    member_bytes: u64,
    stride: u64,
}

impl<'runtime> MemberSet<'runtime> {
    /// Returns the id of the set in the C interface.
    pub fn as_raw(&self) -> sys::sh_set {
        self.raw
    }

    /// Returns the members, which are blocks, too, in the order of their numbers.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Makes members usable on `stream`, all or none, as [`Runtime::acquire_many`] does. A number may occur more than
    /// once. The members are released by [`Members::release`], or when the returned value is dropped.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`] if a number is not one of a member.
    /// - [`Status::BUDGET`] if the pool has fewer slots than the call has members. The text says how many there are.
    /// - [`Status::HELD`] if other views hold the slots that the call needs.
    /// - [`Status::INVALID_HANDLE`] if the set or a member was unregistered.
    /// - The errors of [`Runtime::acquire`].
    pub fn acquire<'a>(&self, members: &[u32], stream: &'a Stream) -> Result<Members<'a>>
    where
        'runtime: 'a,
    {
        self.acquire_with(members, stream, 0)
            .map(|members| members.expect("sh_acquire_members() waits unless told not to"))
    }

    /// Works as [`acquire`](MemberSet::acquire), but does not wait on the host for bytes. Returns `None` if not all
    /// bytes are on the device yet. The loads go on.
    pub fn try_acquire<'a>(&self, members: &[u32], stream: &'a Stream) -> Result<Option<Members<'a>>>
    where
        'runtime: 'a,
    {
        self.acquire_with(members, stream, sys::SH_ACQUIRE_NO_WAIT)
    }

    fn acquire_with<'a>(&self, numbers: &[u32], stream: &'a Stream, flags: u32) -> Result<Option<Members<'a>>>
    where
        'runtime: 'a,
    {
        let runtime: &'a Runtime = self.runtime;
        let cancelled = runtime.capturing.cancelled();
        let mut pool = init!(sh_view);
        let (owned, mut slots) = (numbers.to_vec(), vec![0; numbers.len()]);
        // SAFETY: the count is that of the numbers and of the slots, struct_size is set, and the stream is alive.
        let status = unsafe {
            sys::sh_acquire_members(
                runtime.as_raw(),
                self.raw,
                numbers.as_ptr(),
                numbers.len() as u64,
                stream.as_raw(),
                flags,
                &mut pool,
                slots.as_mut_ptr(),
            )
        };
        runtime.keep(stream);
        let ready = check(status)? != Status::NOT_READY;
        Ok(ready.then(|| Members {
            runtime,
            stream,
            set: self.raw,
            numbers: owned,
            pool,
            slots,
            stride: self.stride,
            member_bytes: self.member_bytes,
            cancelled,
        }))
    }

    /// Begins to load members that a call will probably use, the most probable ones first. `chances` says how probable
    /// the use of each member is, from 0 to 1. `None`: 1 for all. This is a hint.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`] if a number is not one of a member, if a chance is not from 0 to 1, or if there
    ///   are not as many chances as members.
    /// - [`Status::INVALID_HANDLE`] if the set or a member was unregistered.
    pub fn prefetch(&self, members: &[u32], chances: Option<&[f32]>) -> Result<()> {
        if let Some(chances) = chances.filter(|chances| chances.len() != members.len()) {
            let text = format!("prefetch: there are {} chances for {} members", chances.len(), members.len());
            return Err(Error::new(Status::INVALID_ARGUMENT, text));
        }
        let (count, chances) = (members.len() as u64, chances.map_or(std::ptr::null(), <[f32]>::as_ptr));
        // SAFETY: the count is that of the members, and of the chances if there are any.
        check(unsafe { sys::sh_prefetch_members(self.runtime.as_raw(), self.raw, members.as_ptr(), chances, count) })
            .map(drop)
    }

    /// Reads what the set has now, and how well it served.
    ///
    /// # Errors
    /// [`Status::INVALID_HANDLE`] if the set was unregistered.
    pub fn info(&self) -> Result<SetInfo> {
        let mut info = init!(sh_set_info);
        // SAFETY: struct_size is set.
        check(unsafe { sys::sh_set_get_info(self.runtime.as_raw(), self.raw, &mut info) })?;
        Ok(info)
    }

    /// Unregisters the set with all its members, and drops their sources, as [`Runtime::unregister_blocks`] does.
    /// Blocks.
    ///
    /// # Errors
    /// - [`Status::INVALID_STATE`] if a view of a member is held, or if a capture is under way. Nothing has changed.
    /// - [`Status::INVALID_HANDLE`] if the set was unregistered already.
    pub fn unregister(&self) -> Result<()> {
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_set_destroy(self.runtime.as_raw(), self.raw) })?;
        self.runtime.drop_sources(&self.blocks);
        Ok(())
    }
}

impl fmt::Debug for MemberSet<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MemberSet").field("raw", &self.raw).field("blocks", &self.blocks).finish()
    }
}

/// Members of a set that are held. Member `k` of the call lies at [`address`](Members::address) plus `slots()[k]` times
/// [`stride`](Members::stride). The addresses are valid for work that is queued on the stream before the release.
/// Dropping this value releases the members.
///
/// It borrows the runtime and the stream, so neither is dropped before it.
#[must_use = "the members are released when this is dropped"]
pub struct Members<'a> {
    runtime: &'a Runtime,
    stream: &'a Stream,
    set: sys::sh_set,
    numbers: Vec<u32>,
    pool: sys::sh_view,
    slots: Vec<u32>,
    stride: u64,
    member_bytes: u64,
    /// Number of the runtime's captures that had been cancelled before the acquire.
    cancelled: u64,
}

// SAFETY: as for View.
unsafe impl Send for Members<'_> {}
// SAFETY: as for View.
unsafe impl Sync for Members<'_> {}

impl Members<'_> {
    /// Returns the device address of slot 0.
    pub fn address(&self) -> *mut c_void {
        self.pool.address
    }

    /// Returns the slot of each member, in the order of the call.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the distance between slots in bytes.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Returns the size of all slots in bytes.
    pub fn pool_bytes(&self) -> u64 {
        self.pool.bytes
    }

    /// Returns `SH_VIEW_*` of [`sys`].
    pub fn flags(&self) -> u32 {
        self.pool.flags
    }

    /// Returns the bytes of member `index` of the call, as [`View::bytes`](crate::View::bytes) does. Also returns
    /// `None` if `index` is out of range.
    pub fn bytes(&self, index: usize) -> Option<&[u8]> {
        // Only these bytes: the library may write to other slots meanwhile.
        let offset = u64::from(*self.slots.get(index)?) * self.stride;
        let address = self.pool.address.wrapping_byte_add(offset as usize);
        self.runtime.bytes_at(self.stream, address, self.member_bytes, self)
    }

    /// Releases the members now. Unlike a drop, this call returns the error.
    pub fn release(mut self) -> Result<()> {
        check(self.end()).map(drop)
    }

    /// Releases the members once: the drop after release() does nothing.
    fn end(&mut self) -> sys::sh_status {
        let numbers = std::mem::take(&mut self.numbers);
        if numbers.is_empty() || self.cancelled != self.runtime.capturing.cancelled() {
            return sys::SH_OK; // the capture has released these members, and other views may hold them now
        }
        // SAFETY: this is the only release of the acquire, on the same stream.
        let status = unsafe {
            sys::sh_release_members(
                self.runtime.as_raw(),
                self.set,
                numbers.as_ptr(),
                numbers.len() as u64,
                self.stream.as_raw(),
            )
        };
        self.runtime.keep(self.stream);
        status
    }
}

impl Drop for Members<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Members<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Members").field("pool", &self.pool).field("slots", &self.slots).finish()
    }
}
