//! Streaming: the calls of an engine's step. A step is one pass over the model, or a forward and a backward pass.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use libstagehand_sys as sys;

use crate::block::raw_blocks;
use crate::error::{Result, Status, c_string, check, field_text, init};
use crate::runtime::lock;
use crate::{Block, Runtime, Stream, View, Views};

/// A kind of step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KindInfo {
    /// The name of [`Runtime::step_of_kind`]. Empty if the runtime tells the kind apart by itself.
    pub name: String,
    /// Steps of this kind that the runtime has recognised.
    pub steps: u64,
    /// Compute time of a step, measured. 0 until it is known.
    pub compute_ns: u64,
}

impl Runtime {
    /// Begins a step. The step ends by [`Step::end`], or when the guard is dropped. Steps of a runtime do not overlap.
    /// Blocks if the call plans.
    ///
    /// # Errors
    /// - [`Status::INVALID_STATE`] if a step is under way.
    /// - [`Status::BUDGET`] if the share is too small.
    /// - [`Status::BUSY`] if other runtimes still hold a part of the share.
    /// - The error of asynchronous work.
    #[inline]
    pub fn step(&self) -> Result<Step<'_>> {
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_step_begin(self.as_raw(), std::ptr::null()) })?;
        Ok(Step { runtime: self })
    }

    /// Begins a step of the kind with that name, such as "prefill" or "decode". Steps of one kind use the same blocks
    /// in the same order and compute about as long. Kinds that alternate get one plan.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`] if the name is empty, has more than 63 bytes, or contains a NUL.
    /// - The errors of [`step`](Runtime::step).
    pub fn step_of_kind(&self, kind: &str) -> Result<Step<'_>> {
        let kind = c_string("kind", kind)?;
        // SAFETY: the runtime is alive, and the name ends with a NUL.
        check(unsafe { sys::sh_step_begin(self.as_raw(), kind.as_ptr()) })?;
        Ok(Step { runtime: self })
    }

    /// Lists the kinds of step that the runtime knows.
    pub fn kinds(&self) -> Result<Vec<KindInfo>> {
        let mut count = 0;
        let mut infos = [init!(sh_kind_info); 8];
        // SAFETY: the pointer and the capacity describe `infos`, and struct_size is set in each element.
        check(unsafe { sys::sh_kind_list(self.as_raw(), infos.as_mut_ptr(), infos.len() as u64, &mut count) })?;
        let list = infos.iter().take(count as usize).map(|info| KindInfo {
            name: field_text(&info.name),
            steps: info.steps,
            compute_ns: info.compute_ns,
        });
        Ok(list.collect())
    }

    /// Makes a block's bytes usable on `stream`. Work that is queued on `stream` after this call sees the bytes. On
    /// [`Stream::host`], the call returns when the bytes are on the device. [`sh_acquire`](sys::sh_acquire) says when
    /// the call waits, and lists all errors.
    ///
    /// The block is released by [`View::release`], or when the view is dropped. A block may be held several times.
    ///
    /// # Errors
    /// - [`Status::HELD`] if another view holds the pages that the block needs. The text names the block of that view.
    /// - [`Status::SOURCE`], [`Status::CALLBACK`] or [`Status::BACKEND`] if the load failed. The next acquire tries the
    ///   load again.
    /// - [`Status::INVALID_STATE`] if the block's source is being updated, or if a graph has been entered and the block
    ///   streams.
    /// - [`Status::INVALID_HANDLE`] if the block is not a block of this runtime.
    /// - The errors of [`step`](Runtime::step) if the call plans.
    #[inline]
    pub fn acquire<'a>(&'a self, block: Block, stream: &'a Stream) -> Result<View<'a>> {
        let cancelled = self.capturing.cancelled();
        let mut view = init!(sh_view);
        // SAFETY: struct_size is set, and the stream is alive.
        let status = unsafe { sys::sh_acquire(self.as_raw(), block.0, stream.as_raw(), 0, &mut view) };
        self.keep(stream);
        check(status)?;
        Ok(View::new(self, stream, view, cancelled))
    }

    /// Works as [`acquire`](Runtime::acquire), but does not wait on the host for bytes. Returns `None` if the bytes are
    /// not on the device yet. The load goes on.
    pub fn try_acquire<'a>(&'a self, block: Block, stream: &'a Stream) -> Result<Option<View<'a>>> {
        let cancelled = self.capturing.cancelled();
        let mut view = init!(sh_view);
        let flags = sys::SH_ACQUIRE_NO_WAIT;
        // SAFETY: struct_size is set, and the stream is alive.
        let status = unsafe { sys::sh_acquire(self.as_raw(), block.0, stream.as_raw(), flags, &mut view) };
        self.keep(stream);
        let ready = check(status)? != Status::NOT_READY;
        Ok(ready.then(|| View::new(self, stream, view, cancelled)))
    }

    /// Acquires a set of blocks at once, all or none. The loads of all blocks begin before the call waits for any of
    /// them. The errors are those of [`acquire`](Runtime::acquire).
    pub fn acquire_many<'a>(&'a self, blocks: &[Block], stream: &'a Stream) -> Result<Views<'a>> {
        self.acquire_set(blocks, stream, 0).map(|views| views.expect("sh_acquire_many() waits unless told not to"))
    }

    /// Works as [`acquire_many`](Runtime::acquire_many), but does not wait on the host for bytes. Returns `None` if not
    /// all bytes are on the device yet.
    pub fn try_acquire_many<'a>(&'a self, blocks: &[Block], stream: &'a Stream) -> Result<Option<Views<'a>>> {
        self.acquire_set(blocks, stream, sys::SH_ACQUIRE_NO_WAIT)
    }

    fn acquire_set<'a>(&'a self, blocks: &[Block], stream: &'a Stream, flags: u32) -> Result<Option<Views<'a>>> {
        let cancelled = self.capturing.cancelled();
        let mut views = vec![init!(sh_view); blocks.len()];
        // SAFETY: the count is that of `blocks` and of `views`, and the stream is alive.
        let status = unsafe {
            sys::sh_acquire_many(
                self.as_raw(),
                raw_blocks(blocks),
                blocks.len() as u64,
                stream.as_raw(),
                flags,
                views.as_mut_ptr(),
            )
        };
        self.keep(stream);
        let ready = check(status)? != Status::NOT_READY;
        Ok(ready.then(|| Views::new(self, stream, views, cancelled)))
    }

    /// Keeps a stream that the runtime has just seen in an acquire or a release.
    ///
    /// This is called after the library's call and not before, because of `forget` on another thread. Either `forget`
    /// emptied `last_stream` before the library saw the stream again, and this function notices that. Or `forget` ran
    /// after that, and the library forgets the stream.
    #[inline]
    pub(crate) fn keep(&self, stream: &Stream) {
        if stream.is_owned() && self.last_stream.load(Ordering::Relaxed) != stream.as_raw() {
            self.keep_anew(stream);
        }
    }

    #[cold]
    fn keep_anew(&self, stream: &Stream) {
        let mut streams = lock(&self.streams);
        if !streams.iter().any(|kept| kept.as_raw() == stream.as_raw()) {
            streams.push(stream.clone());
        }
        self.last_stream.store(stream.as_raw(), Ordering::Relaxed);
    }

    /// Makes the runtime forget a stream: the call waits for the work that was queued on the stream before its last
    /// release. The runtime keeps the stream no longer. Blocks.
    pub fn forget(&self, stream: &Stream) -> Result<()> {
        let mut streams = lock(&self.streams);
        self.last_stream.store(sys::SH_STREAM_HOST, Ordering::Relaxed);
        let place = streams.iter().position(|kept| kept.is_owned() && kept.as_raw() == stream.as_raw());
        let kept = place.map(|place| streams.swap_remove(place));
        drop(streams);
        // SAFETY: the stream is alive.
        let result = check(unsafe { sys::sh_stream_forget(self.as_raw(), stream.as_raw()) }).map(drop);
        if let (Err(_), Some(kept)) = (&result, kept) {
            self.keep_anew(&kept);
        }
        result
    }

    /// Begins to load blocks that will be used soon. This is a hint for blocks outside the order. It may do nothing,
    /// and it does nothing before there is a plan.
    pub fn prefetch(&self, blocks: &[Block]) -> Result<()> {
        // SAFETY: the pointer and the count describe `blocks`.
        check(unsafe { sys::sh_prefetch(self.as_raw(), raw_blocks(blocks), blocks.len() as u64) }).map(drop)
    }

    /// Returns the bytes behind a view that is held, if the host can read them and the acquire has waited for them.
    #[inline]
    pub(crate) fn bytes_of<'a>(&self, stream: &Stream, view: &'a sys::sh_view) -> Option<&'a [u8]> {
        self.bytes_at(stream, view.address, view.bytes, view)
    }

    /// Returns bytes that were acquired, as [`bytes_of`](Runtime::bytes_of). `_held` is what holds them.
    #[inline]
    pub(crate) fn bytes_at<'a, Held>(
        &self,
        stream: &Stream,
        address: *const c_void,
        bytes: u64,
        _held: &'a Held,
    ) -> Option<&'a [u8]> {
        if !self.host_addressable || stream.as_raw() != sys::SH_STREAM_HOST {
            return None;
        }
        if bytes == 0 {
            return Some(&[]);
        }
        // SAFETY: the device has contents that the host can address. The bytes are there and do not change until the
        // release, and the release needs what holds them.
        Some(unsafe { std::slice::from_raw_parts(address.cast(), bytes as usize) })
    }
}

/// A step that is under way. The step ends when this guard is dropped. Views may stay held after that.
#[must_use = "a step ends when this is dropped"]
#[derive(Debug)]
pub struct Step<'runtime> {
    runtime: &'runtime Runtime,
}

impl Step<'_> {
    /// Ends the step now. The step has ended even if this returns an error. Unlike a drop, this call returns the error.
    pub fn end(self) -> Result<()> {
        let runtime = self.runtime;
        std::mem::forget(self);
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_step_end(runtime.as_raw()) }).map(drop)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        // SAFETY: the runtime is alive.
        unsafe { sys::sh_step_end(self.runtime.as_raw()) };
    }
}
