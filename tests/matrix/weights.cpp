#include "weights.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "../unit/codec/weights.h"
#include "access_order.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

// It may change the bytes, on the stream of the load.
int32_t see_load(const sh_loaded_range* range, void* device) {
    note_access(static_cast<sh_device*>(device), range->stream, range->address, range->bytes, true);
    return 0;
}

}  // namespace

std::vector<uint8_t> Weights::contents(size_t i, uint64_t version) const {
    if (!(specs_[i].flags & SH_BLOCK_PACK)) return contents_of(i, version, specs_[i].bytes);
    static const std::vector<uint8_t> some = codec::test::weights(codec::FloatFormat::bf16, 100'004, 1);
    std::vector<uint8_t> bytes;
    while (bytes.size() < specs_[i].bytes) bytes.insert(bytes.end(), some.begin(), some.end());
    bytes.resize(specs_[i].bytes);
    for (size_t k = 0; k < bytes.size(); k += 2) bytes[k] ^= static_cast<uint8_t>(37 * (i + 16 * version));
    return bytes;
}

// Two for some blocks.
std::vector<sh_segment> Weights::segments(size_t i) {
    std::vector<sh_segment> segments = {sources_[i]->segment()};
    if (specs_[i].flags & SH_BLOCK_PACK) segments[0].format = SH_FORMAT_BF16;
    if (i % 2 == 0 || specs_[i].origin != Origin::pageable || specs_[i].flags & SH_BLOCK_PACK) return segments;
    const uint64_t half = specs_[i].bytes / 2;
    segments.push_back(segments[0]);
    segments[0].bytes = half;
    segments[1].bytes -= half;
    segments[1].offset = half;
    segments[1].pointer = sources_[i]->memory() + half;
    return segments;
}

Weights::Weights(Run& run, const std::vector<BlockSpec>& specs, sh_runtime_options options, const sh_set_options* set)
    : run_(run), specs_(specs), ids_(specs.size()) {
    std::vector<std::vector<sh_segment>> parts(size());
    std::vector<sh_block_desc> descs(size(), sh_block_desc(SH_BLOCK_DESC_INIT));
    const auto make = [&](size_t i) {
        try {
            sources_.push_back(std::make_unique<Source>(run.device(), specs_[i].origin, *truth_[i]));
            return true;
        } catch (const std::exception&) {
            return false;
        }
    };
    for (size_t i = 0; i < size(); i++) {
        truth_.push_back(std::make_shared<const std::vector<uint8_t>>(contents(i, 0)));
        for (int k = 0; k < 20 && !make(i); k++) run_.once("sh_host_alloc", SH_ERROR_BACKEND);
        parts[i] = segments(i);
        descs[i].flags = specs_[i].flags;
        descs[i].bytes = specs_[i].bytes;
        descs[i].segments = parts[i].data();
        descs[i].segment_count = parts[i].size();
        descs[i].on_load = i % 3 == 1 && !is_mutable(i) ? see_load : nullptr;
        descs[i].user_data = run.device();
        descs[i].name = i % 4 ? "a block whose name takes memory" : nullptr;
    }
    try {
        TRY(run_, sh_runtime_create, run_.device(), &options, &runtime_);
        if (set)
            TRY(run_, sh_set_create, runtime_, set, descs.data(), size(), ids_.data(), &set_);
        else
            TRY(run_, sh_register_blocks, runtime_, descs.data(), size(), ids_.data());
    } catch (const Ended&) {
        CALL(sh_runtime_destroy, runtime_);
        run_.settle();
        throw;
    }
    for (size_t i = 0; i < size(); i++)
        if (specs_[i].flags & SH_BLOCK_PACK && !is_mutable(i))
            sources_[i]->write(std::vector<uint8_t>(specs_[i].bytes, 0xee));
}

Weights::~Weights() {
    if (std::uncaught_exceptions()) run_.settle();  // the engine ends while it holds views
    auto stats = sh_sized<sh_runtime_stats>();
    ignore(sh_runtime_get_stats(runtime_, &stats));
    if (stats.lost) {
        auto view = sh_sized<sh_view>();
        EXPECT_EQ(sh_step_begin(runtime_, nullptr), SH_ERROR_RUNTIME_LOST);
        EXPECT_EQ(sh_acquire(runtime_, ids_[0], SH_STREAM_HOST, 0, &view), SH_ERROR_RUNTIME_LOST);
    }
    CALL(sh_runtime_destroy, runtime_);
    run_.settle();  // queued work compares with the contents of this object, and copies read its sources
    EXPECT_EQ(wrong_, 0u) << "uses whose bytes were not as they should be";
}

void Weights::schedule(size_t count) {
    std::vector<sh_use> uses(count, sh_use(SH_USE_INIT));
    for (size_t i = 0; i < count; i++) uses[i].block = ids_[i], uses[i].compute_ns = 1000;
    TRY(run_, sh_set_schedule, runtime_, uses.data(), count);
}

void Weights::use(size_t i, sh_stream stream) {
    auto view = sh_sized<sh_view>();
    TRY(run_, sh_acquire, runtime_, ids_[i], stream, 0, &view);
    compare(i, view, stream);
    if (is_mutable(i) && stream == SH_STREAM_HOST) {
        TRY(run_, sh_mark_dirty, runtime_, ids_[i]);
        truth_[i] = std::make_shared<const std::vector<uint8_t>>(contents(i, ++version_));
        run_.attempt("a change", [&] { return run_.test_device().bytes().write(stream, view.address, *truth_[i]); });
    }
    release(i, stream);
}

void Weights::compare(size_t i, const sh_view& view, sh_stream stream) {
    const auto look = [this, truth = truth_[i]](const uint8_t* at) {
        wrong_ += std::memcmp(at, truth->data(), truth->size()) != 0;
    };
    run_.attempt("a comparison",
                 [&] { return run_.test_device().bytes().look(stream, view.address, truth_[i]->size(), look); });
}

void Weights::use_members(const std::vector<uint32_t>& members, sh_stream stream) {
    auto pool = sh_sized<sh_view>();
    auto info = sh_sized<sh_set_info>();
    std::vector<uint32_t> slots(members.size());
    TRY(run_, sh_acquire_members, runtime_, set_, members.data(), members.size(), stream, 0, &pool, slots.data());
    TRY(run_, sh_set_get_info, runtime_, set_, &info);
    for (size_t i = 0; i < members.size(); i++) {
        sh_view view = pool;
        view.address = static_cast<char*>(pool.address) + slots[i] * info.stride;
        compare(members[i], view, stream);
    }
    const sh_status status = CALL(sh_release_members, runtime_, set_, members.data(), members.size(), stream);
    if (run_.once("sh_release_members", status)) return;
    for (const uint32_t member : members) {  // those that the failure has left held
        auto state = sh_sized<sh_block_state>();
        TRY(run_, sh_block_get_state, runtime_, ids_[member], &state);
        if (state.held) release(member, stream);
    }
}

// A release that returns an error may or may not have released the view.
void Weights::release(size_t i, sh_stream stream) {
    run_.attempt("sh_release", [&] {
        const sh_status status = CALL(sh_release, runtime_, ids_[i], stream);
        if (run_.once("sh_release", status)) return status;
        auto state = sh_sized<sh_block_state>();
        TRY(run_, sh_block_get_state, runtime_, ids_[i], &state);
        return state.held ? status : sh_status(SH_OK);
    });
}

void Weights::step(sh_stream stream, const char* kind) {
    TRY(run_, sh_step_begin, runtime_, kind);
    for (size_t i = 0; i < size(); i++) use(i, is_mutable(i) ? SH_STREAM_HOST : stream);
    TRY_OR(run_, SH_ERROR_INVALID_STATE, sh_step_end, runtime_);
}

void Weights::replace(size_t i) {
    const auto begin = [&] {
        const sh_status status = CALL(sh_source_update_begin, runtime_, &ids_[i], 1);
        if (!run_.once("sh_source_update_begin", status)) use(i);  // it has not begun
        return status;
    };
    run_.attempt("sh_source_update_begin", begin);
    run_.settle();  // queued work compares with the old contents
    EXPECT_TRUE(!is_mutable(i) || sources_[i]->read() == *truth_[i]) << "what the engine has changed is written first";
    truth_[i] = std::make_shared<const std::vector<uint8_t>>(contents(i, ++version_));
    before_.push_back(std::move(sources_[i]));
    sources_[i] = std::make_unique<Source>(run_.device(), Origin::pageable, *truth_[i]);
    std::vector<sh_segment> parts = {sources_[i]->segment()};
    if (specs_[i].flags & SH_BLOCK_PACK) parts[0].format = SH_FORMAT_BF16;
    TRY(run_, sh_source_replace, runtime_, ids_[i], parts.data(), parts.size());
    before_.back()->write(std::vector<uint8_t>(specs_[i].bytes, 0xdd));
    if (specs_[i].flags & SH_BLOCK_PACK && !is_mutable(i))
        sources_[i]->write(std::vector<uint8_t>(specs_[i].bytes, 0xee));
    TRY_OR(run_, SH_ERROR_INVALID_STATE, sh_source_update_end, runtime_, &ids_[i], 1);
}

// The memory of the source is the engine's again when the call has failed.
void Weights::write_back(size_t i) {
    run_.attempt("sh_write_back", [&] {
        const sh_status status = CALL(sh_write_back, runtime_, &ids_[i], 1);
        if (run_.once("sh_write_back", status)) return status;
        const std::vector<uint8_t> then = sources_[i]->read();
        run_.settle();
        EXPECT_TRUE(sources_[i]->read() == then) << "the source was written after the call had failed";
        return status;
    });
    EXPECT_TRUE(sources_[i]->read() == *truth_[i]) << "the change of block " << i << " is lost";
}

void Weights::write_back() {
    TRY(run_, sh_write_back, runtime_, nullptr, 0);
    for (size_t i = 0; i < size(); i++)
        EXPECT_TRUE(!is_mutable(i) || sources_[i]->read() == *truth_[i]) << "the changes of block " << i << " are lost";
}

}  // namespace stagehand::test
