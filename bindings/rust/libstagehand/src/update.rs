//! Updates: the time in which sources may be changed.

use std::fmt;
use std::sync::Arc;

use libstagehand_sys as sys;

use crate::block::{Segments, raw_blocks};
use crate::error::{Error, Result, Status, check};
use crate::source::Exclusive;
use crate::{Block, Runtime, Source};

/// An update of blocks whose sources the library neither reads nor writes until this guard is dropped. The library
/// loads the blocks anew after that. Acquiring such a block meanwhile returns
/// [`Status::INVALID_STATE`](crate::Status::INVALID_STATE).
#[must_use = "the update ends when this is dropped"]
pub struct SourceUpdate<'runtime> {
    runtime: &'runtime Runtime,
    blocks: Vec<Block>,
    // Keeps the memory alive even if the blocks are unregistered meanwhile.
    memory: Vec<(Block, usize, Arc<Exclusive>)>,
}

impl<'runtime> SourceUpdate<'runtime> {
    pub(crate) fn begin(runtime: &'runtime Runtime, blocks: &[Block]) -> Result<SourceUpdate<'runtime>> {
        let blocks = blocks.to_vec();
        // SAFETY: the pointer and the count describe `blocks`.
        check(unsafe { sys::sh_source_update_begin(runtime.as_raw(), raw_blocks(&blocks), blocks.len() as u64) })?;
        let mut update = SourceUpdate { runtime, blocks, memory: Vec::new() };
        for &block in &update.blocks {
            let exclusive = runtime.exclusive_of(block);
            update.memory.extend(exclusive.into_iter().map(|(index, memory)| (block, index, memory)));
        }
        Ok(update)
    }

    /// Returns the bytes of a block's source. `source` is the index of the source in the block's description. Returns
    /// `None` if the source is not memory that was given away ([`Source::owned`](crate::Source::owned),
    /// [`Source::pinned`](crate::Source::pinned)).
    pub fn bytes_mut(&mut self, block: Block, source: usize) -> Option<&mut [u8]> {
        let found = self.memory.iter().find(|(of, index, _)| *of == block && *index == source);
        let (pointer, bytes) = found?.2.as_raw();
        // SAFETY: the memory belongs to this source alone. The library neither reads nor writes the memory until the
        // update ends. The library refuses a second update of the block, so the holder of this update has the bytes for
        // itself.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer, bytes) })
    }

    /// Gives a block of this update other sources, each with its offset in the block: other memory, another file, or
    /// new contents for [`Source::pack`](crate::Source::pack). The library reads, pins and packs them as a registration
    /// does, with the bytes that they have now. The sources before are dropped. Nothing has changed after an error.
    /// Blocks while it packs.
    ///
    /// # Errors
    /// - [`Status::INVALID_ARGUMENT`](crate::Status::INVALID_ARGUMENT) if a source is wrong. The text names the block.
    /// - [`Status::INVALID_STATE`](crate::Status::INVALID_STATE) if the block is not part of the update, or if a graph
    ///   uses the block.
    /// - [`Status::INVALID_HANDLE`](crate::Status::INVALID_HANDLE) if the block was not registered by this [`Runtime`].
    pub fn replace(&mut self, block: Block, sources: impl IntoIterator<Item = (u64, Source)>) -> Result<()> {
        if !self.blocks.contains(&block) {
            return Err(Error::new(Status::INVALID_STATE, "replace: the block is not part of the update"));
        }
        let Some(mutable) = self.runtime.is_mutable(block) else {
            return Err(Error::new(Status::INVALID_HANDLE, "replace: the block is not one of this runtime"));
        };
        let segments = Segments::new(sources, mutable, &block.as_raw().to_string())?;
        // SAFETY: the segments outlive the call, and the call copies them. What they point to lives as long as the
        // block has these sources, because the runtime keeps it from now on.
        check(unsafe {
            sys::sh_source_replace(
                self.runtime.as_raw(),
                block.as_raw(),
                segments.all.as_ptr(),
                segments.all.len() as u64,
            )
        })?;
        self.memory.retain(|(of, _, _)| *of != block);
        // The library has packed what some sources have now, so a change of their memory would be lost.
        let plain = segments.kept.exclusive.iter().filter(|(index, _)| segments.all[*index].format == 0);
        self.memory.extend(plain.map(|(index, memory)| (block, *index, memory.clone())));
        self.runtime.replace_kept(block, segments.kept);
        Ok(())
    }

    /// Ends the update now. Unlike a drop, this call returns the error.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let blocks = std::mem::take(&mut self.blocks);
        if blocks.is_empty() {
            return Ok(());
        }
        // SAFETY: the pointer and the count describe `blocks`.
        check(unsafe { sys::sh_source_update_end(self.runtime.as_raw(), raw_blocks(&blocks), blocks.len() as u64) })
            .map(drop)
    }
}

impl Drop for SourceUpdate<'_> {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl fmt::Debug for SourceUpdate<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SourceUpdate").field(&self.blocks).finish()
    }
}
