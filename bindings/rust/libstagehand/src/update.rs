//! The time in which sources may be changed.

use std::fmt;
use std::sync::Arc;

use libstagehand_sys as sys;

use crate::block::raw_blocks;
use crate::error::{Result, check};
use crate::source::Exclusive;
use crate::{Block, Runtime};

/// Blocks whose sources nothing reads and nothing writes to until this is dropped, which has them loaded anew. Acquiring them
/// meanwhile is [`Status::BUSY`](crate::Status::BUSY).
#[must_use = "the update ends when this is dropped"]
pub struct SourceUpdate<'runtime> {
    runtime: &'runtime Runtime,
    blocks: Vec<Block>,
    // Alive even if somebody unregisters the blocks meanwhile.
    memory: Vec<(Block, usize, Arc<Exclusive>)>,
}

impl<'runtime> SourceUpdate<'runtime> {
    pub(crate) fn begin(runtime: &'runtime Runtime, blocks: &[Block]) -> Result<SourceUpdate<'runtime>> {
        let blocks = blocks.to_vec();
        // SAFETY: as many numbers as are told.
        check(unsafe {
            sys::sh_source_update_begin(runtime.as_raw(), raw_blocks(&blocks), blocks.len() as u64)
        })?;
        let mut update = SourceUpdate { runtime, blocks, memory: Vec::new() };
        for &block in &update.blocks {
            let exclusive = runtime.exclusive_of(block);
            update.memory.extend(exclusive.into_iter().map(|(index, memory)| (block, index, memory)));
        }
        Ok(update)
    }

    /// The bytes of a block's source, by its index in the block's description, if it is memory given away
    /// ([`Source::owned`](crate::Source::owned), [`Source::pinned`](crate::Source::pinned)).
    pub fn bytes_mut(&mut self, block: Block, source: usize) -> Option<&mut [u8]> {
        let found = self.memory.iter().find(|(of, index, _)| *of == block && *index == source);
        let (pointer, bytes) = found?.2.as_raw();
        // SAFETY: the memory belongs to this one source. Until the update ends the library neither reads nor writes it, and a second
        // update of the block is refused; so whoever has this update has the bytes.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer, bytes) })
    }

    /// Ends it now, and says what an end by dropping cannot.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        let blocks = std::mem::take(&mut self.blocks);
        if blocks.is_empty() {
            return Ok(());
        }
        // SAFETY: as many numbers as are told.
        check(unsafe {
            sys::sh_source_update_end(self.runtime.as_raw(), raw_blocks(&blocks), blocks.len() as u64)
        })
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
