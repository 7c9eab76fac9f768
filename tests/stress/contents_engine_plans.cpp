// An engine's changes of the order, the plan and the memory while contents change, and the device calls that are made
// to fail.
#include <chrono>
#include <thread>

#include "contents_engine.h"
#include "fault/fault.h"
#include "plugin.h"

namespace stagehand::test {

void ContentsEngine::prefetch(Party& party) {
    std::vector<ModelBlock*> blocks;
    for (size_t k = 1 + pick(6); k-- > 0;) blocks.push_back(&any(party));
    call_unclaimed(party, "sh_prefetch", blocks, {}, Driver::silent, [&](const std::vector<sh_block>& ids) {
        return sh_prefetch(party.runtime(), ids.data(), ids.size());
    });
}

// Sets an order of some or all blocks, sorted or not, with each block once or twice. Or sets no order, so that the
// library learns it.
void ContentsEngine::schedule(Party& party, bool lacking) {
    if (pick(8) == 0) {
        call(party, "sh_set_schedule of none", kNoBlock, {}, Driver::silent,
             [&] { return sh_set_schedule(party.runtime(), nullptr, 0); });
        return;
    }
    std::vector<ModelBlock*> order;
    const uint32_t absent = static_cast<uint32_t>(pick(party.groups()));
    for (const auto& block : party.blocks())
        if (block->ordered() && (!lacking || (block->group != absent && pick(4)))) order.push_back(block.get());
    if (pick(3) == 0) std::shuffle(order.begin(), order.end(), random_);
    if (pick(3) == 0) order.insert(order.end(), order.rbegin(), order.rend());
    const uint64_t compute_ns = pick(3) * 500;
    call_unclaimed(party, "sh_set_schedule", order, {}, Driver::silent, [&](const std::vector<sh_block>& ids) {
        std::vector<sh_use> uses(ids.size(), SH_USE_INIT);
        for (size_t k = 0; k < ids.size(); k++) {
            uses[k].block = ids[k];
            uses[k].compute_ns = compute_ns;
        }
        return sh_set_schedule(party.runtime(), uses.data(), uses.size());
    });
}

void ContentsEngine::begin() {
    for (Party* party : parties_)
        if (pick(4)) schedule(*party, false);
}

// Runs while no other thread makes calls.
void ContentsEngine::alone(Party& party) {
    if (party.quiet.exchange(true)) return;
    for (int k = 0; k < 100 && party.inside > 1; k++) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (pick(3)) schedule(party, pick(4) == 0);
    if (pick(2)) budget(party);
    if (pick(4) == 0)
        trim(party);
    else
        plan(party);
    party.quiet = false;
}

void ContentsEngine::step(Party& party) {
    if (party.stepping.exchange(true)) return;
    const sh_status begun = call(party, "sh_step_begin", kNoBlock, {SH_ERROR_BUDGET, SH_ERROR_BUSY}, Driver::may_fail,
                                 [&] { return sh_step_begin(party.runtime(), nullptr); });
    if (begun == SH_OK) {
        const bool shuffled = pick(4) == 0;
        for (size_t k = 0; k < party.blocks().size() && !party.lost; k++) {
            ModelBlock& block = shuffled ? any(party) : *party.blocks()[k];
            if (pick(3) == 0)
                change(party, block, 2);
            else
                use(party, block, 2);
        }
        call(party, "sh_step_end", kNoBlock, {}, Driver::may_fail, [&] { return sh_step_end(party.runtime()); });
    }
    party.stepping = false;
}

void ContentsEngine::plan(Party& party) {
    sh_plan_options options = SH_PLAN_OPTIONS_INIT;
    options.flags = pick(4) == 0 ? SH_PLAN_DRY_RUN : 0;
    auto info = sh_sized<sh_plan_info>();
    call(party, "sh_plan", kNoBlock, {SH_ERROR_BUDGET, SH_ERROR_BUSY, SH_ERROR_INVALID_STATE}, Driver::may_fail,
         [&] { return sh_plan(party.runtime(), &options, &info); });
}

// Sets a budget from a fifth of the blocks to all of them, mostly small enough that some blocks stream.
void ContentsEngine::budget(Party& party) {
    const uint64_t pages = round_.pages(), bytes = (pages / 5 + pick(pick(3) ? pages / 2 : pages)) * kPage;
    call(party, "sh_device_set_budget", kNoBlock, {SH_ERROR_BUDGET}, Driver::may_fail,
         [&] { return sh_device_set_budget(round_.device().get(), bytes); });
}

void ContentsEngine::trim(Party& party) {
    const uint64_t keep = pick(3) ? pick(party.pages()) * kPage : 0;
    call(party, "sh_trim", kNoBlock, {SH_ERROR_INVALID_STATE}, Driver::may_fail,
         [&] { return sh_trim(party.runtime(), keep, nullptr); });
}

void ContentsEngine::synchronize(Party& party) {
    call(party, "sh_runtime_synchronize", kNoBlock, {}, Driver::may_fail,
         [&] { return sh_runtime_synchronize(party.runtime()); });
}

void ContentsEngine::inspect(Party& party) {
    ModelBlock& block = any(party);
    auto state = sh_sized<sh_block_state>();
    call_unclaimed(party, "sh_block_get_state", {&block}, {}, Driver::silent, [&](const std::vector<sh_block>& ids) {
        return sh_block_get_state(party.runtime(), ids[0], &state);
    });
    if (state.present_bytes > state.bytes || state.resident_bytes + state.streamed_bytes > state.bytes ||
        state.state > uint32_t(SH_BLOCK_DRAINING))
        party.fail(block.number, "sh_block_get_state tells what cannot be");
    auto stats = sh_sized<sh_runtime_stats>();
    call(party, "sh_runtime_get_stats", kNoBlock, {}, Driver::silent,
         [&] { return sh_runtime_get_stats(party.runtime(), &stats); });
    if (stats.lost && !round_.setting().faulty) party.fail(kNoBlock, "the runtime is lost");
}

// Destroys the stream and makes another one, which may have the same handle.
void ContentsEngine::change_stream() {
    give_stream();
    EXPECT_SUCCEEDS(sh_stream_create(round_.device().get(), &stream_));
}

// Makes some calls into the device fail: one or a few calls soon, or every call until this thread has made the calls
// that need them.
void ContentsEngine::sabotage(Party& party) {
    static constexpr const char* kCalls[] = {"copy_to_host",   "copy_to_host",     "copy_to_host",
                                             "copy_to_device", "copy_to_device",   "stream_wait_event",
                                             "event_record",   "event_synchronize"};
    const bool lasting = pick(4) == 0;
    const sh_status failure = pick(4) ? SH_ERROR_BACKEND : SH_ERROR_OUT_OF_DEVICE_MEMORY;
    sh_fault_plan plan = {sizeof plan, failure, kCalls[pick(std::size(kCalls))], 1 + pick(12), 1 + pick(3)};
    if (lasting) plan = {sizeof plan, SH_ERROR_BACKEND, pick(4) ? "copy_to_host" : "copy_to_device", 1, 0};
    const auto arm = FAULT(sh_fault_arm);
    const auto disarm = FAULT(sh_fault_disarm);
    if (lasting)
        for (int k = 0; k < 3; k++) change(party, any(party), 2);
    EXPECT_SUCCEEDS(arm(&plan));
    if (!lasting) return;
    for (const auto& block : party.blocks())
        if (!party.lost) use(party, *block, 2);
    write_back(party);
    disarm();
}

void ContentsEngine::finish(Party& party, ThreadJournal& journal) {
    const auto call = [&](const char* name, const auto& make) {
        sh_status status = SH_OK;
        for (int attempt = 0; attempt < 8; attempt++) {  // errors of asynchronous work are returned once
            journal.begin(name, party.number(), kNoBlock, 0);
            status = make();
            journal.end(status);
            if (status == SH_OK || !party.round().setting().faulty) break;
        }
        if (status == SH_ERROR_RUNTIME_LOST && party.round().setting().faulty)
            party.lost = true;
        else if (status != SH_OK)
            party.fail(kNoBlock, std::string(name) + " at the end returned " + sh_status_string(status) + ": " + why());
        return status == SH_OK;
    };
    std::vector<sh_block> ids;
    for (const auto& block : party.blocks())
        if (block->id) ids.push_back(block->id);
    auto stats = sh_sized<sh_runtime_stats>();
    EXPECT_SUCCEEDS(sh_runtime_get_stats(party.runtime(), &stats));
    party.loads = stats.loads;
    party.plans = stats.plans;
    party.helped = stats.helped_bytes;
    const uint64_t how = party.round().seed() % 4;
    if (!party.lost && how && call("sh_write_back of all", [&] { return sh_write_back(party.runtime(), nullptr, 0); }))
        for (const auto& block : party.blocks())
            if (block->id) party.check_source(*block, "after the last sh_write_back()");
    if (!party.lost) call("sh_runtime_synchronize", [&] { return sh_runtime_synchronize(party.runtime()); });
    if (!party.lost && how == 1 &&
        call("sh_unregister_blocks", [&] { return sh_unregister_blocks(party.runtime(), ids.data(), ids.size()); }))
        for (const auto& block : party.blocks())
            if (block->id) party.check_source(*block, "after the last sh_unregister_blocks()");
    journal.begin("sh_runtime_destroy", party.number(), kNoBlock, 0);
    party.destroy();
    journal.end(SH_OK);
}

}  // namespace stagehand::test
