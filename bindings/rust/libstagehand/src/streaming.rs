//! Streaming: the calls of an engine's step, which is one pass over the model, or forward and backward.

use std::sync::atomic::Ordering;

use libstagehand_sys as sys;

use crate::block::raw_blocks;
use crate::error::{Result, Status, check, init};
use crate::runtime::lock;
use crate::{Block, Runtime, Stream, View, Views};

impl Runtime {
    /// Begins a step, which ends when it is dropped or by [`Step::end`]. Steps of a runtime do not overlap: a second one is
    /// [`Status::INVALID_STATE`]. Blocks when it plans.
    #[inline]
    pub fn step(&self) -> Result<Step<'_>> {
        // SAFETY: the runtime is alive.
        check(unsafe { sys::sh_step_begin(self.as_raw()) })?;
        Ok(Step { runtime: self })
    }

    /// Makes a block's bytes usable on `stream`: work queued there after this call sees them; with [`Stream::host`] they are there. It is
    /// released when the view is dropped, or by [`View::release`]. A block may be held several times. `sh_acquire()` says when it waits.
    #[inline]
    pub fn acquire<'a>(&'a self, block: Block, stream: &'a Stream) -> Result<View<'a>> {
        let cancelled = self.capturing.cancelled();
        let mut view = init!(sh_view);
        // SAFETY: the struct says its size; the stream is alive.
        let status = unsafe { sys::sh_acquire(self.as_raw(), block.0, stream.as_raw(), 0, &mut view) };
        self.keep(stream);
        check(status)?;
        Ok(View::new(self, stream, view, cancelled))
    }

    /// [`acquire`](Runtime::acquire) without waiting on the host for bytes: `None` when they are not there yet. The load goes on.
    pub fn try_acquire<'a>(&'a self, block: Block, stream: &'a Stream) -> Result<Option<View<'a>>> {
        let cancelled = self.capturing.cancelled();
        let mut view = init!(sh_view);
        let flags = sys::SH_ACQUIRE_NO_WAIT;
        // SAFETY: the struct says its size; the stream is alive.
        let status = unsafe { sys::sh_acquire(self.as_raw(), block.0, stream.as_raw(), flags, &mut view) };
        self.keep(stream);
        let ready = check(status)? != Status::NOT_READY;
        Ok(ready.then(|| View::new(self, stream, view, cancelled)))
    }

    /// Acquires a set at once, all or none. The loads of all are begun before any is waited for.
    pub fn acquire_many<'a>(&'a self, blocks: &[Block], stream: &'a Stream) -> Result<Views<'a>> {
        self.acquire_set(blocks, stream, 0).map(|views| views.expect("it waits"))
    }

    /// [`acquire_many`](Runtime::acquire_many) without waiting on the host for bytes.
    pub fn try_acquire_many<'a>(&'a self, blocks: &[Block], stream: &'a Stream) -> Result<Option<Views<'a>>> {
        self.acquire_set(blocks, stream, sys::SH_ACQUIRE_NO_WAIT)
    }

    fn acquire_set<'a>(
        &'a self,
        blocks: &[Block],
        stream: &'a Stream,
        flags: u32,
    ) -> Result<Option<Views<'a>>> {
        let cancelled = self.capturing.cancelled();
        let mut views = vec![init!(sh_view); blocks.len()];
        // SAFETY: as many numbers and structs as are told; the stream is alive.
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

    /// Keeps a stream that the runtime has just seen, in an acquire or a release. After the call, and not before: then either `forget` on another thread has
    /// emptied `last_stream` before the library saw the stream anew, which is noticed here, or it forgets what was seen.
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

    /// Lets a stream go: waits for the work queued on it before its last release, and keeps it no longer. Blocks.
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

    /// Begins to load blocks that will be used soon; a hint.
    pub fn prefetch(&self, blocks: &[Block]) -> Result<()> {
        // SAFETY: as many numbers as are told.
        check(unsafe { sys::sh_prefetch(self.as_raw(), raw_blocks(blocks), blocks.len() as u64) }).map(drop)
    }

    /// The bytes behind a view that is held, where the host can read them and the acquire has waited for them.
    #[inline]
    pub(crate) fn bytes_of<'a>(&self, stream: &Stream, view: &'a sys::sh_view) -> Option<&'a [u8]> {
        if !self.host_addressable || stream.as_raw() != sys::SH_STREAM_HOST {
            return None;
        }
        if view.bytes == 0 {
            return Some(&[]);
        }
        // SAFETY: the device has contents that the host can address, they are there, and stay until the release, which needs the view.
        Some(unsafe { std::slice::from_raw_parts(view.address.cast(), view.bytes as usize) })
    }
}

/// A step under way: ended when it is dropped, on every path. Views may stay held beyond it.
#[must_use = "a step ends when this is dropped"]
#[derive(Debug)]
pub struct Step<'runtime> {
    runtime: &'runtime Runtime,
}

impl Step<'_> {
    /// Ends it now, and says what an end by dropping cannot. It has ended even if this is an error.
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
