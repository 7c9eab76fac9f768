// An engine's changes of contents: write-backs, invalidations, updates of sources, and blocks that are unregistered and
// registered anew.
#include "contents_engine.h"

namespace stagehand::test {

void ContentsEngine::write_back(Party& party) {
    const bool all = pick(4) == 0;
    std::vector<ModelBlock*> blocks;
    if (all)
        for (const auto& block : party.blocks()) blocks.push_back(block.get());
    else
        blocks = some(party, 4);
    const bool unclaimed = !all && pick(3) == 0;
    std::vector<Claim> claims;  // no thread changes these blocks, so the test can read their sources
    std::vector<ModelBlock*> claimed;
    for (ModelBlock* const block : blocks) {
        if (!block->is_mutable()) continue;
        Claim claim = Claim::to_use(block->lock), unchanged = Claim::to_use(block->source_lock);
        if (!claim || !unchanged || !block->id) continue;
        claims.push_back(std::move(unchanged));  // given up first
        claims.push_back(std::move(claim));
        claimed.push_back(block);
    }
    if (!unclaimed && !all) blocks = claimed;
    sh_status status = SH_OK;
    if (all)
        status = call(party, "sh_write_back of all", kNoBlock, {SH_ERROR_INVALID_STATE}, Driver::may_fail,
                      [&] { return sh_write_back(party.runtime(), nullptr, 0); });
    else
        status = call_unclaimed(
            party, "sh_write_back", blocks, {SH_ERROR_INVALID_STATE}, Driver::may_fail,
            [&](const std::vector<sh_block>& ids) { return sh_write_back(party.runtime(), ids.data(), ids.size()); });
    if (status != SH_OK) return;
    party.write_backs++;
    for (ModelBlock* const block : claimed)
        party.check_source(*block, all ? "after sh_write_back() of all" : "after sh_write_back()");
}

bool ContentsEngine::write_back_one(Party& party, ModelBlock& block) {
    const sh_block id = block.id;
    const sh_status status = call(party, "sh_write_back", block.number, {SH_ERROR_INVALID_STATE}, Driver::may_fail,
                                  [&] { return sh_write_back(party.runtime(), &id, 1); });
    if (status != SH_OK) return false;
    party.check_source(block, "after sh_write_back() of it");
    return true;
}

// Called only if the invalidation throws no changes away.
void ContentsEngine::invalidate(Party& party, ModelBlock& block) {
    Claim claim;
    if (block.is_mutable()) {
        claim = Claim::to_change(block.lock);
        if (!claim || !block.id || !write_back_one(party, block)) return;
    }
    call_unclaimed(party, "sh_invalidate_blocks", {&block}, {}, Driver::may_fail,
                   [&](const std::vector<sh_block>& ids) {
                       return sh_invalidate_blocks(party.runtime(), ids.data(), ids.size());
                   });
}

// The engine's changes are thrown away, and then the source gets other bytes. Neither the changes nor the old bytes may
// come back.
void ContentsEngine::discard(Party& party, ModelBlock& block, int within) {
    if (!block.is_mutable()) return;
    const Claim claim = Claim::to_change(block.lock);
    if (!claim || !block.id || !overwrite(party, block, within)) return;
    const sh_block id = block.id;
    block.set(nullptr);  // some of the bytes may have been written
    call(party, "sh_invalidate_blocks of what is dirty", block.number, {}, Driver::may_fail,
         [&] { return sh_invalidate_blocks(party.runtime(), &id, 1); });
    if (pick(2)) something_else(party, block, within);
    for (int attempt = 0; attempt < 3 && !block.now(); attempt++) update_claimed(party, {&block}, false, within);
}

void ContentsEngine::update(Party& party, int within) {
    std::vector<Claim> claims;
    std::vector<ModelBlock*> claimed;
    const bool alone = pick(3) == 0;  // else other threads see the old or the new bytes, or are refused
    for (ModelBlock* const block : some(party, 3)) {
        Claim claim = alone ? Claim::to_change(block->lock) : Claim::to_use(block->lock),
              update = Claim::to_change(block->source_lock);
        if (!claim || !update || !block->id) continue;
        claims.push_back(std::move(update));
        claims.push_back(std::move(claim));
        claimed.push_back(block);
    }
    if (claimed.empty()) return;
    if (claimed.size() == 1 && pick(2))
        update_held(party, *claimed[0], within);
    else
        update_claimed(party, claimed, false, within);
}

// A view that is held keeps its bytes. No other view of these bytes can be had before the release.
void ContentsEngine::update_held(Party& party, ModelBlock& block, int within) {
    const sh_stream stream = stream_for(block);
    sh_view view, again = sh_sized<sh_view>();
    const SightOf sight = acquire(party, block, stream, 0, &view);
    if (!sight) return;
    const bool updated = update_claimed(party, {&block}, true, within);
    look(party, block, view, stream, sight, "a view while its source was updated");
    if (updated && !party.lost) {
        const sh_status status = call(party, "sh_acquire of what is held and out of date", block.number,
                                      {SH_ERROR_HELD, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE}, Driver::may_fail,
                                      [&] { return sh_acquire(party.runtime(), block.id, stream, 0, &again); });
        if (status == SH_OK) {
            party.fail(block.number, "it was acquired anew although a view of what it was is held");
            release(party, block, stream);
        }
    }
    release(party, block, stream);
}

// Calls that the library refuses while the source of a block is being updated.
void ContentsEngine::misplaced_calls(Party& party, ModelBlock& block, bool held) {
    const sh_block id = block.id;
    if (pick(4) == 0) {
        const sh_status status = call(party, "sh_source_update_begin, again", block.number, {SH_ERROR_INVALID_STATE},
                                      Driver::silent, [&] { return sh_source_update_begin(party.runtime(), &id, 1); });
        if (status == SH_OK) party.fail(block.number, "an update began twice");
    }
    if (pick(3) == 0) {
        auto view = sh_sized<sh_view>();
        const sh_status status =
            call(party, "sh_acquire within an update", block.number, {SH_ERROR_INVALID_STATE}, Driver::may_fail,
                 [&] { return sh_acquire(party.runtime(), id, SH_STREAM_HOST, 0, &view); });
        if (status == SH_OK) {
            party.fail(block.number, "a block was acquired while its source is updated");
            release(party, block, SH_STREAM_HOST);
        }
    }
    if (held && block.is_mutable()) {
        const sh_status status = call(party, "sh_mark_dirty within an update", block.number, {SH_ERROR_INVALID_STATE},
                                      Driver::silent, [&] { return sh_mark_dirty(party.runtime(), id); });
        if (status == SH_OK) party.fail(block.number, "a block was marked dirty while its source is updated");
    }
}

// Returns false if the update has not begun.
bool ContentsEngine::update_claimed(Party& party, const std::vector<ModelBlock*>& blocks, bool held, int within) {
    std::vector<sh_block> ids;
    for (const ModelBlock* block : blocks) ids.push_back(block->id);
    ModelBlock& first = *blocks[0];
    const sh_status begun =
        call(party, "sh_source_update_begin", first.number, {SH_ERROR_INVALID_STATE}, Driver::may_fail,
             [&] { return sh_source_update_begin(party.runtime(), ids.data(), ids.size()); });
    if (begun != SH_OK) return false;
    party.updates++;
    std::vector<Version> scratch;
    for (ModelBlock* const block : blocks) {
        if (block->is_mutable()) party.check_source(*block, "after sh_source_update_begin()");
        const uint32_t version = party.next_version(*block)->version;
        scratch.push_back(stamp(party.number() << 8 | block->number, version | kScratch, block->bytes));
        block->source->write(scratch.back());
    }
    misplaced_calls(party, first, held);
    if (pick(2)) something_else(party, first, within);
    if (pick(4) == 0) pause();
    for (size_t k = 0; k < blocks.size(); k++) {
        if (const std::string wrong = blocks[k]->source->check(*scratch[k]); !wrong.empty())
            party.fail(blocks[k]->number, "a source was written while it is updated: " + wrong);
        const Version next = party.next_version(*blocks[k]);
        blocks[k]->source->write(next);
        blocks[k]->set(next);
    }
    call(
        party, "sh_source_update_end", first.number, {}, Driver::may_fail,
        [&] { return sh_source_update_end(party.runtime(), ids.data(), ids.size()); }, first.now()->version);
    return true;
}

// Some or all blocks of a group are registered anew. The engine's changes are in the old sources then, and the library
// does not use the old sources any more.
void ContentsEngine::register_anew(Party& party, int within) {
    const uint32_t group = static_cast<uint32_t>(pick(party.groups()));
    const bool whole = pick(2);
    std::vector<Claim> claims;
    std::vector<ModelBlock*> coming, going;
    std::vector<sh_block> ids;
    for (const auto& block : party.blocks()) {
        if (block->group != group || (!whole && block->id && pick(2))) continue;
        Claim claim = Claim::to_change(block->lock);
        if (!claim) continue;
        claims.push_back(std::move(claim));
        coming.push_back(block.get());
        if (!block->id) continue;
        going.push_back(block.get());
        ids.push_back(block->id);
    }
    if (coming.empty()) return;
    if (!going.empty()) {
        for (ModelBlock* const block : going) block->id = 0;
        const sh_status status = call(party, "sh_unregister_blocks", going[0]->number, {}, Driver::may_fail,
                                      [&] { return sh_unregister_blocks(party.runtime(), ids.data(), ids.size()); });
        for (size_t k = 0; k < going.size() && status != SH_OK; k++) going[k]->id = ids[k];
        if (status != SH_OK) return;
        const bool at_once = pick(4) == 0;
        for (ModelBlock* const block : going) {
            party.check_source(*block, "after sh_unregister_blocks()");
            party.retire(*block, at_once);
        }
    }
    if (pick(3) == 0) something_else(party, *coming[0], within);
    for (ModelBlock* const block : coming) block->home = party.homes()[pick(party.homes().size())];
    call(party, "sh_register_blocks", coming[0]->number, {}, Driver::may_fail,
         [&] { return party.register_blocks(coming); });
    party.registrations++;
}

}  // namespace stagehand::test
